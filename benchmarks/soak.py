"""What the service must stand: an hour of mixed load with kills, ten thousand made-up requests, upkeep.

Run ``python benchmarks/soak.py``; results are kept in results/soak.json, while it runs too.

    --minutes 60        how long the mixed load lasts
    --requests 10000    how many requests are made up
    --items 50000       how many are served while waits during upkeep are measured
    --only TEXT         "mixed", "made-up" or "waits" alone
    --folder FOLDER     where the gallery is: a file system of at most 256 MB is filled up
                        (``mount -t tmpfs -o size=64m none FOLDER``), on a larger one the limit of file
                        sizes plays a full disk
    --rate 20           requests a second of the mixed load
    --life 45           seconds between two ends of the service, on average

The service is a process of its own, as `surefind serve` starts it. What is sent and what counts as a fault
is in ``benchmarks/soaking.py`` and ``tests/service/fuzzing.py``.
"""

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from measure import environment
from PIL import Image
from service import BESIDE_DIM, cpu_seconds, resident, server, vectors

import surefind as sf
from surefind.data.sources import load_digits
from surefind.gallery.gallery import Gallery
from surefind.learning.seeds import seeded
from surefind.models.networks import small_net

RESULTS = Path(__file__).parent / "results" / "soak.json"
TESTS = Path(__file__).parents[1] / "tests" / "service"
SEED, OWN, IMAGES, SHARE = 0, 400, 40, 0.2


def make_world(place: Path) -> list[bytes]:
    """Write a run, and a calibrated gallery that it can embed images for; return some images."""
    from soaking import DIM, LABELS, vector

    digits = load_digits(n_ood=10).train
    encoder = small_net(1, 8, DIM, generator=seeded(SEED, "encoder"))
    sf.MetricLearner(encoder, epochs=1, embedding="head").fit(digits).save(place / "run")

    def drawn(name: str, n: int) -> tuple[np.ndarray, list[str]]:
        vectors = np.array([vector(f"{name}-{i}", 1) for i in range(n)], dtype=np.float32)
        centres = [np.random.default_rng(c).normal(size=DIM) for c in range(len(LABELS))]
        nearest = (vectors @ np.stack(centres).T).argmax(1)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), [
            LABELS[i] for i in nearest
        ]

    with Gallery(path=place / "gallery") as gallery:
        vectors, labels = drawn("own", OWN)
        kappa = np.full(OWN, 400.0)
        gallery.add(
            sf.Embeddings(vectors, kappa), ids=[f"own-{i}" for i in range(OWN)], labels=labels
        )
        asked, truth = drawn("calibration", 600)
        gallery.calibrate(sf.Embeddings(asked, np.full(600, 400.0)), truth, max_wrong=0.2)
    return [png(np.asarray(image)) for image in np.asarray(digits.inputs)[:IMAGES]]


def png(pixels: np.ndarray) -> bytes:
    out = BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def mixed_load(place: Path, chosen: argparse.Namespace, keep: Any) -> dict[str, Any]:
    import poison
    from soaking import Soak

    images = make_world(place)
    options = ("--model", str(place / "run"), "--review-share", str(SHARE))
    sent = list(poison.REFUSED.values()), poison.BODIES
    soak = Soak(
        place,
        options=options,
        images=images,
        poison=sent,
        rate=chosen.rate,
        life=chosen.life,
        seed=SEED,
        settled=keep,
    )
    own = time.process_time()
    found = soak.run(60 * chosen.minutes)
    return found | {"client_cpu_seconds": round(time.process_time() - own, 1)}


def made_up(place: Path, requests: int) -> dict[str, Any]:
    """Send poison, walk along links, and send made-up requests to every operation for the rest."""
    from fuzzing import follow_links, fuzz

    make_world(place)
    options = ("--model", str(place / "run"), "--review-share", str(SHARE))
    with server(place / "gallery", *options) as (address, process):
        poison = send_poison(address, requests // 4)
        linked, followed = follow_links(address, requests // 4)
        made = fuzz(address, requests - sum(poison.values()) - sum(linked.values()))
        peak = resident(process.pid)
    statuses = poison + linked + made
    parts = {"poison": poison, "along links": linked, "by the description": made}
    return {
        "requests": sum(statuses.values()),
        "server_errors": sum(n for status, n in statuses.items() if status >= 500),
        "by_kind": {
            name: {str(k): v for k, v in sorted(part.items())} for name, part in parts.items()
        },
        "succeeded_along_links": dict(sorted(followed.items())),
        "resident_mb": round(peak, 1),
    }


def send_poison(address: str, cases: int) -> Counter[int]:
    """Send items that break services, and bodies that are no request, to every operation with a body."""
    import poison
    from fuzzing import check

    statuses: Counter[int] = Counter()
    schema = httpx.get(f"{address}/v1/openapi.json").json()
    places = [
        (method, path.replace("{id}", "poison"))
        for path, methods in schema["paths"].items()
        for method, about in methods.items()
        if "requestBody" in about
    ]
    dim = httpx.get(f"{address}/v1/gallery").json()["dim"]
    vector = [1.0] + [0.0] * (dim - 1)
    items = [
        {"id": "poison", "label": "poison"} | one
        for one in (
            *poison.REFUSED.values(),
            *({"id": id_} for id_ in poison.IDS.values()),
            *({"payload": payload} for payload in poison.PAYLOADS.values()),
        )
    ]
    bodies = [json.dumps({"items": [{"vector": vector} | one]}).encode() for one in items]
    bodies += [json.dumps(one).encode() for one in items] + poison.BODIES
    search = {"vectors": [vector], "k": 100}
    kinds = ("application/json", "multipart/form-data; boundary=x")
    with httpx.Client(base_url=address, timeout=60) as client:
        for body, kind, (method, path) in itertools.product(bodies, kinds, places):
            if sum(statuses.values()) >= cases:
                break
            answers = [
                client.request(method, path, content=body, headers={"content-type": kind}),
            ]
            if answers[0].status_code < 300:  # whoever comes near it must be answered
                answers += [client.post("/v1/search/vector", json=search)]
                answers += [client.get("/v1/items", params={"limit": 1000, "vectors": True})]
                client.delete("/v1/items/poison")
            for answer in answers:
                statuses[answer.status_code] += 1
                check((method, path, body[:200]), answer)
    return statuses


def until_ready(client: httpx.Client) -> None:
    """Wait until the graph is built and the calibration renewed."""
    while client.get("/readyz").json()["reasons"] or client.get("/v1/calibration").json()["stale"]:
        time.sleep(0.1)


def jobs(
    other: httpx.Client, mean: np.ndarray, asked: np.ndarray
) -> dict[str, Callable[[], object]]:
    """Return what a service does for its upkeep, and what others may ask of it meanwhile."""

    def renewed() -> None:
        new = {"id": "new", "vector": mean[0].tolist(), "kappa": 400.0, "label": 0}
        other.post("/v1/items", json={"items": [new]}).raise_for_status()
        until_ready(other)
        other.delete("/v1/items/new").raise_for_status()

    def enrolled() -> None:
        new = [
            {"id": f"n{i}", "vector": v.tolist(), "kappa": 400.0, "label": f"new {i // 20}"}
            for i, v in enumerate(mean[:500])
        ]
        for start in range(0, 500, 50):
            other.post("/v1/items", json={"items": new[start : start + 50]}).raise_for_status()
        until_ready(other)

    def many() -> None:
        body = {"vectors": asked[:256].tolist(), "kappa": [400.0] * 256, "watch": False}
        for _ in range(20):
            other.post("/v1/search/vector", json=body).raise_for_status()

    def post(path: str, body: dict[str, Any] | None = None) -> None:
        other.post(path, json=body).raise_for_status()

    target = {"from_items": True, "max_wrong": 0.05}
    return {
        "while a graph is built (exact)": lambda: until_ready(other),
        "alone": lambda: time.sleep(5),
        "while it is renewed": renewed,
        "while a snapshot is made": lambda: post("/v1/snapshot"),
        "while it is calibrated": lambda: post("/v1/calibration", target),
        "while it is audited": lambda: other.get("/v1/audit").raise_for_status(),
        "while 500 items of 25 labels are enrolled": enrolled,
        "while a client searches with 256 vectors": many,
        "alone again": lambda: time.sleep(5),
    }


def waits(place: Path, items: int) -> dict[str, Any]:
    """Search without a pause while the service builds a graph, renews, copies and calibrates itself."""
    rng = np.random.default_rng(SEED)
    mean, labels = vectors(items, rng, BESIDE_DIM, items // 20)
    asked, truth = vectors(1_000, rng, BESIDE_DIM, items // 20)
    with Gallery(path=place / "gallery", index="exact") as gallery:
        gallery.add(sf.Embeddings(mean, np.full(items, 400.0)), ids=range(items), labels=labels)
        known = set(labels.tolist())
        gallery.calibrate(
            sf.Embeddings(asked, np.full(len(asked), 400.0)),
            [int(t) if int(t) in known else None for t in truth],
            max_wrong=0.05,
        )
    bodies = [{"vectors": [v.tolist()], "kappa": [400.0], "watch": False} for v in asked[:100]]
    found: dict[str, Any] = {"items": items, "dimensions": BESIDE_DIM}
    with (
        server(place / "gallery", "--index", "hnsw") as (address, process),
        httpx.Client(base_url=address, timeout=900) as client,
        httpx.Client(base_url=address, timeout=900) as other,
        ThreadPoolExecutor(1) as pool,
    ):

        def search_during(upkeep: Callable[[], object]) -> dict[str, float]:
            times, spent, job = [], cpu_seconds(process.pid), pool.submit(upkeep)
            begun = time.perf_counter()
            while not job.done() or len(times) < 100:
                start = time.perf_counter()
                body = bodies[len(times) % len(bodies)]
                client.post("/v1/search/vector", json=body).raise_for_status()
                times.append(time.perf_counter() - start)
            job.result()
            milliseconds = 1e3 * np.array(times)
            return {
                "seconds": round(time.perf_counter() - begun, 2),
                "server_cpu_seconds": round(cpu_seconds(process.pid) - spent, 2),
                "searches": len(times),
                "p50_ms": round(float(np.quantile(milliseconds, 0.5)), 2),
                "p99_ms": round(float(np.quantile(milliseconds, 0.99)), 2),
                "longest_ms": round(float(milliseconds.max()), 2),
            }

        for name, upkeep in jobs(other, mean, asked).items():
            found[name] = search_during(upkeep)
    return found


def main(argv: list[str]) -> None:
    sys.path.insert(0, str(TESTS))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--life", type=float, default=45)
    chosen = parser.parse_args(argv)
    table: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    table["environment"] = environment()

    def keep(name: str, found: dict[str, Any]) -> None:
        found = found | {"load": round(os.getloadavg()[0], 1)}
        table.setdefault("cases", {})[name] = found
        RESULTS.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
        print(name, json.dumps(found, ensure_ascii=False), flush=True)

    for name in ("mixed load", "made-up requests", "waits during upkeep"):
        if chosen.only not in name:
            continue
        place = Path(tempfile.mkdtemp(prefix="surefind-soak-", dir=chosen.folder))
        try:
            if name == "mixed load":
                found = mixed_load(place, chosen, lambda found: keep("mixed load", found))
            elif name == "made-up requests":
                found = made_up(place, chosen.requests)
            else:
                found = waits(place, chosen.items)
            keep(name, found)
        finally:
            shutil.rmtree(place)


if __name__ == "__main__":
    main(sys.argv[1:])
