import json

import numpy as np
import pytest

PROTOCOL = {"ood": ["mnist", "test"], "margin": 0.7, "epochs": 20, "batch_size": 256}
VERSIONS = {"surefind": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.7"}


def make_cell(row="laplace-online", seed=0, name="fashion-mnist", **changes):
    """One cell whose numbers depend on row and seed alone."""
    rng = np.random.default_rng([sum(map(ord, row)), seed])
    made = {
        "values": {"recall@1": round(rng.uniform(0.7, 0.9), 4)},
        "intervals": {},
        "curves": {},
        "left_out": 0,
        "set": name,
        "row": row,
        "seed": seed,
        "ood": "mnist",
        "protocol": PROTOCOL,
        "examples": {"train": 54000, "test": 10000, "ood": 10000},
        "seconds": 1.5,
        "versions": VERSIONS,
    }
    recall = made["values"]["recall@1"]
    made["values"] |= {"map@1": recall, "map@5": recall - 0.03}
    made["intervals"] = {"recall@1": [recall - 0.01, recall + 0.01]}
    if row != "deterministic":
        _with_uncertainty(made, rng)
    return made | changes


def _with_uncertainty(made, rng):
    made["values"] |= {
        m: round(rng.uniform(0.6, 0.99), 4) for m in ("auroc", "auprc", "ausc", "r_auroc")
    }
    made["values"] |= {m: round(rng.uniform(0.01, 0.2), 4) for m in ("fpr95", "aurc", "ece")}
    x = np.linspace(0, 1, 21)
    made["curves"] = {
        kind: {"x": x.tolist(), "y": (x ** rng.uniform(0.1, 1)).tolist()}
        for kind in ("roc", "precision-recall", "calibration", "sparsification")
    }
    made["kappa"] = {
        "edges": np.linspace(0, 2, 61).round(4).tolist(),
        "id": rng.integers(0, 50, 60).tolist(),
        "ood": rng.integers(0, 50, 60).tolist(),
    }
    made["corruptions"] = {
        kind: {
            "strength": [0.0, 0.5, 1.0],
            "median": [0.1, 0.2, 0.4],
            "low": [0.05, 0.1, 0.2],
            "high": [0.2, 0.4, 0.8],
        }
        for kind in ("blur", "noise", "occlusion")
    }


@pytest.fixture
def cell():
    """Make a cell as the benchmark writes it."""
    return make_cell


@pytest.fixture
def put(tmp_path):
    """Write cells where the benchmark would, and give the folder."""
    return lambda *cells: write_cells(tmp_path / "results", *cells)


def write_cells(folder, *cells):
    for made in cells:
        file = folder / made["set"] / f"{made['row']}-seed{made['seed']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(made) + "\n")
    return folder
