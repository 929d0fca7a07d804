"""Post-hoc LAM: train a point estimate, or take one, and fit a posterior of its head.

"Fixed" curvature is exact over every pair of the training data (`surefind.curvature.dataset`).
"Positive" and "full" need features of both sides of a pair, so they are averaged over random batches.

    precision = scale · max(0, curvature) + δ

Scale and δ are chosen on training data by the rule of `surefind.learning.tuning`, unless they are given;
the nominal scale is the number of examples. With ``epochs=0`` the encoder is taken as it comes: your own
trained model.

Several processes: each passes its rows through the network, outputs are gathered, sums are added up.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from surefind.curvature.dataset import dataset_curvature
from surefind.curvature.head import Approximation, head_curvature
from surefind.curvature.outputs import Distance
from surefind.data.dataset import Dataset
from surefind.learning.distributed import gather_rows, part, sum_ranks
from surefind.learning.inference import batches, like_network
from surefind.learning.methods.deterministic import trained_copy
from surefind.learning.methods.head_embedder import HeadEmbedder, restore_head_embedder
from surefind.learning.session import TrainingSession
from surefind.learning.train import epoch_batches, relation_of
from surefind.learning.tuning import chosen_posterior
from surefind.models.encoder import Encoder, on_sphere
from surefind.pairs.losses import pair_targets

FEATURE_BYTES = 4 << 30
"""Features up to this size are kept in memory; larger ones are computed a second time instead."""


@dataclass(frozen=True)
class LaplacePosthoc:
    """Fit a posterior of the head after training.

    Attributes:
        distance: "euclidean" or "arccos".
        approximation: "fixed" (exact over all pairs), "positive" or "full".
        scale: How many observations the loss stands for; None to choose the width on training data.
        prior_precision: δ at the given scale, or at the number of examples; None to choose the shape on
            training data.
    """

    distance: Distance = "arccos"
    approximation: Approximation = "fixed"
    scale: float | None = None
    prior_precision: float | None = None

    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> HeadEmbedder:
        """Train a copy of the encoder, if there are epochs, and fit the posterior.

        Args:
            encoder: Stays as it is.
            dataset: The training data.
            session: What to train by.

        Returns:
            The encoder with its posterior.
        """
        trained = trained_copy(encoder, dataset, session)
        curvature = self.curvature(trained, dataset, session)
        scale = float(len(dataset)) if self.scale is None else self.scale
        posterior = chosen_posterior(
            trained,
            curvature,
            dataset,
            session,
            scale=scale,
            prior_precision=self.prior_precision,
            keep_scale=self.scale is not None or self.prior_precision is not None,
        )
        return HeadEmbedder(trained, posterior)

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> HeadEmbedder:
        """Put encoder and posterior together again."""
        return restore_head_embedder(encoder, tensors)

    @torch.no_grad()
    def curvature(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> Tensor:
        """Compute the head's curvature over the training data.

        Args:
            encoder: In evaluation mode.
            dataset: The training data.
            session: Its margin; and its plan, where batches are needed.

        Returns:
            The curvature (z, d), unscaled and unclipped.
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
            distance=self.distance,
            margin=session.margin,
            rows=own,
        )
        return sum_ranks(curvature)

    def _batch_curvature(
        self, encoder: Encoder, dataset: Dataset, session: TrainingSession
    ) -> Tensor:
        """Average over the batches of one epoch; each process does its share of the batches."""
        config = session.config
        groups = epoch_batches(dataset, config, epoch=0)
        total = torch.zeros_like(encoder.head_weights())
        for rows in groups[part(len(groups))]:
            inputs = dataset.read(rows, preprocessing=config.preprocessing)
            features = encoder.features(like_network(inputs, encoder))
            outputs = encoder.outputs_of(features)
            relation = relation_of(dataset, config, rows)
            targets = pair_targets(relation, on_sphere(outputs), margin=session.margin)
            total += head_curvature(
                features,
                outputs,
                targets,
                distance=self.distance,
                approximation=self.approximation,
            )
        return sum_ranks(total) / len(groups)
