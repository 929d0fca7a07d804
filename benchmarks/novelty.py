"""What novelty costs beside embedding, and what it is worth on vectors of frozen models.

    python benchmarks/novelty.py --data DATA [--work FOLDER]

Costs are CPU time of embedding with novelty over that without, alternating in one process, one thread. For
vectors, `LaplaceHead` is fitted to some classes; other classes of the same kind are the known inputs, whose
flagged shares are reported, and another kind of thing the unknown ones. Results that are there are kept;
novelty of trained networks is a row of `surefind bench`.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from frozen import face_vectors, frozen
from learning import alternate, with_ratio
from measure import environment

import surefind as sf
from surefind import metrics
from surefind.learning.seeds import seeded
from surefind.models.backbones import tower_of, with_linear_head
from surefind.models.networks import cifar10_net, fashion_mnist_net
from surefind.neighbours import nearest_distance
from surefind.paper.catalogue import load

RESULTS = Path(__file__).parent / "results" / "novelty.json"
REPEATS = 12


def resnet50(generator):
    """Draw the weights of a ResNet-50 with GeM pooling and a linear layer."""
    tower = tower_of({"config": {"model_type": "resnet"}, "pooling": "gem"}, generator=generator)
    return with_linear_head(tower, generator=generator)


def network_cost(encoder: sf.Encoder, inputs: torch.Tensor, repeats: int) -> dict[str, float]:
    """Measure embedding with novelty against embedding without."""
    examples = sf.Dataset(inputs, torch.arange(len(inputs)) % 4)
    learner = sf.MetricLearner(encoder, method="deterministic", epochs=0).fit(examples)
    model, embedder = learner.layers_, learner.fitted
    assert model is not None
    batch = inputs.to(memory_format=torch.channels_last)
    calls = {"plain": lambda: embedder.embed(batch), "novelty": lambda: learner.embed_batch(batch)}
    times = alternate(calls, repeats)
    size = sum(t.numel() * t.element_size() for t in model.tensors().values())
    return with_ratio(times, "novelty", "plain") | {"kilobytes": size / 1000}


def small_cost(build: Callable[..., sf.Encoder], shape: tuple[int, ...]) -> dict[str, float]:
    inputs = torch.rand(512, *shape, generator=seeded(0, "images"))
    return network_cost(build(generator=seeded(0, "net")).eval(), inputs, REPEATS)


def resnet_cost() -> dict[str, float]:
    encoder = resnet50(seeded(0, "net")).eval()
    inputs = torch.rand(24, 3, 224, 224, generator=seeded(0, "images"))
    return network_cost(encoder, inputs, 5)


def worth(
    fit: tuple[np.ndarray, np.ndarray], known: np.ndarray, unknown: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Fit on some vectors, and tell known from unknown ones by novelty, κ and the nearest distance."""
    head = sf.LaplaceHead().fit(*fit)
    mean = torch.from_numpy(head.transform(fit[0]))

    def doubts(x: np.ndarray) -> dict[str, np.ndarray]:
        e = head.embed(x)
        distance = nearest_distance(torch.from_numpy(e.mean), mean).numpy()
        return {"novelty": -np.log(e.novelty), "kappa": e.uncertainty, "nearest distance": distance}

    usual = doubts(known)
    p = np.exp(-usual["novelty"])
    sets = {}
    for name, x in unknown.items():
        strange = doubts(x)
        sets[name] = {
            "examples": len(x),
            "auroc": {by: metrics.auroc(usual[by], strange[by]) for by in usual},
            "flagged at 1 %": float(np.mean(strange["novelty"] >= -np.log(0.01))),
        }
    flagged = {f"{a} %": float(np.mean(p <= a / 100)) for a in (1, 5)}
    return {"fitted": len(fit[0]), "known": len(known), "known flagged": flagged, "unknown": sets}


def cub200(data: Path, work: Path) -> dict[str, Any]:
    birds = np.load(data / "embeddings" / "cub200_effnetlite0.npz")
    cars = np.load(data / "embeddings" / "cars196_test_effnetlite0.npz")
    x, y = birds["x"].astype(np.float32), birds["y"]
    return worth((x[y <= 100], y[y <= 100]), x[y > 100], {"cars196": cars["x"].astype(np.float32)})


def lfw(data: Path, work: Path) -> dict[str, Any]:
    """Fit on every second person; the others are known faces, other pictures are not."""
    columns = frozen("lfw", data, work)
    _, person = np.unique(columns["labels"], return_inverse=True)
    x = columns["vectors"] * columns["lengths"][:, None]
    fit = person % 2 == 0
    generator = seeded(0, "noise")
    pictures = {
        "svhn": load("svhn", data)["test"].read(slice(0, 1000)),
        "cifar10": load("cifar10", data)["test"].read(slice(0, 1000)),
        "noise": torch.rand(500, 3, 112, 112, generator=generator),
    }
    resized = {
        name: torch.nn.functional.interpolate(p.float(), (112, 112), mode="bilinear").numpy()
        for name, p in pictures.items()
    }
    unknown = {name: face_vectors(data, p * 255) for name, p in resized.items()}
    return worth((x[fit], person[fit]), x[~fit], unknown)


def clinc150(data: Path, work: Path) -> dict[str, Any]:
    columns = frozen("clinc150", data, work)
    x, parts = columns["vectors"], columns["parts"]
    _, intent = np.unique(columns["labels"], return_inverse=True)
    fit = parts == "train"
    unknown = {"out of scope": x[parts == "oos_test"]}
    return worth((x[fit], intent[fit]), x[parts == "test"], unknown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "surefind-frozen"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "cost, FashionMNIST's network": lambda: small_cost(fashion_mnist_net, (1, 28, 28)),
        "cost, CIFAR10's network": lambda: small_cost(cifar10_net, (3, 32, 32)),
        "cost, ResNet-50": resnet_cost,
        "CUB200, other classes, against Cars196": lambda: cub200(given.data, given.work),
        "LFW, other people, against pictures": lambda: lfw(given.data, given.work),
        "CLINC150, same intents, against out of scope": lambda: clinc150(given.data, given.work),
    }
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    table["environment"] = environment()
    for name, case in cases.items():
        if name not in table.setdefault("cases", {}):
            table["cases"][name] = case()
            RESULTS.write_text(json.dumps(table, indent=1) + "\n")
        print(name, table["cases"][name])


if __name__ == "__main__":
    main()
