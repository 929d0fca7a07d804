"""Search in a large gallery, durable writes, rounds of changes that end in a kill, a stream of queries.

Run ``python benchmarks/gallery.py``; finished cases are kept in results/gallery.json, and ``--again``
measures all of them anew. ``--against SRC`` measures the cases of a gallery's folder with this surefind
and with another one, whose sources are in SRC, in turns, and keeps both and their ratios.

Vectors are drawn from classes in a space of fewer dimensions, as embeddings are, and, for the worst case,
evenly from the sphere. Recall is measured against the exact search of the same queries. Times of one query
are those of `Gallery.search`, all included.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import environment, status

from surefind.embeddings import Embeddings
from surefind.gallery.gallery import Gallery

RESULTS = Path(__file__).parent / "results" / "gallery.json"
KILLS = Path(__file__).parents[1] / "tests" / "gallery" / "kill_rounds.py"
SEED = 0
QUERIES = 200


def clustered(n: int, z: int, rng: np.random.Generator) -> np.ndarray:
    """Draw unit vectors of 10,000 classes in 32 of the z dimensions, with noise in all of them."""
    plane = np.random.default_rng(SEED).normal(size=(32, z)).astype(np.float32)
    centres = np.random.default_rng(SEED + 1).normal(size=(10_000, 32)).astype(np.float32)
    vectors = centres[rng.integers(len(centres), size=n)]
    vectors += 0.5 * rng.normal(size=vectors.shape).astype(np.float32)
    return unit(vectors @ plane + rng.normal(size=(n, z), scale=0.5).astype(np.float32))


def even(n: int, z: int, rng: np.random.Generator) -> np.ndarray:
    return unit(rng.normal(size=(n, z)).astype(np.float32))


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def search(draw: Callable[..., np.ndarray], n: int, z: int) -> dict[str, Any]:
    rng = np.random.default_rng(SEED + 2)
    vectors, queries = draw(n, z, rng), draw(QUERIES, z, rng)
    before = status("VmRSS")
    exact = Gallery(index="exact")
    ids = range(n)
    start = time.perf_counter()
    exact.add(vectors, ids=ids)
    added = time.perf_counter() - start
    records = status("VmRSS") - before
    hnsw = Gallery(index="hnsw")
    hnsw.add(vectors, ids=ids)
    before = status("VmRSS")
    start = time.perf_counter()
    hnsw.search(queries[:1])
    while hnsw.info["faults"]:  # the graph is built behind
        time.sleep(0.01)
    hnsw.search(queries[:1])
    built = time.perf_counter() - start
    graph = status("VmRSS") - before
    truth, exact_times = one_by_one(exact, queries)
    found, times = one_by_one(hnsw, queries)
    hits = [len(set(a) & set(b)) / 10 for a, b in zip(truth, found, strict=True)]
    return {
        "items": n,
        "dimensions": z,
        "queries": QUERIES,
        "add_seconds": added,
        "records_mb": records / 1024,
        "hnsw_build_seconds": built,
        "hnsw_extra_mb": graph / 1024,
        "hnsw_ms": quantiles(times),
        "exact_ms": quantiles(exact_times),
        "exact_over_hnsw": float(np.median(exact_times) / np.median(times)),
        "hnsw_recall_at_10": float(np.mean(hits)),
    }


def one_by_one(gallery: Gallery, queries: np.ndarray) -> tuple[list[Any], list[float]]:
    answers, times = [], []
    gallery.search(queries[:1])
    for query in queries:
        start = time.perf_counter()
        answers.append(gallery.search(query[None], k=10).ids[0].tolist())
        times.append(time.perf_counter() - start)
    return answers, times


def quantiles(seconds: list[float]) -> dict[str, float]:
    return {name: float(np.quantile(seconds, q)) * 1e3 for name, q in (("p50", 0.5), ("p95", 0.95))}


def folder(n: int, z: int) -> dict[str, Any]:
    """Time durable writes: single items, one large call, compacting the folder, and opening it."""
    vectors = even(n, z, np.random.default_rng(SEED))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "gallery"
        with Gallery(path=path) as gallery:
            seconds = {"add_all": timed(lambda: gallery.add(vectors, ids=range(n)))}
            single = [timed(lambda: gallery.add(vectors[:1])) for _ in range(200)]
            seconds["compact"] = timed(gallery.save)
        start = time.perf_counter()
        Gallery.open(path).close()
        seconds["open"] = time.perf_counter() - start
    return {"items": n, "dimensions": z, "seconds": seconds, "add_one_ms": quantiles(single)}


def large(n: int, z: int) -> dict[str, Any]:
    """Open a large folder, and change one label there; each item has a label, a κ and a payload."""
    rng = np.random.default_rng(SEED)
    vectors, kappa = even(n, z, rng), rng.uniform(5, 500, n)
    names = [f"images/{i:07d}.jpg" for i in range(n)]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "gallery"
        with Gallery() as gallery:
            gallery.add(
                Embeddings(vectors, kappa),
                ids=names,
                labels=[f"class {i % 10_000}" for i in range(n)],
                payload=[{"path": name} for name in names],
            )
            saved = timed(lambda: gallery.save(path))
        disk = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
        opened = [timed(lambda: Gallery.open(path, mode="r").close()) for _ in range(3)]
        with Gallery.open(path) as gallery:
            changed = [
                timed(lambda name=name: gallery.update(ids=[name], labels=["other"]))
                for name in rng.choice(names, 200, replace=False).tolist()
            ]
    return {
        "items": n,
        "dimensions": z,
        "save_seconds": saved,
        "disk_mb": disk / 1e6,
        "open_seconds": float(np.median(opened)),
        "open_best_seconds": min(opened),
        "label_ms": quantiles(changed),
    }


def additions(z: int) -> dict[str, Any]:
    """Count durable additions a second: single items, and 100 at a time."""
    vectors = even(100, z, np.random.default_rng(SEED))
    with tempfile.TemporaryDirectory() as place, Gallery(path=Path(place) / "gallery") as gallery:
        single = [timed(lambda: gallery.add(vectors[:1])) for _ in range(2000)]
        batch = [timed(lambda: gallery.add(vectors)) for _ in range(200)]
    return {
        "dimensions": z,
        "add_one_ms": quantiles(single),
        "add_100_ms": quantiles(batch),
        "single_per_second": len(single) / sum(single),
        "in_hundreds_per_second": 100 * len(batch) / sum(batch),
    }


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def stream(n: int, z: int, count: int) -> dict[str, Any]:
    """Answer a stream of vectors on one core: as fast as they come, then one that waits for each answer."""
    rng = np.random.default_rng(SEED)
    centres = rng.normal(size=(1_200, z))  # a sixth of them is in no gallery

    def people(count: int, known: int) -> tuple[np.ndarray, list[int | None]]:
        who = rng.integers(known, size=count)
        drawn = unit(centres[who] + 0.7 * rng.normal(size=(count, z)))
        return drawn, [int(w) if w < 1_000 else None for w in who]

    with tempfile.TemporaryDirectory() as place:
        with Gallery(path=Path(place) / "gallery") as gallery:
            items, labels = people(n, 1_000)
            gallery.add(items, labels=labels)
            asked, truth = people(3_000, 1_200)
            enrolled = set(labels)
            gallery.calibrate(asked, [t if t in enrolled else None for t in truth])
        vectors, _ = people(count, 1_200)
        lines = [
            json.dumps({"id": i, "vector": v.round(6).tolist()}).encode() + b"\n"
            for i, v in enumerate(vectors)
        ]
        command = [sys.executable, "-m", "surefind", "search", "gallery", "-"]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=place,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            os.sched_setaffinity(process.pid, {0})
            single = [timed(lambda line=line: ask(process, line)) for line in lines[:201]][1:]
            spent, start = processor_seconds(process.pid), time.perf_counter()
            producer = threading.Thread(target=send, args=(process, lines))
            producer.start()
            for _ in lines:
                process.stdout.readline()
            seconds = time.perf_counter() - start
            spent = processor_seconds(process.pid) - spent
            producer.join()
    return {
        "items": n,
        "dimensions": z,
        "queries": count,
        "per_second": count / seconds,
        "per_cpu_second": count / spent,
        "one_ms": quantiles(single),
        "load": round(os.getloadavg()[0], 1),
        "processor": environment()["processor"],
    }


def send(process: subprocess.Popen[bytes], lines: list[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.writelines(lines)
    process.stdin.close()


def ask(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    process.stdout.readline()


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kills(rounds: int) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, KILLS, str(rounds), str(SEED)], capture_output=True, text=True, check=True
    )
    return dict(json.loads(run.stdout.splitlines()[-1]))


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "kill rounds 200": lambda: kills(200),
    "open 1,000,000 x 128, one changed label": lambda: large(1_000_000, 128),
    "durable additions, 128 dimensions": lambda: additions(128),
    "folder 100,000 x 128": lambda: folder(100_000, 128),
    "search 100,000 x 128, clustered": lambda: search(clustered, 100_000, 128),
    "search 100,000 x 128, even": lambda: search(even, 100_000, 128),
    "search 1,000,000 x 128, clustered": lambda: search(clustered, 1_000_000, 128),
    "stream 10,000 x 128": lambda: stream(10_000, 128, 20_000),
}


COMPARED, ROUNDS = (
    ("open 1,000,000 x 128, one changed label", "durable additions, 128 dimensions"),
    3,
)


def measured(name: str, source: str | None = None) -> dict[str, Any]:
    """Run a case in a process of its own, perhaps with other sources."""
    run = subprocess.run(
        [sys.executable, __file__, "--case", name],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | ({} if source is None else {"PYTHONPATH": source}),
    )
    if run.returncode:
        return {"error": (run.stderr.strip().splitlines() or ["no message"])[-1]}
    return dict(json.loads(run.stdout.splitlines()[-1]))


def against(source: str) -> dict[str, Any]:
    """Measure folders with these and with other sources, in turns; keep medians and their ratios."""
    found: dict[str, Any] = {}
    for name in COMPARED:
        runs = [(measured(name, source), measured(name)) for _ in range(ROUNDS)]
        before, after = (
            {key: float(np.median([flat(r)[key] for r in side])) for key in flat(side[0])}
            for side in zip(*runs, strict=True)
        )
        ratio = {key: after[key] / before[key] for key in before}
        found[name] = {"rounds": ROUNDS, "before": before, "after": after, "ratio": ratio}
        print(f"{name}: {found[name]}", flush=True)
    return found


def flat(case: dict[str, Any]) -> dict[str, float]:
    parts = {k: v if isinstance(v, dict) else {"": v} for k, v in case.items()}
    return {f"{k} {n}".strip(): x for k, v in parts.items() for n, x in v.items()}


def main(argv: list[str]) -> None:
    if len(argv) == 2 and argv[0] == "--case":
        print(json.dumps(CASES[argv[1]]()))
        return
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() and "--again" not in argv else {}
    table |= {"environment": environment(), "seed": SEED}
    if argv[:1] == ["--against"]:
        table["compared"] = against(argv[1])
        RESULTS.write_text(json.dumps(table, indent=1) + "\n")
        return
    for name in CASES:
        if name in table.setdefault("cases", {}):
            continue
        found = measured(name)
        print(f"{name}: {found}", flush=True)
        if "error" not in found:
            table["cases"][name] = found
            RESULTS.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
