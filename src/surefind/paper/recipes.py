"""The paper's own recipe for FashionMNIST and CIFAR10, to tell the method from our settings.

`surefind bench fashion-mnist --recipe paper` trains and measures as the paper says, where
`surefind.paper.protocols` says what we found better. Results are under `fashion-mnist-paper` and
`cifar10-paper`. `surefind bench cifar10 --recipe released` takes learning rate and memory factor from the
released code instead, since the text's learning rate leaves that network hardly trained.

| | FashionMNIST | CIFAR10 | ours |
| --- | --- | --- | --- |
| outputs | 3 | 16 | the same |
| RMSprop, learning rate | 1e-3 | 1e-5 | 1e-3 |
| its decay from epoch to epoch | exp(-0.1) | exp(-0.1) | 0.68, exp(-0.1) |
| epochs, point estimate / online LAM | 20 / 20 | 20 / 40 | 6, 20 |
| batch, point estimate / online LAM | 256 / 64 | 256 / 256 | 64 |
| inputs | [0, 1], no augmentation | the same | CIFAR10: channels of variance 1, mirrored |
| trained on | all training data | the same | nine tenths |
| memory factor α of online LAM | 1e-4 | 1e-4 | 1e-3 |
| uncertainty | κ from 100 sampled heads | the same | κ in closed form |
| scale and prior precision | fixed | fixed | tuned on training data |

Where the text is silent, contradicts itself, or the released code that made the paper's numbers does
something else, the recipe takes the text's unless this says otherwise:

- *Loss.* The text derives the squared distance; the numbers were trained on the unsquared one, averaged
  over the pairs whose loss is not zero. The recipe takes the code's
  (`surefind.paper.protocols.UnsquaredContrastive`): the squared one is in our own protocol already. The
  margin, 0.7, compares the distance. The curvature is that of the squared loss, as in the text and in the
  code, with the pairs inside the same margin.
- *Learning rate.* The code multiplied it by the batch size: 0.256 and 0.064 on FashionMNIST, 2.56e-3 on
  CIFAR10. The recipe has the text's, "released" has the code's.
- *Memory factor.* The code forgot 1e-3 a step. The recipe has the text's, "released" has the code's.
- *Epochs and batches.* The text has 20 epochs for everything, and neither batch sizes nor a margin; all of
  these are the code's.
- *Weight decay.* 1e-5 in the code; the text speaks of PyTorch's defaults, which have none. It is 1e-5.
- *Scale.* The main text sums the Hessian over pairs, the appendix defines the loss as a mean over them, the
  code multiplies online LAM's mean over a batch's pairs by N². Here it is N² for both: the weights of the
  appendix, 1/|pos| and -1/|neg|, times the number of ordered pairs of the N training examples.
- *Prior precision.* The text gives none. It is the code's: 1 post-hoc, N online. Online LAM does not forget
  its prior, see `surefind.learning.methods.laplace_online`.
- *Pairs.* At most 5000 mined pairs a step go into the Hessian in the paper; here all pairs of a batch, and
  for post-hoc LAM all of the training data.
- *Negative pairs outside the margin* have no part in the Hessian, as the text says; in the code they did.
- *Uncertainty.* The text's κ; the code took the sum of standard deviations of the samples.
- *Checkpoint.* The last one; the code took the best on the test set.

Novelty is not fitted. With no data left out of training, votes over labels are fitted to training data.

How much of it is the posterior: post-hoc posteriors of one and the same network, FashionMNIST, seed 0, by
AUROC against MNIST. This was looked at after the recipe had been fixed and measured, and changed nothing.

    scale, δ             κ in closed form    κ from 100 samples
    N², 1 (the recipe)   0.886               0.882
    N, 1                 0.915
    1, 1                 0.649               0.625
    our tuning rule      0.905               0.902

None of them reaches the paper's 0.96; sampling costs little. It is one training, and AUROC differs by
hundredths between seeds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefind.checks import check_choice
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.learning.methods.contract import Embedder, Sampler
from surefind.learning.seeds import seeded
from surefind.models.encoder import Encoder
from surefind.paper.protocols import PROTOCOLS, Protocol
from surefind.paper.vocabulary import RECIPES
from surefind.posterior.sphere import sampled_embeddings


def _laplace_options(examples: int, memory: float = 1e-4) -> Mapping[str, Mapping[str, Any]]:
    """Return the fixed posteriors of a training set with so many examples."""
    pairs = float(examples**2)
    online = {"memory": memory, "scale": pairs, "prior_precision": float(examples)}
    return {
        "laplace-posthoc": {"scale": pairs, "prior_precision": 1.0},
        "laplace-online": {**online, "tuning": "trained"},
    }


def _paper(name: str, examples: int, **settings: Any) -> Protocol:
    return replace(
        PROTOCOLS[name],
        recipe="paper",
        decay=math.exp(-0.1),
        validation="none",
        augment=False,
        channels=None,
        squared=False,
        kappa_samples=100,
        novelty=False,
        options=_laplace_options(examples),
        **settings,
    )


PAPER_PROTOCOLS = {
    "fashion-mnist": _paper(
        *("fashion-mnist", 60_000),
        epochs=20,
        online_epochs=20,
        batch_size=256,
        online_batch_size=64,
        learning_rate=1e-3,
    ),
    "cifar10": _paper(
        *("cifar10", 50_000),
        epochs=20,
        online_epochs=40,
        batch_size=256,
        online_batch_size=256,
        learning_rate=1e-5,
    ),
}
"""The paper's recipe, by data set."""
RELEASED_PROTOCOLS = {
    "cifar10": replace(
        PAPER_PROTOCOLS["cifar10"],
        recipe="released",
        learning_rate=2.56e-3,
        options=_laplace_options(50_000, memory=1e-3),
    )
}
"""The same with its code's learning rate and memory factor."""
BY_RECIPE = {"paper": PAPER_PROTOCOLS, "released": RELEASED_PROTOCOLS}


def recipe_protocol(recipe: str, name: str) -> Protocol:
    """Return the protocol of a recipe.

    Args:
        recipe: One of `RECIPES`.
        name: The data set.

    Returns:
        The protocol.

    Raises:
        InputError: If there is no such recipe, or none for the data set.
    """
    check_choice("recipe", recipe, RECIPES)
    protocols = BY_RECIPE[recipe]
    if name not in protocols:
        raise InputError(
            f"the recipe {recipe!r} is for {' and '.join(protocols)}, not for {name}; leave it out.",
            field="recipe",
        )
    return protocols[name]


@dataclass(frozen=True, eq=False)
class SampledEmbedder:
    """An embedder whose direction and κ are estimated from joint samples, as the paper does.

    Attributes:
        embedder: What is sampled.
        n_samples: How many networks; the same ones embed every input.
        seed: Decides which.
    """

    embedder: Embedder
    n_samples: int
    seed: int
    runs_network_once: ClassVar[bool] = True

    @property
    def network(self) -> Encoder:
        """The encoder."""
        return self.embedder.network

    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch under each network, and sum the samples up."""
        return sampled_embeddings(self._draw(inputs))

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Return a function that draws other samples."""
        return self.embedder.sampler(n_samples, joint=joint, generator=generator)

    def tensors(self) -> dict[str, Tensor]:
        """Return what the embedder consists of."""
        return self.embedder.tensors()

    @cached_property
    def _draw(self) -> Sampler:
        generator = seeded(self.seed, "kappa")
        return self.embedder.sampler(self.n_samples, joint=True, generator=generator)
