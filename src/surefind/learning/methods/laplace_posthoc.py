"""Post-hoc LAM: train a point estimate, or take one, and fit a posterior of its head.

"Fixed" curvature is exact over every pair of the training data (`surefind.curvature.pair_scan`).
"Positive" and "full" need features of both sides of a pair, so they are averaged over random batches.
The posterior is fitted by `surefind.posterior.fit`. With ``epochs=0`` the encoder is taken as it comes:
your own trained model.

Several processes: each passes its rows through the network, outputs are gathered, sums are added up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefind.curvature.dataset import check_dense, dataset_curvature
from surefind.curvature.head import (
    Approximation,
    Curvature,
    Distance,
    KroneckerCurvature,
    Structure,
    dense_curvature,
    head_curvature,
    kronecker_curvature,
)
from surefind.data.batches import BATCH, batches, like_network
from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.learning.distributed import gather_rows, part, sum_ranks
from surefind.learning.methods.contract import Sampler, prefixed, unprefixed
from surefind.learning.methods.deterministic import restored_copy, trained_copy
from surefind.learning.seeds import seeded
from surefind.learning.session import TrainingSession
from surefind.learning.train import epoch_batches, relation_of
from surefind.models.encoder import Encoder, on_sphere, plain_features
from surefind.models.vectors import UnitRows, warn_of_unit_features
from surefind.pairs.losses import pair_targets
from surefind.pairs.relations import blocks
from surefind.posterior.fit import (
    PriorPrecision,
    check_posterior_options,
    fit_posterior,
)
from surefind.posterior.head import Posterior, posterior_tensors, restored_posterior
from surefind.posterior.tuning import TuningSample, draw_sample

FEATURE_BYTES = 4 << 30
"""Features up to this size are kept in memory; larger ones are computed a second time instead."""

BATCH_CURVATURES: dict[Structure, Callable[..., Curvature]] = {
    "diagonal": head_curvature,
    "kronecker": kronecker_curvature,
    "dense": dense_curvature,
}


@dataclass(frozen=True, eq=False)
class HeadEmbedder:
    """A frozen backbone under a posterior of its head: what both Laplace methods end in.

    Attributes:
        encoder: In evaluation mode; its head is the posterior's mean.
        posterior: Over the head's weights, the bias in the last column; of any structure.
    """

    encoder: Encoder
    posterior: Posterior
    runs_network_once: ClassVar[bool] = True

    @property
    def network(self) -> Encoder:
        """The encoder."""
        return self.encoder

    @torch.no_grad()
    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch, with κ from the posterior, without sampling."""
        head = self.encoder.head
        plain = plain_features(self.encoder.backbone, head, inputs)
        found = self.posterior.predict_plain(plain, head(plain))
        if isinstance(self.encoder.backbone, UnitRows):  # a zero vector's outputs are only the bias
            return Embeddings(found.mean, found.kappa * plain.any(1))
        return found

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Return a function that draws embeddings; jointly, the same heads embed all its batches."""
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))

        @torch.no_grad()
        def draw(inputs: Tensor) -> Tensor:
            # The same heads again for each batch, drawn anew instead of kept: 100 may not fit.
            source = torch.Generator().manual_seed(seed) if joint else generator
            features = self.encoder.features(inputs)
            return self.posterior.sample(features, n_samples, joint=joint, generator=source)

        return draw

    def tensors(self) -> dict[str, Tensor]:
        """Return the encoder's state and the posterior's parts."""
        own = prefixed("posterior", posterior_tensors(self.posterior))
        return prefixed("encoder", self.encoder.state_dict()) | own


def restore_head_embedder(
    encoder: Encoder, tensors: dict[str, Tensor], structure: Structure = "diagonal"
) -> HeadEmbedder:
    """Put a head embedder together again from its tensors."""
    copied = restored_copy(encoder, tensors)
    parts = unprefixed("posterior", tensors)
    posterior = restored_posterior(structure, copied.head_weights(), parts)
    return HeadEmbedder(copied, posterior)


def head_posterior(
    encoder: Encoder,
    curvature: Curvature,
    dataset: Dataset,
    session: TrainingSession,
    **options: Any,
) -> Posterior:
    """Fit the posterior of a trained encoder's head.

    Args:
        encoder: In evaluation mode; its head is the posterior's mean.
        curvature: The head's, unscaled and unclipped.
        dataset: The training data.
        session: Its seed and preprocessing.
        **options: Structure, scale and prior precision, as `fit_posterior` takes them.

    Returns:
        The posterior.
    """
    preprocessing = session.config.preprocessing
    warn_of_unit_features(encoder, next(batches(dataset, encoder, preprocessing=preprocessing)))
    fitted = fit_posterior(
        encoder.head_weights(),
        curvature,
        lambda: tuning_sample(encoder, dataset, session),
        examples=len(dataset),
        generator=seeded(session.config.seed, "width samples"),
        **options,
    )
    return fitted.posterior


@torch.no_grad()
def tuning_sample(encoder: Encoder, dataset: Dataset, session: TrainingSession) -> TuningSample:
    """Draw training examples and pass them, as they are and corrupted, through the network."""

    def read(rows: Tensor) -> Tensor:
        return dataset.read(rows, preprocessing=session.config.preprocessing)

    def features(values: Tensor) -> Tensor:
        span = blocks(slice(0, len(values)), BATCH)
        return torch.cat([encoder.features(like_network(values[r], encoder)) for r in span])

    generator = seeded(session.config.seed, "width")
    return draw_sample(len(dataset), read, features, dataset.labels, generator)


@dataclass(frozen=True)
class LaplacePosthoc:
    """Fit a posterior of the head after training.

    Attributes:
        distance: "euclidean" or "arccos".
        approximation: "fixed" (exact over all pairs), "positive" or "full".
        scale: How many observations the loss stands for; None to tune it on training data.
        prior_precision: δ at the given scale, or at the number of examples; "evidence" for the δ of
            largest evidence, None to tune it on training data.
        structure: Of the posterior: "diagonal", "kronecker" or, for small heads, "dense".
    """

    distance: Distance = "arccos"
    approximation: Approximation = "fixed"
    scale: float | None = None
    prior_precision: PriorPrecision = None
    structure: Structure = "diagonal"

    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> HeadEmbedder:
        """Train a copy of the encoder, if there are epochs, and fit the posterior.

        Args:
            encoder: Stays as it is.
            dataset: The training data.
            session: What to train by.

        Returns:
            The encoder with its posterior.
        """
        check_posterior_options(self.structure, self.scale, self.prior_precision)
        trained = trained_copy(encoder, dataset, session)
        curvature = self.curvature(trained, dataset, session)
        options = {"scale": self.scale, "prior_precision": self.prior_precision}
        posterior = head_posterior(
            trained, curvature, dataset, session, structure=self.structure, **options
        )
        return HeadEmbedder(trained, posterior)

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> HeadEmbedder:
        """Put encoder and posterior together again."""
        return restore_head_embedder(encoder, tensors, self.structure)

    @torch.no_grad()
    def curvature(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> Curvature:
        """Compute the head's curvature over the training data.

        Args:
            encoder: In evaluation mode.
            dataset: The training data.
            session: Its margin; and its config, where batches are needed.

        Returns:
            The curvature of the method's structure, unscaled and unclipped.
        """
        if self.approximation != "fixed":
            return self._batch_curvature(encoder, dataset, session)
        own = part(len(dataset))
        width = encoder.head_weights().shape[1]
        small = 4 * width * (own.stop - own.start) <= FEATURE_BYTES
        features, outputs = [], []
        for x in batches(dataset, encoder, rows=own, preprocessing=session.config.preprocessing):
            h = encoder.features(x)
            outputs.append(encoder.outputs_of(h))
            if small:
                features.append(h)
        everyone = gather_rows(torch.cat(outputs), len(dataset))
        second = batches(dataset, encoder, rows=own, preprocessing=session.config.preprocessing)
        again = (encoder.features(x) for x in second)
        curvature = dataset_curvature(
            features if small else again,
            everyone,
            relation_of(dataset, session.config),
            structure=self.structure,
            distance=self.distance,
            margin=session.margin,
            rows=own,
        )
        return _over_ranks(curvature)

    def _batch_curvature(
        self, encoder: Encoder, dataset: Dataset, session: TrainingSession
    ) -> Curvature:
        """Average over the batches of one epoch; each process does its share of the batches."""
        config = session.config
        groups = epoch_batches(dataset, config, epoch=0)
        total = _no_curvature(encoder.head_weights(), self.structure)
        for rows in groups[part(len(groups))]:
            inputs = dataset.read(rows, preprocessing=config.preprocessing)
            features = encoder.features(like_network(inputs, encoder))
            outputs = encoder.outputs_of(features)
            relation = relation_of(dataset, config, rows)
            targets = pair_targets(relation, on_sphere(outputs), margin=session.margin)
            options = {"distance": self.distance, "approximation": self.approximation}
            batch_curvature = BATCH_CURVATURES[self.structure]
            total = total + batch_curvature(features, outputs, targets, **options)
        return _over_ranks(total, len(groups))


def _no_curvature(weights: Tensor, structure: Structure) -> Any:
    z, d = weights.shape
    if structure == "kronecker":
        return KroneckerCurvature(weights.new_zeros(z, z), weights.new_zeros(d, d))
    if structure == "dense":
        check_dense(z * d)
        return weights.new_zeros(z * d, z * d)
    return torch.zeros_like(weights)


def _over_ranks(curvature: Curvature, count: int = 1) -> Curvature:
    """Add up over the processes, and divide by how many batches there were."""
    if isinstance(curvature, KroneckerCurvature):
        left, right = sum_ranks(curvature.left), sum_ranks(curvature.right)
        return KroneckerCurvature(left / count, right / count)
    return sum_ranks(curvature) / count
