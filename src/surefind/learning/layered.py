"""All layers as one vector: where embedding, concentration and novelty come from.

While a network runs, its stages are watched (`surefind.models.layers`). What they say, s, and its output z
before normalisation become one vector, each number standardised over training data:

    x = [log |s|, log(|s_i| + ε), z],    z three times as wide; of g × g parts of a map each a g-th

|s| the root mean square of a stage's means and deviations: how strongly it reacts.
Where nobody has trained the head, as on a frozen backbone, z is the backbone's own output; and where there
are no stages, as of vectors that somebody brings, x is the direction of z alone, as it is. Logarithms see
channels that are too quiet as well as those that are too loud: without them CIFAR10's network hardly tells
other images.

On x are fitted

- a head in closed form with its Laplace posterior (`surefind.learning.closed_form`): direction and κ;
- novelty (`surefind.novelty`): the p-value.

A network's own embedding, which the paper's methods train, can be kept; then x gives novelty alone.

Inference needs no second pass. A method that runs its network many times, with something random in it (MC
dropout), is watched in one more pass without.

Axes: ``n`` inputs, ``m`` numbers of a vector.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from surefind.data.batches import batches, like_network
from surefind.data.dataset import Dataset
from surefind.data.inputs import FeatureViews, InputSpec
from surefind.embeddings import Embeddings
from surefind.learning.closed_form import fit_head
from surefind.learning.distributed import gather_rows, part
from surefind.learning.frozen import FrozenEmbedder, Watched, watch_embedder
from surefind.learning.methods.contract import Embedder, prefixed, unprefixed
from surefind.learning.seeds import seeded
from surefind.models.layers import OUTPUT, Layers, StageWatch, encoder_places
from surefind.models.vectors import Vectors, unit_rows, with_ones
from surefind.novelty import LEAST, Novelty, fit_novelty
from surefind.pairs.relations import Relation
from surefind.posterior.head import Posterior, posterior_tensors, restored_posterior
from surefind.posterior.tuning import TuningSample, draw_sample

BATCH = 256
SAMPLE = 20_000
"""Training examples, and held-out ones, that are looked at, at most."""
OUTPUT_WEIGHT = 3.0
QUIET = 1e-3
"""ε."""
TINY = 1e-6

OnBatch = Callable[[int, int], None]
"""Called with how many examples of how many have passed."""


@dataclass(frozen=True, eq=False)
class LayerVector:
    """How statistics of stages become a vector.

    Attributes:
        layers: Which stages.
        centre: Mean of the numbers (m).
        scale: What they are divided by (m).
    """

    layers: Layers
    centre: Tensor
    scale: Tensor

    @classmethod
    def of(cls, layers: Layers, raw: Float[Tensor, "n m"], weights: Tensor) -> "LayerVector":
        """Standardise what `raw_vector` gave of training examples, with weights from `weights_of`."""
        if layers.names == (OUTPUT,):
            return cls(layers, torch.zeros(raw.shape[1]), torch.ones(raw.shape[1]))
        spread = raw.std(0)
        # A number that never moved must not turn a whisper into an event.
        scale = spread + 0.01 * spread.square().mean().sqrt() + 1e-9
        return cls(layers, raw.mean(0), scale / weights)

    def __call__(self, statistics: Sequence[Tensor]) -> Float[Tensor, "n m"]:
        """Return the vectors of a batch."""
        return self.standard(raw_vector(self.layers, statistics))

    def standard(self, raw: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """Standardise."""
        return (raw.to(self.scale) - self.centre) / self.scale


def raw_vector(layers: Layers, statistics: Sequence[Tensor]) -> Float[Tensor, "n m"]:
    """Put statistics of stages and the output side by side."""
    *stages, output = statistics
    if layers.names == (OUTPUT,):
        return unit_rows(output)
    plain = [s[:, : s.shape[1] - n] for s, n in zip(stages, _of_parts(layers), strict=True)]
    lengths = torch.stack([s.square().mean(1).sqrt() for s in plain], dim=1)
    return torch.cat(
        [(lengths + TINY).log(), (torch.cat(stages, dim=1).abs() + QUIET).log(), output], dim=1
    )


def _of_parts(layers: Layers) -> tuple[int, ...]:
    return layers.of_parts or (0,) * (len(layers.names) - 1)


def weights_of(layers: Layers, statistics: Sequence[Tensor]) -> Tensor:
    """Return how much each number of a vector counts."""
    *stages, output = (s.shape[1] for s in statistics)
    weights = [torch.ones(count) for count in stages]
    for own, of_parts in zip(weights, _of_parts(layers), strict=True):
        own[len(own) - of_parts :] /= max(layers.parts, 1)
    return torch.cat([torch.ones(len(stages)), *weights, torch.full((output,), OUTPUT_WEIGHT)])


@dataclass(frozen=True, eq=False)
class LayerModel:
    """What is fitted to the vectors of all layers.

    Attributes:
        vector: What they are.
        posterior: Over the head in closed form; None where the network's own embedding is kept.
        novelty: None where none was fitted.
    """

    vector: LayerVector
    posterior: Posterior | None
    novelty: Novelty | None

    @property
    def keeps_own(self) -> bool:
        """Whether the network's own embedding is kept."""
        return self.posterior is None

    @torch.no_grad()
    def embed(self, found: Embeddings | None, statistics: Sequence[Tensor]) -> Embeddings:
        """Embed a batch by what the stages said of it, or complete the network's own embeddings."""
        x = self.vector(statistics)
        if self.posterior is not None:
            outputs = x @ self.posterior.mean[:, :-1].T + self.posterior.mean[:, -1]
            made = self.posterior.predict_plain(x, outputs)
            found = Embeddings(made.mean, made.kappa * x.any(1))
        assert found is not None
        p = None if self.novelty is None else self.novelty.of(x, found.mean).to(found.kappa)
        to = statistics[0].device
        mean, kappa = found.mean.to(to), found.kappa.to(to)
        return Embeddings(mean, kappa, None if p is None else p.to(to))

    def tensors(self) -> dict[str, Tensor]:
        """Return all that it consists of, by name."""
        found = {"centre": self.vector.centre, "scale": self.vector.scale}
        if self.posterior is not None:
            own = {"mean": self.posterior.mean} | posterior_tensors(self.posterior)
            found |= prefixed("posterior", own)
        if self.novelty is not None:
            found |= prefixed("novelty", self.novelty.tensors())
        return prefixed("layers", found)

    def plan(self) -> dict[str, Any]:
        """Return what is saved of it as JSON."""
        structure = None if self.posterior is None else self.posterior.structure
        return asdict(self.vector.layers) | {"structure": structure}

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], plan: dict[str, Any]) -> "LayerModel":
        """Put together what `tensors` and `plan` returned."""
        structure = plan.pop("structure")
        own = unprefixed("layers", tensors)
        posterior, novelty = (unprefixed(name, own) for name in ("posterior", "novelty"))
        layers = Layers(**plan | {name: tuple(plan[name]) for name in ("names", "of_parts")})
        return cls(
            LayerVector(layers, own["centre"], own["scale"]),
            restored_posterior(structure, posterior.pop("mean"), posterior) if structure else None,
            Novelty.restored(novelty) if novelty else None,
        )


def watched(embedder: Embedder, layers: Layers, inputs: Tensor, *, own: bool = False) -> Watched:
    """Return what the stages say of a batch; and with ``own``, the network's own embeddings."""
    if isinstance(embedder, FrozenEmbedder):
        return embedder.watched(inputs, layers, own=own)
    watch = StageWatch(embedder.network, layers, encoder_places(layers.names))
    return watch_embedder(embedder, watch, inputs, own=own)


@dataclass(frozen=True)
class Head:
    """How a head in closed form is fitted; arguments as for `fit_head`."""

    rows: int | None
    margin: float
    options: dict[str, Any]


def fit_layers(
    embedder: Embedder,
    dataset: Dataset,
    held_out: Dataset | None = None,
    *,
    layers: Layers,
    head: Head | None,
    relation: Callable[[Dataset], Relation],
    novelty: bool,
    spec: InputSpec,
    seed: int,
    workers: int = 2,
    on_batch: OnBatch = lambda *_: None,
) -> LayerModel:
    """Fit what a fitted embedder's layers say.

    Args:
        embedder: In evaluation mode.
        dataset: What it was trained on: images, or features of its frozen part.
        held_out: Known examples that it was not trained on, which give p-values; None to cross-fit.
        layers: Which stages are watched.
        head: How the head in closed form is fitted; None for none.
        relation: Which of some examples belong together.
        novelty: Whether novelty is fitted, if there are examples enough.
        spec: What inputs the model takes.
        seed: Chooses the sample, and what is random beside.
        workers: Threads that read images ahead.
        on_batch: Called after each batch.

    Returns:
        The model.
    """
    sample = dataset[sampled_rows(len(dataset), seed)]
    known = None if held_out is None else held_out[sampled_rows(len(held_out), seed)]
    total = len(sample) + (0 if known is None else len(known))

    def read(data: Dataset, before: int) -> tuple[Tensor, Tensor]:
        own = part(len(data))
        # A process without any says of which shape it has none.
        rows = own if own.stop > own.start else slice(0, 1)
        parts, means, done = [], [], before
        how: dict[str, Any] = {"rows": rows, "workers": workers, "own": head is None}
        for found, statistics in passed(embedder, layers, data, spec, **how):
            parts.append(raw_vector(layers, statistics).cpu())
            means.append(parts[-1][:, :0] if found is None else found.mean.float().cpu())
            done += len(parts[-1])
            on_batch(done, total)
        n, count = len(data), own.stop - own.start
        return gather_rows(torch.cat(parts)[:count], n), gather_rows(torch.cat(means)[:count], n)

    raw, mean = read(sample, 0)
    _, said = next(passed(embedder, layers, sample[:1], spec))
    vector = LayerVector.of(layers, raw, weights_of(layers, said))
    x = vector.standard(raw)
    posterior = None
    if head is not None:
        posterior = fit_head(
            Vectors(x.numpy(), directions=layers.names == (OUTPUT,)),
            relation(sample),
            rows=head.rows,
            sample=lambda most: _tuning(embedder, vector, x, sample, spec, seed, most),
            margin=head.margin,
            seed=seed,
            **head.options,
        ).fitted.posterior
    if not novelty or min(len(sample), LEAST if known is None else len(known)) < LEAST:
        return LayerModel(vector, posterior, None)

    def embedded(x: Tensor, mean: Tensor) -> Tensor:
        """Return what embeddings are compared by: the head's, or the network's own."""
        if posterior is None:
            return mean
        outputs = x @ posterior.mean[:, :-1].T + posterior.mean[:, -1]
        return unit_rows(outputs)

    others = None
    if known is not None:
        raw, mean_of_known = read(known, len(sample))
        others = vector.standard(raw), mean_of_known
        others = others[0], embedded(*others)
    fitted = fit_novelty(
        x,
        embedded(x, mean),
        first=len(layers.names) - 1,
        held_out=others,
        groups=sample.labels,
        generator=seeded(seed, "novelty references"),
    )
    return LayerModel(vector, posterior, fitted)


def sampled_rows(n: int, seed: int) -> np.ndarray:
    """Return which of n rows are looked at, in order: all of them, or `SAMPLE` at random."""
    chosen = torch.randperm(n, generator=seeded(seed, "layers"))[:SAMPLE]
    return np.asarray(chosen.sort().values)


def passed(
    embedder: Embedder,
    layers: Layers,
    data: Dataset,
    spec: InputSpec,
    *,
    rows: slice = slice(None),
    size: int = BATCH,
    workers: int = 2,
    own: bool = False,
) -> Iterator[Watched]:
    """Return what `watched` does of some rows of a data set, images or features, batch by batch."""
    start, stop, _ = rows.indices(len(data))
    views = data.inputs
    if isinstance(views, FeatureViews) and isinstance(embedder, FrozenEmbedder):
        for at in range(start, stop, size):
            some = np.arange(at, min(at + size, stop))
            yield embedder.watched_features(views, some, layers, own=own)
        return
    how: dict[str, Any] = {"preprocessing": spec, "size": size, "workers": workers}
    for inputs in batches(data, embedder.network, rows=slice(start, stop), **how):
        yield watched(embedder, layers, inputs, own=own)


def _tuning(
    embedder: Embedder,
    vector: LayerVector,
    x: Float[Tensor, "n m"],
    data: Dataset,
    spec: InputSpec,
    seed: int,
    most: int,
) -> TuningSample:
    """Draw examples and corrupt them: images, or where only their vectors are left, these."""
    plain = isinstance(data.inputs, FeatureViews) or vector.layers.names == (OUTPUT,)

    def read(rows: Tensor) -> Tensor:
        return x[rows] if plain else data.read(rows, preprocessing=spec)

    def features(values: Tensor) -> Tensor:
        if plain:
            return with_ones(values)
        parts = []
        for some in values.split(BATCH):  # type: ignore[no-untyped-call]
            _, said = watched(embedder, vector.layers, like_network(some, embedder.network))
            parts.append(vector(said))
        return with_ones(torch.cat(parts))

    generator = seeded(seed, "width")
    return draw_sample(len(data), read, features, data.labels, generator, most=most)
