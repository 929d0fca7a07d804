"""Train on scikit-learn's digits, evaluate with photographs as OOD data, save and load."""

import tempfile

import torch

import surefind as sf
from surefind.data.sources import load_digits
from surefind.models.networks import small_net


def main() -> None:
    digits = load_digits()
    encoder = small_net(1, 8, embedding_dim=4, generator=torch.Generator().manual_seed(0))
    learner = sf.MetricLearner(encoder, method="laplace-online", epochs=5).fit(digits.train)
    result = sf.evaluate(
        learner, digits.test, digits["ood"], generator=torch.Generator().manual_seed(0)
    )
    for name in ("recall@1", "auroc", "ausc", "ece"):
        print(f"{name}: {result.values[name]:.3f}")
    with tempfile.TemporaryDirectory() as folder:
        learner.save(folder)
        same = sf.load(folder)
    known, strange = same.embed(digits.test).kappa, same.embed(digits["ood"]).kappa
    surer = (known > strange.median()).float().mean()
    print(f"{surer:.0%} of {len(known)} digits have a higher κ than the median photograph")


if __name__ == "__main__":
    main()
