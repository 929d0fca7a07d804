"""κ from the head alone and from the biases of all layers: what each detects, and what it costs.

    python benchmarks/layers.py DATA WORK [--epochs 20] [--only cifar10/laplace-posthoc]

DATA is the folder of the data sets; WORK that of `surefind bench`, whose checkpoints are resumed, or made.
The rule of `surefind.paper.bias_posterior` was chosen by AUROC of validation images against inputs made of
others of them, which needs no test data and none of another set; those were measured once, afterwards.
Writes benchmarks/results/layers.json.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from measure import environment
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

import surefind as sf
from surefind import metrics
from surefind.data.batches import like_network
from surefind.learning.methods import LaplaceOnline, LaplacePosthoc
from surefind.learning.methods.laplace_posthoc import HeadEmbedder
from surefind.learning.seeds import seeded
from surefind.paper.biases import (
    HEAD_SHARE,
    PROBES,
    SHAPE,
    BiasEmbedder,
    LaplaceBiases,
    layer_variances,
    pullback,
)
from surefind.paper.protocols import Problem, load_problem
from surefind.posterior.tuning import blurred, reduced_contrast, shuffled

RESULTS = Path(__file__).parent / "results" / "layers.json"
FOLDERS = {"laplace-posthoc": "shared", "laplace-online": "laplace-online"}
METHODS = {"laplace-posthoc": LaplacePosthoc, "laplace-online": LaplaceOnline}
MADE, TESTED, BATCH, SEED = 1000, 2000, 250, 0


def phase_scrambled(x: Tensor, g: torch.Generator) -> Tensor:
    """Keep each image's amplitudes of all frequencies and draw their phases."""
    phase = torch.fft.fft2(torch.rand(len(x), 1, *x.shape[2:], generator=g)).angle()
    return torch.fft.ifft2(torch.fft.fft2(x) * torch.exp(1j * phase)).real.clamp(0, 1)


def enlarged(x: Tensor, factor: float, g: torch.Generator) -> Tensor:
    """Cut a patch out of each image and enlarge it."""
    side = x.shape[-1]
    width = int(side / factor)
    corners = torch.randint(side - width + 1, (len(x), 2), generator=g).tolist()
    cut = [x[i, :, a : a + width, b : b + width] for i, (a, b) in enumerate(corners)]
    return interpolate(torch.stack(cut), (side, side), mode="bilinear", align_corners=False)


def tiled(x: Tensor) -> Tensor:
    """Shrink four images into one."""
    half = interpolate(x, scale_factor=0.5, mode="area")
    top, bottom = (
        torch.cat([half, half.roll(1, 0)], 3),
        torch.cat([half.roll(2, 0), half.roll(3, 0)], 3),
    )
    return torch.cat([top, bottom], 2)


def blocks_shuffled(x: Tensor, g: torch.Generator) -> Tensor:
    """Put the sixteen blocks of each image in another order."""
    n, c, side, _ = x.shape
    b = side // 4
    cut = x.view(n, c, 4, b, 4, b).permute(0, 2, 4, 1, 3, 5).reshape(n, 16, c * b * b)
    order = torch.rand(n, 16, 1, generator=g).argsort(1)
    cut = cut.gather(1, order.expand_as(cut)).view(n, 4, 4, c, b, b)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(n, c, side, side)


def smooth_noise(x: Tensor, g: torch.Generator) -> Tensor:
    """Draw clouds."""
    y = torch.rand(x.shape, generator=g)
    for _ in range(3):
        y = avg_pool2d(y, 5, 1, 2, count_include_pad=False)
    low, high = y.amin((1, 2, 3), keepdim=True), y.amax((1, 2, 3), keepdim=True)
    return (y - low) / (high - low)


def edges(x: Tensor) -> Tensor:
    """Replace each pixel by the length of its gradient."""
    y = torch.zeros_like(x)
    across = x[..., 1:, 1:] - x[..., 1:, :-1]
    down = x[..., 1:, 1:] - x[..., :-1, 1:]
    y[..., 1:, 1:] = (across**2 + down**2).sqrt()
    return y.clamp(0, 1)


def made_of(x: Tensor, g: torch.Generator) -> dict[str, Tensor]:
    """Make inputs that the network was not trained on, of images in [0, 1]."""
    return {
        "pixels shuffled": shuffled(x, g),
        "blocks shuffled": blocks_shuffled(x, g),
        "phases scrambled": phase_scrambled(x, g),
        "blur 5": avg_pool2d(x, 5, 1, 2, count_include_pad=False),
        "blur half": blurred(x),
        "contrast / 3": reduced_contrast(x),
        "dark": 0.4 * x,
        "contrast x 2": (2 * x - 0.5).clamp(0, 1),
        "binary": (x > x.mean((1, 2, 3), keepdim=True)).to(x),
        "inverted": 1 - x,
        "edges": edges(x),
        "noise 0.2": (x + 0.2 * torch.randn(x.shape, generator=g)).clamp(0, 1),
        "uniform noise": torch.rand(x.shape, generator=g),
        "clouds": smooth_noise(x, g),
        "patch x 3": enlarged(x, 3, g),
        "patch x 1.7": enlarged(x, 1.7, g),
        "four in one": tiled(x),
        "mean of two": (x + x.roll(1, 0)) / 2,
        "upside down": x.flip(2),
        "turned 90": x.rot90(1, (2, 3)),
    }


class Scores:
    """Uncertainty of a batch of images by the head, each layer and all of them."""

    def __init__(self, problem: Problem, learner: sf.MetricLearner) -> None:
        self.problem = problem
        self.layers: BiasEmbedder = learner.fitted
        alone = replace(
            self.layers.posterior, precision=HEAD_SHARE * self.layers.posterior.precision
        )
        self.head = HeadEmbedder(self.layers.network, alone)

    def prepared(self, images: Tensor) -> Tensor:
        """Normalise images as the network takes them."""
        wanted = self.problem.preprocessing
        return like_network(
            images if wanted is None else wanted.normalise(images), self.head.encoder
        )

    def __call__(self, images: Tensor) -> dict[str, np.ndarray]:
        """Score images in [0, 1]."""
        parts = [self.batch(self.prepared(x)) for x in images.split(BATCH)]
        return {k: torch.cat([p[k] for p in parts]).double().numpy() for k in parts[0]}

    def batch(self, x: Tensor) -> dict[str, Tensor]:
        """Score a batch as the network takes it."""
        posterior, pull = self.layers.biases, pullback(self.head.encoder, x)
        variance = {k: 1 / v for k, v in posterior.precision.items()}
        found = layer_variances(pull, variance, posterior.probes)
        squares = pull.outputs.square().sum(1)
        alone = {f"biases of {k}": (v / squares) for k, v in found.items()}
        return {
            "head": self.head.embed(x).uncertainty,
            "head and biases": self.layers.embed(x).uncertainty,
            **alone,
            "1 / |z|²": 1 / squares,
        }


def aurocs(known: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, float]:
    return {k: round(float(metrics.auroc(known[k], other[k])), 4) for k in known}


def images_of(problem: Problem, dataset: sf.Dataset, rows: Tensor) -> Tensor:
    return dataset.read(rows, preprocessing=problem.shown)


def wrong_answers(learner: sf.MetricLearner, x: Tensor, labels: Tensor) -> np.ndarray:
    encoder = learner.fitted.encoder
    with torch.no_grad():
        u = torch.cat([encoder(b) for b in x.split(BATCH)])
    nearest = (u @ u.T).fill_diagonal_(-2).argmax(1)
    return (labels[nearest] != labels).numpy()


def cost(scores: Scores, x: Tensor, repeats: int = 7) -> dict[str, float]:
    """Time one batch by turns, and return the ratio of the fastest runs to the head's."""
    doors = {"head": scores.head.embed, "head and biases": scores.layers.embed}
    best = dict.fromkeys(doors, float("inf"))
    for _ in range(repeats):
        for name, embed in doors.items():
            start = time.process_time()
            embed(x)
            best[name] = min(best[name], time.process_time() - start)
    return {
        "milliseconds an image, head": 1000 * best["head"] / len(x),
        "ratio": best["head and biases"] / best["head"],
    }


def measure_method(name: str, method: str, args: argparse.Namespace) -> dict:
    problem = load_problem(name, args.data)
    protocol = problem.protocol
    online = method == "laplace-online"
    learner = sf.MetricLearner(
        problem.build(seeded(SEED, "encoder")),
        method=LaplaceBiases(METHODS[method]()),
        epochs=args.epochs or (protocol.online_epochs if online else protocol.epochs),
        seed=SEED,
        batch_size=protocol.batch_size,
        margin=protocol.margin,
        learning_rate=protocol.learning_rate,
        decay=args.decay or protocol.decay,
        preprocessing=problem.preprocessing,
    ).fit(problem.train, folder=Path(args.work) / name / f"seed{SEED}" / FOLDERS[method])
    scores, g = Scores(problem, learner), seeded(SEED, "layers")
    rows = torch.randperm(len(problem.validation), generator=g)[: 2 * MADE]
    images = images_of(problem, problem.validation, rows)
    known = scores(images[:MADE])
    made = {k: aurocs(known, scores(x)) for k, x in made_of(images[MADE:], g).items()}
    mean = {k: round(float(np.mean([v[k] for v in made.values()])), 4) for k in known}
    wrong = wrong_answers(
        learner, scores.prepared(images[:MADE]), problem.validation.labels[rows[:MADE]]
    )
    precision = scores.head.posterior.precision
    result = {
        "epochs": learner.epochs,
        "precision of the head": {
            "least": float(precision.min()),
            "median": float(precision.median()),
            "largest": float(precision.max()),
        },
        "validation": {
            "mean": mean,
            "made": made,
            "wrong answers": {
                k: round(float(metrics.auroc(v[~wrong], v[wrong])), 4) for k, v in known.items()
            },
        },
        "cost": cost(scores, scores.prepared(images[:256])),
    }
    if args.test:
        rows = torch.randperm(len(problem.test), generator=g)[:TESTED]
        images = images_of(problem, problem.test, rows)
        known = scores(images)
        foreign = torch.randperm(len(problem.ood), generator=g)[:TESTED]
        other = scores(images_of(problem, problem.ood, foreign))
        wrong = wrong_answers(learner, scores.prepared(images), problem.test.labels[rows])
        result["test"] = {
            "out of distribution": problem.ood.name,
            "auroc": aurocs(known, other),
            "wrong answers": {
                k: round(float(metrics.auroc(v[~wrong], v[wrong])), 4) for k, v in known.items()
            },
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("work")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--decay", type=float)
    parser.add_argument("--only", nargs="*", help="such as cifar10/laplace-posthoc")
    parser.add_argument("--no-test", dest="test", action="store_false")
    args = parser.parse_args()
    torch.set_num_threads(1)
    every = [f"{name}/{method}" for name in ("fashion-mnist", "cifar10") for method in METHODS]
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    table["environment"] = environment()
    table["settings"] = {
        "made": MADE,
        "tested": TESTED,
        "seed": SEED,
        "probes": PROBES,
        "rho": SHAPE,
        "head_share": HEAD_SHARE,
    }
    for case in args.only or every:
        table["cases"][case] = measure_method(*case.split("/"), args)
        RESULTS.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
        print(case, json.dumps(table["cases"][case], ensure_ascii=False))


if __name__ == "__main__":
    main()
