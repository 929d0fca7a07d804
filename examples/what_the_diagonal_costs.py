"""Compare diagonal, Kronecker and dense posteriors of one head."""

import torch
from sklearn.datasets import load_digits

import surefind as sf
from surefind.curvature.head import dense_curvature, kronecker_curvature
from surefind.posterior.head import DensePosterior, KroneckerPosterior

OPTIONS = {"distance": "arccos", "approximation": "fixed"}


def main() -> None:
    digits = load_digits()
    features = torch.from_numpy(digits.data).float() / 16
    labels = torch.from_numpy(digits.target)
    weights = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    outputs = features @ weights.T
    u = torch.nn.functional.normalize(outputs, dim=1)
    targets = sf.pair_targets(labels, u, margin=0.1)
    settings = {"scale": float(len(labels)), "prior_precision": 1.0}

    diagonal = sf.HeadPosterior.from_curvature(
        weights, sf.head_curvature(features, outputs, targets, **OPTIONS), **settings
    )
    kronecker = KroneckerPosterior.from_curvature(
        weights, kronecker_curvature(features, outputs, targets, **OPTIONS), **settings
    )
    dense = DensePosterior.from_curvature(
        weights, dense_curvature(features, outputs, targets, **OPTIONS), **settings
    )
    exact = dense.predict(features).kappa
    for name, posterior in (("diagonal", diagonal), ("Kronecker", kronecker)):
        kappa = posterior.predict(features).kappa
        ranks = torch.stack([exact.argsort().argsort(), kappa.argsort().argsort()]).double()
        agreement = float(torch.corrcoef(ranks)[0, 1])
        ratio = float((kappa / exact).median())
        print(
            f"{name}: κ is {ratio:.2f} times the dense one (median), rank correlation {agreement:.2f}"
        )


if __name__ == "__main__":
    main()
