"""What the closed forms cost, beside what the literature and other libraries do.

Run ``python benchmarks/core.py`` (or ``make bench``); finished cases are kept in results/core.json, and
``--again`` measures all of them anew.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from measure import Prepared, run_cases
from torch.func import hessian, jacrev, vmap

import surefind as sf

RESULTS = Path(__file__).parent / "results" / "core.json"
SEED = 0


def problem(n: int, d: int, z: int, classes: int = 10) -> tuple[torch.Tensor, ...]:
    """Features of noisy classes (with a one for the bias), head weights, outputs and labels."""
    g = torch.Generator().manual_seed(SEED)
    labels = torch.randint(classes, (n,), generator=g)
    features = torch.randn(n, d + 1, generator=g)
    features += torch.randn(classes, d + 1, generator=g)[labels]
    features[:, -1] = 1
    weights = torch.randn(z, d + 1, generator=g) / d**0.5
    return features, weights, features @ weights.T, labels


def head(n: int, d: int, z: int, distance: str, approximation: str) -> Prepared:
    features, _, outputs, labels = problem(n, d, z)
    u = torch.nn.functional.normalize(outputs, dim=1)
    targets = sf.pair_targets(labels, u, margin=4.0)  # every pair counts
    return partial(
        sf.head_curvature,
        features,
        outputs,
        targets,
        distance=distance,
        approximation=approximation,
    )


def per_pair_jacobians(n: int, d: int, z: int, approximation: str) -> Prepared:
    """The same Euclidean curvature as the literature computes it: a Jacobian and a Hessian a pair."""
    features, weights, outputs, labels = problem(n, d, z)
    u = torch.nn.functional.normalize(outputs, dim=1)
    targets = sf.pair_targets(labels, u, margin=4.0)
    left, right = targets.nonzero().T

    def embed(w: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(w @ h, dim=0)

    def of_pair(h_i: torch.Tensor, h_j: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        J = torch.stack([jacrev(embed)(weights, h_i), jacrev(embed)(weights, h_j)])
        both = torch.stack([embed(weights, h_i), embed(weights, h_j)])
        H = hessian(lambda b: 0.5 * y * ((b[0] - b[1]) ** 2).sum())(both)
        if approximation == "fixed":
            own = torch.eye(2)[:, None, :, None]
            H = H * own
        return torch.einsum("akpq,akbl,blpq->pq", J, H, J)

    def run() -> torch.Tensor:
        total = torch.zeros_like(weights)
        for i, j in zip(left.split(32), right.split(32), strict=True):
            total += vmap(of_pair)(features[i], features[j], targets[i, j]).sum(0)
        return total

    ours = sf.head_curvature(
        features, outputs, targets, distance="euclidean", approximation=approximation
    )
    few = slice(0, 4)  # a quick proof that both compute the same thing
    small = features[few], outputs[few], targets[few, few]
    left, right = small[2].nonzero().T
    torch.testing.assert_close(
        run(),
        sf.head_curvature(*small, distance="euclidean", approximation=approximation),
        rtol=1e-3,
        atol=1e-3 * float(ours.abs().max()),
    )
    left, right = targets.nonzero().T
    return run


def dataset(n: int, d: int, z: int, distance: str = "arccos") -> Prepared:
    features, _, outputs, labels = problem(n, d, z)
    return partial(sf.dataset_curvature, features, outputs, labels, distance=distance, margin=0.7)


def posterior(n: int, d: int, z: int) -> tuple[torch.Tensor, torch.Tensor, sf.HeadPosterior]:
    features, weights, _, _ = problem(n, d, z)
    precision = 1e3 * torch.rand(z, d + 1, generator=torch.Generator().manual_seed(SEED)) + 1e2
    return features, weights, sf.HeadPosterior(weights, precision)


def predict(n: int, d: int, z: int) -> Prepared:
    features, _, fitted = posterior(n, d, z)
    return partial(fitted.predict, features)


def plain_head(n: int, d: int, z: int) -> Prepared:
    features, weights, _ = posterior(n, d, z)
    return lambda: features @ weights.T


def sampled_heads(n: int, d: int, z: int) -> Prepared:
    """κ from 100 sampled heads, as the paper does it."""
    features, _, fitted = posterior(n, d, z)

    def run() -> torch.Tensor:
        total = torch.zeros(n, z)
        generator = torch.Generator().manual_seed(SEED)
        for _ in range(100):
            total += fitted.sample(features, 1, joint=True, generator=generator)[0]
        return sf.vmf_concentration((total / 100).norm(dim=1).clamp(max=1), z)

    return run


def laplace_torch(n: int, d: int, z: int) -> Prepared:
    """laplace-torch's diagonal last layer for a regression loss: it has no pair loss to offer."""
    from laplace import Laplace

    features, weights, outputs, _ = problem(n, d, z)
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(d, z))
    with torch.no_grad():
        model[1].weight.copy_(weights[:, :-1])
    data = torch.utils.data.TensorDataset(features[:, :-1].clone(), outputs)
    loader = torch.utils.data.DataLoader(data, batch_size=n)

    def run() -> None:
        fitted = Laplace(
            model,
            "regression",
            subset_of_weights="last_layer",
            hessian_structure="diag",
            last_layer_name="1",
        )
        fitted.fit(loader)

    return run


GROWTH = {
    f"growth {axis} {n}x{d}x{z}": partial(dataset, n, d, z)
    for axis, shapes in {
        "N": [(n, 256, 16) for n in (2_000, 4_000, 8_000, 16_000, 32_000)],
        "D": [(1_000, d, 64) for d in (2_048, 4_096, 8_192, 16_384, 32_768)],
        "Z": [(8_000, 256, z) for z in (4, 16, 64, 256, 1_024)],
    }.items()
    for n, d, z in shapes
}

CASES = {
    "head 128, 9216→3, euclidean fixed": partial(head, 128, 9216, 3, "euclidean", "fixed"),
    "head 128, 9216→3, euclidean full": partial(head, 128, 9216, 3, "euclidean", "full"),
    "head 128, 9216→3, arccos fixed": partial(head, 128, 9216, 3, "arccos", "fixed"),
    "head 128, 9216→3, arccos full": partial(head, 128, 9216, 3, "arccos", "full"),
    "jacobians 128, 9216→3, euclidean fixed": partial(per_pair_jacobians, 128, 9216, 3, "fixed"),
    "jacobians 128, 9216→3, euclidean full": partial(per_pair_jacobians, 128, 9216, 3, "full"),
    "laplace-torch 128, 9216→3": partial(laplace_torch, 128, 9216, 3),
    "head 64, 2048→2048, arccos fixed": partial(head, 64, 2048, 2048, "arccos", "fixed"),
    "head 64, 2048→2048, arccos full": partial(head, 64, 2048, 2048, "arccos", "full"),
    "laplace-torch 64, 2048→2048": partial(laplace_torch, 64, 2048, 2048),
    "dataset 60000, 9216→3, arccos": partial(dataset, 60_000, 9216, 3),
    "dataset 60000, 9216→3, euclidean": partial(dataset, 60_000, 9216, 3, "euclidean"),
    "dataset 10000, 2048→2048, arccos": partial(dataset, 10_000, 2048, 2048),
    "head product 1000, 2048→2048": partial(plain_head, 1000, 2048, 2048),
    "predict 1000, 2048→2048": partial(predict, 1000, 2048, 2048),
    "sampled 1000, 2048→2048": partial(sampled_heads, 1000, 2048, 2048),
    **GROWTH,
}

if __name__ == "__main__":
    run_cases(__file__, CASES, RESULTS, sys.argv[1:])
