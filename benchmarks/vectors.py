"""What `LaplaceHead` costs on large sets of vectors, and how well it does on real ones.

Run ``python benchmarks/vectors.py`` for the costs and ``--data FOLDER`` for recall and uncertainty on
frozen features of CUB200 and Cars196 (``cub200_effnetlite0.npz``, ``cars196_test_effnetlite0.npz``).
Results are kept in results/vectors.json; finished cases are not measured again without ``--again``.

Costs: each case in a process of its own. ``process_peak_mb`` is the whole process, ``peak_mb`` what the fit
needs beyond its inputs; both count pages of a mapped file that the system happens to keep in memory.
``products`` is CPU time over that of X Xᵀ, measured on a share of its rows right before and after the fit,
because other work on the machine slows both alike. On a busy machine take ``OMP_NUM_THREADS=1``: threads
that wait for each other count as CPU time.
"""

import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import environment, measure, status

from surefind import metrics
from surefind.estimators.laplace_head import LaplaceHead
from surefind.neighbours import nearest

RESULTS = Path(__file__).parent / "results" / "vectors.json"
SEED = 0
SIZES = {  # rows, columns, columns to scan, memory-mapped
    "100000 x 512, 1000 classes, every pair": (100_000, 512, "all", False),
    "1000000 x 128, 1000 classes, mapped, 8192 columns": (1_000_000, 128, "auto", True),
}
HEADS = {
    "identity": {},
    "principal 128": {"embedding_dim": 128},
}


def write_classes(path: Path, n: int, d: int, classes: int = 1000) -> np.ndarray:
    """Write noisy classes as .npy, a block at a time; return the labels."""
    g = np.random.default_rng(SEED)
    labels = g.integers(classes, size=n)
    centres = g.standard_normal((classes, d), dtype=np.float32)
    out = np.lib.format.open_memmap(path, "w+", np.float32, (n, d))
    for i in range(0, n, 10_000):
        own = labels[i : i + 10_000]
        out[i : i + 10_000] = centres[own] + g.standard_normal((len(own), d), dtype=np.float32)
    out.flush()
    return labels


def product_seconds(X: np.ndarray, count: int = 256) -> float:
    """CPU seconds of X Xᵀ, from its first rows."""
    rows = torch.from_numpy(np.array(X[:count]))
    start = time.process_time()
    for i in range(0, len(X), 8192):
        rows @ torch.from_numpy(np.array(X[i : i + 8192])).T
    return len(X) / count * (time.process_time() - start)


def cost(name: str) -> dict[str, float]:
    n, d, columns, mapped = SIZES[name]
    with tempfile.TemporaryDirectory() as folder:
        labels = write_classes(Path(folder) / "x.npy", n, d)
        X = np.load(Path(folder) / "x.npy", mmap_mode="r" if mapped else None)
        product = product_seconds(X)
        head = LaplaceHead(scan_columns=columns)
        figures = measure(lambda: lambda: head.fit(X, labels), seconds=0)
        product = (product + product_seconds(X)) / 2
        return figures | {
            "threads": torch.get_num_threads(),
            "process_peak_mb": status("VmHWM") / 1024,
            "product_cpu_seconds": product,
            "products": figures["cpu_seconds"] / product,
            "pair_scan_error": head.pair_scan_error_,
        }


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as file:
        return file["x"].astype(np.float32), file["y"]


def chords(cosines: torch.Tensor) -> np.ndarray:
    return (2 - 2 * cosines.double()).clamp(min=0).sqrt().numpy()


def quality(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fit on CUB classes 1 … 100; search classes 101 … 200 among themselves; Cars are unknown."""
    X, y = read(folder / "cub200_effnetlite0.npz")
    cars, _ = read(folder / "cars196_test_effnetlite0.npz")
    start = time.perf_counter()
    head = LaplaceHead(**options).fit(X[y <= 100], y[y <= 100])
    seconds = time.perf_counter() - start
    birds, unknown = head.embed(X[y > 100]), head.embed(cars)
    found = nearest(birds.mean, birds.mean, 2, exclude_self=True)
    wrong = y[y > 100][found.indices[:, 0].numpy()] != y[y > 100]
    own = chords(found.similarities)
    others = chords(nearest(unknown.mean, birds.mean, 2).similarities)
    signals = {
        "kappa": (birds.uncertainty, unknown.uncertainty),
        "distance": (own[:, 0], others[:, 0]),
        "margin": (own[:, 0] - own[:, 1], others[:, 0] - others[:, 1]),
    }
    return {
        "seconds": seconds,
        "recall_at_1": float(1 - wrong.mean()),
        "clipped": head.clipped_,
        **{f"auroc {k}": metrics.auroc(known, new) for k, (known, new) in signals.items()},
        **{
            f"r_auroc {k}": metrics.auroc(known[~wrong], known[wrong])
            for k, (known, _) in signals.items()
        },
    }


def main(argv: list[str]) -> None:
    if argv[:1] == ["--case"]:
        print(json.dumps(cost(argv[1])))
        return
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if "--again" in argv:
        table.pop("cub200, cars196" if "--data" in argv else "cost", None)
    table["environment"] = environment() | {"scikit-learn": version("scikit-learn")}
    costs, scores = table.setdefault("cost", {}), table.setdefault("cub200, cars196", {})
    if "--data" in argv:
        folder = Path(argv[argv.index("--data") + 1])
        jobs = [(scores, name, lambda o=o: quality(o, folder)) for name, o in HEADS.items()]
    else:
        jobs = [(costs, name, lambda name=name: in_process(name)) for name in SIZES]
    for results, name, job in jobs:
        if name not in results:
            results[name] = job()
            print(name, results[name], flush=True)
            RESULTS.write_text(json.dumps(table, indent=1) + "\n")


def in_process(name: str) -> dict[str, float]:
    run = subprocess.run(
        [sys.executable, __file__, "--case", name], capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main(sys.argv[1:])
