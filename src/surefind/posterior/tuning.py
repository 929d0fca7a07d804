"""Choosing scale and prior precision of a posterior, on training data by one rule, or on held-out pairs.

    precision = scale · (max(0, curvature) + ρ),        δ = scale · ρ

ρ decides the *shape*: where it is small, a direction is as uncertain as the data have left it, and inputs
that use what the data never showed stand out; where it is large, all directions are alike. ``scale``
decides the *level*: whether neighbours change as often under sampled heads as they are wrong. So, on up to
`EXAMPLES` training examples,

1. ρ is the one with which 1/κ best detects *pseudo-OOD* inputs, the same examples corrupted, in the mean
   over three corruptions: pixels, or a vector's numbers, in random order; images blurred until little is
   left of them; images reduced to a third of their contrast. The score is the AUROC, and 0.5 where it is
   less: a corruption that κ cannot detect has no say;
2. scale is the smallest, of the widest posterior, whose sampled nearest neighbours have a calibration
   error at most `TOLERANCE` above the smallest one.

One posterior so answers two questions: κ detects out-of-distribution inputs, and the disagreement of
sampled neighbours detects wrong answers. A ρ with which κ itself detects more of the wrong answers exists,
and costs OOD detection: on FashionMNIST's validation data, against drawings of letters, R-AUROC rises from
0.78 to 0.80 while AUROC falls from 0.97 to 0.93. In the benchmark the disagreement has an R-AUROC of 0.89.

The corruptions were settled on CIFAR10's validation data against faces (AUROC 0.53 before, 0.66 after), and
on digits with classes left out, where mixtures of two inputs as a fourth one cost the unknown classes. What
the rule is worth on frozen vectors: `surefind.posterior.fit`.

Neither test data nor real out-of-distribution data are looked at. What is not guaranteed: a network that
has memorised its training examples finds too few wrong neighbours among them, and gets too narrow a
posterior. Give scale and prior precision yourself there, found on held-out data. Without class labels
there is nothing to calibrate, and the scale stays nominal. The choice is made in float32 whatever the
dtype, so that the same heads are drawn.

**On held-out pairs** (`tune_on_pairs`), each pair is judged by its likelihood ratio between "one point" and
"two independent points",

    LR = vMF match score - log C(0),
    loss = ½ mean_positive log(1 + e^-LR) + ½ mean_negative log(1 + e^LR),

which punishes a κ that is too high (positive pairs far apart) as well as one that is too low (negative
pairs not told apart). Never tune on test or out-of-distribution data.

Axes: ``n`` examples, ``d`` features, ``m`` pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, softplus

from surefind import metrics
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError
from surefind.neighbours import sampled_nearest
from surefind.pairs.relations import PairList
from surefind.posterior.head import Posterior
from surefind.posterior.sphere import unit
from surefind.posterior.vmf import match_score, paired_gap, vmf_log_normalizer

EXAMPLES = 1000
SAMPLES = 20
SHAPES = tuple(10.0**e for e in range(-5, 5))
"""Candidates for ρ, in units of the mean curvature."""
SPREADS = tuple(10 ** (e / 2) for e in range(2, -12, -1))
"""Candidates for the level: variance over squared length of the outputs, for the median example."""
TOLERANCE = 0.005
"""Calibration errors this close are the same, as far as a thousand examples can tell."""
PRIOR_GRID = tuple(10 ** (e / 2) for e in range(-12, 13))
"""Prior precisions from 1e-6 to 1e6, two in a decade."""


@dataclass(frozen=True, eq=False)
class TuningSample:
    """Training examples to choose by.

    Attributes:
        features: Of the examples (n, d).
        pseudo_ood: Of the same inputs corrupted (n, d), for each corruption that suits them.
        labels: Their classes (n), or None.
    """

    features: Tensor
    pseudo_ood: tuple[Tensor, ...]
    labels: Tensor | None

    def float(self) -> "TuningSample":
        """Return the same sample in float32."""
        return TuningSample(
            self.features.float(), tuple(h.float() for h in self.pseudo_ood), self.labels
        )


def draw_sample(
    n: int,
    read: Callable[[Tensor], Tensor],
    features: Callable[[Tensor], Tensor],
    labels: Tensor | None,
    generator: torch.Generator,
    *,
    most: int = EXAMPLES,
) -> TuningSample:
    """Draw training examples and corrupt them.

    Args:
        n: How many examples there are.
        read: From row numbers to inputs.
        features: From inputs to what the head sees.
        labels: A class per example, or None.
        generator: Chooses examples, and within corruptions.
        most: How many are drawn, at most.

    Returns:
        The sample.
    """
    rows = torch.randperm(n, generator=generator)[:most]
    inputs = read(rows)
    corrupted = tuple(features(x) for x in pseudo_ood(inputs, generator))
    return TuningSample(features(inputs), corrupted, None if labels is None else labels[rows])


def pseudo_ood(inputs: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Corrupt inputs, in each of the ways that suit them.

    Args:
        inputs: Images (n, c, h, w) or vectors (n, d).
        generator: For the corruptions that choose at random.

    Returns:
        Inputs of the same shape, for each corruption.
    """
    corrupted = [shuffled(inputs, generator)]
    if inputs.ndim == 4:
        corrupted += [blurred(inputs), reduced_contrast(inputs)]
    return corrupted


def shuffled(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Put each input's values in another random order; pixels move with all their channels."""
    flat = inputs.flatten(2) if inputs.ndim > 2 else inputs[:, None]
    order = torch.rand(len(flat), 1, flat.shape[2], generator=generator).argsort(dim=2)
    return flat.gather(2, order.expand_as(flat).to(flat.device)).view_as(inputs)


def blurred(images: Tensor) -> Tensor:
    """Replace each pixel by the mean of a square around it, half as wide as the image."""
    width = 2 * (min(images.shape[2:]) // 4) + 1
    return avg_pool2d(images, width, stride=1, padding=width // 2, count_include_pad=False)


def reduced_contrast(images: Tensor) -> Tensor:
    """Leave each channel of an image its mean, and a third of its contrast."""
    return torch.lerp(images.mean(dim=(2, 3), keepdim=True), images, 1 / 3)


def select_prior_precision(
    posterior_at: Callable[[float], Posterior], sample: TuningSample, *, unit: float
) -> float:
    """Choose the prior precision δ = scale · ρ by the first rule.

    Args:
        posterior_at: Makes the posterior for a prior precision, at the nominal scale.
        sample: Training examples.
        unit: The mean clipped curvature, times that scale.

    Returns:
        δ at that scale.
    """

    def score(prior: float) -> float:
        posterior = posterior_at(prior)
        known, *corrupted = (
            posterior.predict(h).uncertainty.double().cpu().numpy()
            for h in (sample.features, *sample.pseudo_ood)
        )
        return sum(max(0.5, metrics.auroc(known, ood)) for ood in corrupted)

    return max((unit * shape for shape in SHAPES), key=score)


def calibrate_scale(
    posterior: Posterior,
    sample: TuningSample,
    generator: torch.Generator,
    spreads: Sequence[float] = SPREADS,
) -> float:
    """Choose a factor of the posterior's precision by the second rule.

    Args:
        posterior: The posterior at the nominal scale.
        sample: Training examples.
        generator: Draws heads, the same ones for all candidates.
        spreads: The candidates.

    Returns:
        The factor; 1 without labels.
    """
    if sample.labels is None:
        return 1.0
    labels = sample.labels
    seed = int(torch.randint(2**62, (), generator=generator))
    spread = float(posterior.relative_variance(sample.features).median())
    outputs = sample.features @ posterior.mean.T
    # Of the same heads under a precision times f, changes are 1/√f times these: they are drawn once.
    changes = posterior.draw(sample.features, SAMPLES, torch.Generator().manual_seed(seed))

    def error(factor: float) -> float:
        samples = (unit(torch.add(outputs, change, alpha=factor**-0.5)) for change in changes)
        prediction, confidence = metrics.agreement(labels[sampled_nearest(samples)])
        return metrics.ece(confidence, prediction == labels.numpy())

    errors = {spread / wanted: error(spread / wanted) for wanted in spreads}
    return min(f for f, e in errors.items() if e <= min(errors.values()) + TOLERANCE)


def scaled(posterior: Posterior, factor: float) -> Posterior:
    """Multiply a posterior's precision: scale and prior alike."""
    return replace(posterior, precision=posterior.precision * factor)


def tune_on_pairs(
    posterior_at: Callable[[float], Posterior],
    features: Tensor,
    pairs: PairList,
    *,
    candidates: Sequence[float] = PRIOR_GRID,
) -> float:
    """Find the prior precision that judges held-out pairs best.

    Args:
        posterior_at: Makes the posterior for a prior precision.
        features: Features of the held-out examples (n, d).
        pairs: Judged pairs of them, for example from `mine_pairs`.
        candidates: The prior precisions to try.

    Returns:
        The candidate with the smallest `pair_loss`.
    """
    return min(
        candidates, key=lambda delta: pair_loss(posterior_at(delta).predict(features), pairs)
    )


def pair_loss(embeddings: Embeddings, pairs: PairList) -> float:
    """Compute the balanced log loss of calling pairs positive or negative by their vMF match.

    Args:
        embeddings: Embeddings with finite κ.
        pairs: Judged pairs of them; both kinds must occur.

    Returns:
        The loss: log 2 for no information, lower is better.

    Raises:
        DegenerateError: If one kind of pairs is missing.
    """
    if pairs.n_positive == 0 or pairs.n_negative == 0:
        raise DegenerateError("held-out pairs must hold positive and negative pairs, both kinds.")
    a, b = embeddings.tensors()[pairs.left], embeddings.tensors()[pairs.right]
    dim = a.mean.shape[1]
    gap = paired_gap(a.mean, b.mean)
    uniform = vmf_log_normalizer(torch.zeros_like(gap[:1]), dim)
    ratio = match_score(gap, a.kappa, b.kappa, dim) - uniform
    positive = softplus(-ratio[pairs.positive]).mean()
    negative = softplus(ratio[~pairs.positive]).mean()
    return float(positive + negative) / 2
