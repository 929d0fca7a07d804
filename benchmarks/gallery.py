"""Search in a large gallery, durable writes, and rounds of changes that end in a kill.

Run ``python benchmarks/gallery.py``; finished cases are kept in results/gallery.json, and ``--again``
measures all of them anew. Vectors are drawn from classes in a space of fewer dimensions, as embeddings
are, and, for the worst case, evenly from the sphere. Recall is measured against the exact search of
the same queries. Times of one query are those of `Gallery.search`, all included.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import environment, status

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
    """Durable writes: single items, one large call, a snapshot, and opening it."""
    vectors = even(n, z, np.random.default_rng(SEED))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "gallery"
        with Gallery(path=path) as gallery:
            seconds = {"add_all": timed(lambda: gallery.add(vectors, ids=range(n)))}
            single = [timed(lambda: gallery.add(vectors[:1])) for _ in range(200)]
            seconds["snapshot"] = timed(gallery.save)
        start = time.perf_counter()
        Gallery.open(path).close()
        seconds["open"] = time.perf_counter() - start
    return {"items": n, "dimensions": z, "seconds": seconds, "add_one_ms": quantiles(single)}


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def kills(rounds: int) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, KILLS, str(rounds), str(SEED)], capture_output=True, text=True, check=True
    )
    return dict(json.loads(run.stdout.splitlines()[-1]))


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "kill rounds 200": lambda: kills(200),
    "folder 100,000 x 128": lambda: folder(100_000, 128),
    "search 100,000 x 128, clustered": lambda: search(clustered, 100_000, 128),
    "search 100,000 x 128, even": lambda: search(even, 100_000, 128),
    "search 1,000,000 x 128, clustered": lambda: search(clustered, 1_000_000, 128),
}


def main(argv: list[str]) -> None:
    if len(argv) == 2 and argv[0] == "--case":
        print(json.dumps(CASES[argv[1]]()))
        return
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() and "--again" not in argv else {}
    table |= {"environment": environment(), "seed": SEED}
    for name in CASES:
        if name in table.setdefault("cases", {}):
            continue
        run = subprocess.run(
            [sys.executable, __file__, "--case", name], capture_output=True, text=True, check=False
        )
        if run.returncode:
            print(f"{name}: {(run.stderr.strip().splitlines() or ['no message'])[-1]}")
            continue
        table["cases"][name] = json.loads(run.stdout.splitlines()[-1])
        print(f"{name}: {table['cases'][name]}", flush=True)
        RESULTS.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
