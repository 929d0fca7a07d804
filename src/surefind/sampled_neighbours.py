"""Nearest neighbours under networks drawn from the posterior.

One sampled network embeds queries and gallery (a joint sample), and each query has a nearest item under it.
How often the samples agree says how sure the answer is: `surefind.metrics.agreement`.

Samples (s, n, z) of a large set do not fit into memory. They are drawn in passes over the data, of as many
networks as `SAMPLE_BYTES` hold, and only the neighbours found are kept.

Axes: ``s`` samples, ``q`` queries, ``n`` examples of a part, ``z`` embedding.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind.data.dataset import Dataset
from surefind.learner import MetricLearner
from surefind.passes import batches
from surefind.retrieval.search import sampled_nearest

SAMPLE_BYTES = 2 << 30
"""Samples held at once."""

BATCH = 256
"""Inputs that a network sees at once."""


def sampled_neighbours(
    learner: MetricLearner,
    test: Dataset,
    gallery: Dataset | None = None,
    *,
    n_samples: int,
    generator: torch.Generator,
) -> Int[np.ndarray, "s q"]:
    """Find the nearest item of each query under each of several sampled networks.

    Args:
        learner: A fitted learner that can be sampled.
        test: The queries.
        gallery: Where they are looked up; None: the test data themselves, and no query finds itself.
        n_samples: How many networks.
        generator: Draws them.

    Returns:
        Rows of the gallery.
    """
    rows = len(test) + (0 if gallery is None else len(gallery))
    most = SAMPLE_BYTES // (4 * rows * learner.encoder.embedding_dim)
    # Whole tens, so that the members of an ensemble, which come in turn, come equally often.
    most = most - most % 10 if most >= 10 else max(1, most)
    found = []
    for start in range(0, n_samples, most):
        count = min(most, n_samples - start)
        # One sampler for both parts: the same networks must embed what is compared.
        draw = learner.fitted.sampler(count, joint=True, generator=generator)
        samples = _drawn(learner, test, draw, count)
        shelf = None if gallery is None else _drawn(learner, gallery, draw, count)
        found.append(sampled_nearest(samples, shelf).numpy())
    return np.concatenate(found)


def _drawn(
    learner: MetricLearner, part: Dataset, draw: Callable[[Tensor], Tensor], count: int
) -> Float[Tensor, "s n z"]:
    """Draw samples of a whole part without a second copy of them."""
    inputs = batches(
        part,
        learner.encoder,
        preprocessing=learner.preprocessing,
        size=BATCH,
        workers=learner.workers,
    )
    out = torch.empty(count, len(part), learner.encoder.embedding_dim)
    for i, x in enumerate(inputs):
        out[:, i * BATCH : i * BATCH + len(x)] = draw(x)
    return out
