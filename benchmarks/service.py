"""The service under load: beside bare FAISS, searches of many clients, hostile uploads, requests, kills.

Run ``python benchmarks/service.py``; finished cases are kept in results/service.json, and ``--again``
measures all of them again, ``--only TEXT`` those whose name holds the text. The server is a process of its
own, as `surefind serve` starts it; clients share the machine with it. Every client sends its next request
when the last one was answered, so with c clients the mean latency is c over the throughput; with a rate,
clients wait for their turn. Times are those of the client, connection kept open. What a request costs
server and clients in CPU is measured too: unlike the times, it hardly depends on what else is running.

Beside bare FAISS (`bare_faiss.py`), both servers are asked in turns of a few seconds, in one run on one
machine, and the ratio is that of the medians.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvloop
from measure import environment
from PIL import Image

import surefind as sf
from surefind.data.sources import load_digits
from surefind.gallery.gallery import Gallery
from surefind.learning.seeds import seeded
from surefind.models.networks import small_net

RESULTS = Path(__file__).parent / "results" / "service.json"
TESTS = Path(__file__).parents[1] / "tests" / "service"
LAUNCH = "import typer; from surefind.cli.serve import serve; typer.run(serve)"
BARE = Path(__file__).parent / "bare_faiss.py"
BESIDE = {"exact": 10_000, "hnsw": 200_000}
"""Items of 128 dimensions for each index, where the service is compared with bare FAISS."""
BESIDE_DIM, CLIENTS, TURNS, TURN = 128, (1, 16, 64), 3, 5.0
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
SEED, ITEMS, DIM, CLASSES = 0, 100_000, 64, 5_000


def vectors(
    n: int, rng: np.random.Generator, dim: int = DIM, classes: int = CLASSES
) -> tuple[np.ndarray, np.ndarray]:
    """Draw noisy members of classes, and the class of each."""
    centres = np.random.default_rng(SEED).normal(size=(classes, dim))
    labels = rng.integers(classes, size=n)
    drawn = centres[labels] + 0.6 * rng.normal(size=(n, dim))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True), labels


def make_world(place: Path) -> None:
    """Write a run, and a calibrated gallery of 100,000 items, once exact and once with a graph."""
    rng = np.random.default_rng(SEED + 1)
    digits = load_digits(n_ood=10).train
    encoder = small_net(1, 8, DIM, generator=seeded(SEED, "encoder"))
    sf.MetricLearner(encoder, epochs=1, embedding="head").fit(digits).save(place / "run")
    mean, labels = vectors(ITEMS, rng)
    asked, truth = vectors(2_000, rng)
    kappa = np.exp(rng.normal(6, 1, size=ITEMS))
    for index in ("exact", "hnsw"):
        gallery = Gallery(path=place / index, index=index, model=str(place / "run"))
        gallery.add(sf.Embeddings(mean, kappa), ids=range(ITEMS), labels=labels)
        known = set(labels.tolist())
        gallery.calibrate(
            sf.Embeddings(asked, np.exp(rng.normal(6, 1, size=len(asked)))),
            [int(t) if int(t) in known else None for t in truth],
        )
        gallery.save()
        gallery.close()


def server(
    gallery: Path, *options: str
) -> AbstractContextManager[tuple[str, subprocess.Popen[bytes]]]:
    """Run `surefind serve`; yield its address and its process."""
    return serving("-c", LAUNCH, str(gallery), "--port", "0", "--set", "rate=0", *options)


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server in Python; yield the address that it prints, and its process."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            lines = (re.search(rb"http://[^/\s]+", line) for line in process.stdout)
            address = next(found for found in lines if found).group().decode()
            wait_for(address)
            yield address, process
        finally:
            process.send_signal(signal.SIGTERM)


def wait_for(address: str) -> None:
    for _ in range(600):
        try:
            httpx.get(f"{address}/healthz").raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise TimeoutError(address)


def posts(address: str, path: str, kind: str, bodies: list[bytes]) -> list[bytes]:
    """Write requests as they go over the wire, so that clients need not while they are measured."""
    host = address.removeprefix("http://")
    return [
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
        for body in bodies
    ]


async def load(
    address: str, clients: int, seconds: float, requests: list[bytes], rate: float | None = None
) -> dict[str, Any]:
    """Let clients ask without a pause, or ``rate`` times a second in all; measure when they are warm."""
    host, port = address.removeprefix("http://").split(":")
    times: list[float] = []
    every, wrong = 0, 0
    start = time.perf_counter()
    warm, end = start + min(2.0, seconds / 4), start + seconds

    async def client(number: int) -> None:
        nonlocal every, wrong
        reader, writer = await asyncio.open_connection(host, int(port))
        turn = number
        pause = 0.0 if rate is None else clients / rate
        await asyncio.sleep(pause * number / clients)
        while (begun := time.perf_counter()) < end:
            writer.write(requests[turn % len(requests)])
            turn += clients
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
            every += 1
            if begun >= warm:
                times.append(time.perf_counter() - begun)
                wrong += head[9:12] != b"200"
            await asyncio.sleep(max(0.0, begun + pause - time.perf_counter()))
        writer.close()

    await asyncio.gather(*(client(i) for i in range(clients)))
    milliseconds = 1e3 * np.array(times)
    return {
        "clients": clients,
        "seconds": end - warm,
        "requests": len(times),
        "per_second": len(times) / (end - warm),
        "p50_ms": float(np.quantile(milliseconds, 0.5)),
        "p99_ms": float(np.quantile(milliseconds, 0.99)),
        "errors": wrong,
        "all": every,
    }


def vector_search(
    place: Path, index: str, clients: int, rate: float | None = None
) -> dict[str, Any]:
    asked, _ = vectors(2_000, np.random.default_rng(SEED + 2))
    bodies = [
        json.dumps({"vectors": [v.round(6).tolist()], "kappa": [400.0]}).encode() for v in asked
    ]
    about = {"items": ITEMS, "dimensions": DIM, "index": index}
    with server(place / index) as (address, process):
        requests = posts(address, "/v1/search/vector", "application/json", bodies)
        return about | measured(address, process, clients, requests, rate)


def make_beside(place: Path, index: str) -> None:
    """Write a calibrated gallery, and its vectors for bare FAISS."""
    rng, items = np.random.default_rng(SEED + 6), BESIDE[index]
    mean, labels = vectors(items, rng, BESIDE_DIM, items // 20)
    asked, truth = vectors(2_000, rng, BESIDE_DIM, items // 20)
    np.save(place / f"{index}.npy", mean.astype(np.float32))
    with Gallery(path=place / f"beside-{index}", index=index) as gallery:
        kappa = np.exp(rng.normal(6, 1, size=items))
        gallery.add(sf.Embeddings(mean, kappa), ids=range(items), labels=labels)
        known = set(labels.tolist())
        gallery.calibrate(
            sf.Embeddings(asked, np.exp(rng.normal(6, 1, size=len(asked)))),
            [int(t) if int(t) in known and i % 2 else None for i, t in enumerate(truth)],
        )


def beside_faiss(place: Path, index: str) -> dict[str, Any]:
    """Ask the service and bare FAISS in turns."""
    if not (place / f"{index}.npy").exists():
        make_beside(place, index)
    asked, _ = vectors(2_000, np.random.default_rng(SEED + 7), BESIDE_DIM, BESIDE[index] // 20)
    bodies = [
        json.dumps({"vectors": [v.round(6).tolist()], "kappa": [400.0]}).encode() for v in asked
    ]
    cells: dict[str, Any] = {}
    with (
        server(place / f"beside-{index}") as ours,
        serving(str(BARE), str(place / f"{index}.npy"), index) as bare,
    ):
        for clients in CLIENTS:
            turns: dict[str, list[dict[str, Any]]] = {"surefind": [], "faiss": []}
            for _ in range(TURNS):
                for name, (address, process) in (("surefind", ours), ("faiss", bare)):
                    requests = posts(address, "/v1/search/vector", "application/json", bodies)
                    turns[name].append(measured(address, process, clients, requests, seconds=TURN))
            names = ("per_second", "p50_ms", "p99_ms", "server_cpu_ms", "errors")
            cell: dict[str, Any] = {
                who: {name: float(np.median([turn[name] for turn in some])) for name in names}
                for who, some in turns.items()
            }
            cell["ratio"] = cell["surefind"]["per_second"] / cell["faiss"]["per_second"]
            cells[str(clients)] = cell | {"load": round(os.getloadavg()[0], 1)}
    return {"items": BESIDE[index], "dimensions": BESIDE_DIM, "index": index, "clients": cells}


def image_search(place: Path, clients: int) -> dict[str, Any]:
    rng = np.random.default_rng(SEED + 3)
    bodies = [multipart(jpeg(rng)) for _ in range(32)]
    about = {"items": ITEMS, "image": "JPEG 256 × 256"}
    with server(place / "hnsw") as (address, process):
        kind = "multipart/form-data; boundary=b"
        requests = posts(address, "/v1/search/image?keep=false", kind, bodies)
        return about | measured(address, process, clients, requests)


def measured(
    address: str,
    process: subprocess.Popen[bytes],
    clients: int,
    requests: list[bytes],
    rate: float | None = None,
    *,
    seconds: float = 20.0,
) -> dict[str, Any]:
    """Load a server for some seconds; add what a request cost it and the clients."""
    uvloop.run(load(address, 1, min(3.0, seconds / 4), requests))
    before, own = cpu_seconds(process.pid), time.process_time()
    found = uvloop.run(load(address, clients, seconds, requests, rate))
    spent, own = cpu_seconds(process.pid) - before, time.process_time() - own
    every = found.pop("all")
    return found | {"server_cpu_ms": 1e3 * spent / every, "client_cpu_ms": 1e3 * own / every}


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def jpeg(rng: np.random.Generator) -> bytes:
    out = BytesIO()
    coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    coarse.resize((256, 256), Image.Resampling.BICUBIC).save(out, "JPEG")
    return out.getvalue()


def multipart(data: bytes) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    return head + data + b"\r\n--b--\r\n"


def kills(rounds: int) -> dict[str, Any]:
    """Write from eight clients, kill the server, and look for what it had acknowledged."""
    acknowledged: set[str] = set()
    rng = np.random.default_rng(SEED + 4)
    mean, _ = vectors(1_000, rng)
    with tempfile.TemporaryDirectory() as folder:
        gallery = Path(folder) / "gallery"
        Gallery(path=gallery).close()
        for number in range(rounds):
            with server(gallery) as (address, process):
                write = write_until_dead(address, number, mean, acknowledged)
                asyncio.run(kill_during(write, process, 0.5 + rng.random()))
        with Gallery.open(gallery) as after:
            missing = sum(id_ not in after for id_ in acknowledged)
            stored = len(after)
    return {
        "kills": rounds,
        "acknowledged": len(acknowledged),
        "stored": stored,
        "acknowledged_but_missing": missing,
    }


async def write_until_dead(
    address: str, number: int, mean: np.ndarray, acknowledged: set[str]
) -> None:
    async with httpx.AsyncClient(base_url=address) as client:

        async def one(worker: int) -> None:
            for turn in range(100_000):
                id_ = f"{number}-{worker}-{turn}"
                item = {"id": id_, "vector": mean[turn % len(mean)].tolist()}
                try:
                    answer = await client.post("/v1/items", json={"items": [item]})
                except httpx.TransportError:
                    return
                if answer.status_code == 201:
                    acknowledged.add(id_)

        await asyncio.gather(*(one(worker) for worker in range(8)))


async def kill_during(
    write: Awaitable[None], process: subprocess.Popen[bytes], seconds: float
) -> None:
    task = asyncio.ensure_future(write)
    await asyncio.sleep(seconds)
    process.kill()
    process.wait()
    await task


def made_up_requests(place: Path, cases: int) -> dict[str, Any]:
    from fuzzing import fuzz

    copy = shutil.copytree(place / "small", place / "fuzzed")
    with server(copy, "--model", str(place / "run")) as (address, _):
        statuses = fuzz(address, cases)
    return {
        "cases": sum(statuses.values()),
        "statuses": {str(k): v for k, v in sorted(statuses.items())},
        "server_errors": sum(n for status, n in statuses.items() if status >= 500),
    }


def hostile_uploads(place: Path, count: int) -> dict[str, Any]:
    from hostile import uploads

    kinds = list(uploads().values())
    statuses: dict[str, int] = {}
    with (
        server(place / "small", "--model", str(place / "run")) as (address, process),
        httpx.Client(base_url=address, timeout=60) as client,
    ):

        def send(n: int) -> None:
            for i in range(n):
                data, _ = kinds[i % len(kinds)]
                answer = client.post("/v1/search/image?keep=false", files={"file": data})
                key = str(answer.status_code)
                statuses[key] = statuses.get(key, 0) + 1

        send(2 * len(kinds))
        before = resident(process.pid)
        statuses.clear()
        send(count)
        after = resident(process.pid)
    return {
        "uploads": count,
        "kinds": len(kinds),
        "statuses": statuses,
        "resident_mb_before": before,
        "resident_mb_after": after,
    }


def large_uploads(place: Path, clients: int) -> dict[str, Any]:
    """Let clients upload photographs of 25 megapixels; look for the most memory that the server had."""
    coarse = np.random.default_rng(SEED + 8).integers(0, 256, (50, 50, 3), dtype=np.uint8)
    out = BytesIO()
    Image.fromarray(coarse).resize((5000, 5000), Image.Resampling.BICUBIC).save(out, "JPEG")
    body = multipart(out.getvalue())
    with server(place / "small", "--model", str(place / "run")) as (address, process):
        kind = "multipart/form-data; boundary=b"
        requests = posts(address, "/v1/search/image?keep=false", kind, [body])
        before = resident(process.pid)
        found = measured(address, process, clients, requests)
        peak = next(
            int(line.split()[1]) / 1024
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
    kept = ("clients", "requests", "per_second", "errors", "server_cpu_ms")
    about = {"image": "JPEG 5000 × 5000", "bytes": len(body)}
    return about | {name: found[name] for name in kept} | {"resident_mb": before, "peak_mb": peak}


def resident(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def make_small(place: Path) -> None:
    mean, labels = vectors(500, np.random.default_rng(SEED + 5))
    with Gallery(path=place / "small") as gallery:
        gallery.add(mean, ids=range(500), labels=labels)


def main(argv: list[str]) -> None:
    sys.path.insert(0, str(TESTS))
    again = "--again" in argv or not RESULTS.exists()
    table: dict[str, Any] = {} if again else json.loads(RESULTS.read_text())
    table["environment"] = environment() | {"load_before": f"{os.getloadavg()[0]:.1f}"}
    place = Path(tempfile.mkdtemp(prefix="surefind-bench-"))
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "beside bare FAISS, exact": lambda: beside_faiss(place, "exact"),
        "beside bare FAISS, graph": lambda: beside_faiss(place, "hnsw"),
        "vector search, graph, 64 clients": lambda: vector_search(place, "hnsw", 64),
        "vector search, exact, 64 clients": lambda: vector_search(place, "exact", 64),
        "vector search, exact, 64 clients, 400 a second": lambda: vector_search(
            place, "exact", 64, 400
        ),
        "vector search, graph, 1 client": lambda: vector_search(place, "hnsw", 1),
        "image search, 16 clients": lambda: image_search(place, 16),
        "kill -9 under write load": lambda: kills(10),
        "made-up requests": lambda: made_up_requests(place, 2_000),
        "large uploads, 16 clients": lambda: large_uploads(place, 16),
        "hostile uploads": lambda: hostile_uploads(place, 1_000),
    }
    only = argv[argv.index("--only") + 1] if "--only" in argv else None
    kept = table.get("cases", {})
    try:
        left = [name for name in cases if (name not in kept if only is None else only in name)]
        if any("bare FAISS" not in name for name in left):
            make_world(place)
            make_small(place)
        for name in left:
            print(f"{name} …", end=" ", flush=True)
            found = cases[name]() | {"load": round(os.getloadavg()[0], 1)}
            table.setdefault("cases", {})[name] = found
            print(found, flush=True)
            RESULTS.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main(sys.argv[1:])
