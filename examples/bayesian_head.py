"""Fit head posteriors to features and labels, and compare κ in and out of distribution."""

import torch

import surefind as sf
from surefind.posterior.fit import tune_prior_precision


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    centres = 2 * torch.randn(4, 16, generator=generator)
    features = centres[labels] + torch.randn(400, 16, generator=generator)
    weights = torch.randn(6, 16, generator=generator) / 4

    for distance in ("euclidean", "arccos"):
        curvature = sf.dataset_curvature(
            features, features @ weights.T, labels, distance=distance, margin=0.7
        )
        prior = tune_prior_precision(weights, curvature, scale=400.0)
        posterior = sf.HeadPosterior.from_curvature(
            weights, curvature, scale=400.0, prior_precision=prior
        )
        known = posterior.predict(features).kappa.median()
        ood = posterior.predict(4 * torch.randn(400, 16, generator=generator)).kappa.median()
        print(
            f"{distance}: clipped {posterior.clipped:.1%}, κ {known:.1f} in distribution, {ood:.1f} OOD"
        )


if __name__ == "__main__":
    main()
