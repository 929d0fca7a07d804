"""Dropout whose masks come from a generator that the caller holds.

A layer multiplies its input by a mask of independent entries, 1/(1 - rate) with probability 1 - rate and 0
otherwise. Masks are drawn only inside `dropping`, which says from which generator and how they are shared:

- per input, for training and for *marginal* samples: each example has masks of its own;
- *joint*: one mask for all examples of a forward pass, that is, one sampled network embeds them all.

Outside it the layers are the identity in evaluation mode and refuse to run in training mode: falling back
on the process's generator would make a run depend on what ran before it. Whether batch norm uses its
running statistics still follows the network's mode; samples at test time are drawn in evaluation mode.

The masks of a joint sample follow from one seed, so a data set may come in batches: draw `mask_seeds` once
and call `joint_samples` on each batch. What lies before the first dropout is computed once for all samples.

Axes: ``s`` samples, ``n`` examples, ``z`` outputs.

MC dropout: training with dropout between all trainable layers, and keeping it on (Gal, Ghahramani 2016).

An input's κ comes from its samples, all under the same sampled networks, so that it does not depend
on the company it is embedded in. The networks follow from the run's seed: embedding twice gives the
same answer.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from surefind.checks import check_int
from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.learning.methods.contract import Sampler, prefixed
from surefind.learning.methods.deterministic import restored_copy, trained_copy
from surefind.learning.seeds import seeded
from surefind.learning.session import TrainingSession
from surefind.models.encoder import Encoder
from surefind.models.networks import NORMS, GeM
from surefind.posterior.sphere import sampled_embeddings

_MASKS: ContextVar[tuple[torch.Generator, bool] | None] = ContextVar("masks", default=None)
"""The generator of the masks, and whether they are joint."""


@contextmanager
def dropping(generator: torch.Generator, *, joint: bool = False) -> Iterator[None]:
    """Let the `Dropout` layers that run inside draw masks, in any mode of the network.

    Args:
        generator: The source of randomness.
        joint: True: one mask for all examples of a forward pass. False: each has its own.

    Yields:
        Nothing.
    """
    token = _MASKS.set((generator, joint))
    try:
        yield
    finally:
        _MASKS.reset(token)


class Dropout(nn.Module):
    """Zero a share of the entries and scale up the others, inside `dropping`.

    Args:
        rate: The share, from 0 up to but not including 1.

    Raises:
        InputError: If the rate lies outside.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise InputError(
                f"rate must be at least 0 and below 1, the share of entries to drop; got {rate!r}."
            )
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        """Apply a fresh mask.

        Args:
            values: First axis n.

        Returns:
            The masked values.

        Raises:
            InputError: If the layer is in training mode and no generator has been given.
        """
        masks = _MASKS.get()
        if masks is None:
            if self.training:
                raise InputError(
                    "dropout in training mode needs a generator: run the network inside "
                    "`with dropping(generator):`, or call .eval() for embeddings without dropout."
                )
            return values
        rng, joint = masks
        shape = (1, *values.shape[1:]) if joint else values.shape
        # Compared uniforms: bernoulli_ takes three times as long, more than the convolution after it.
        kept = torch.rand(shape, dtype=torch.float32, generator=rng, device=rng.device)
        return values * kept.ge_(self.rate).div_(1 - self.rate).to(values)

    def extra_repr(self) -> str:
        """Show the rate."""
        return f"rate={self.rate:g}"


def with_dropout(encoder: Encoder, rate: float = 0.2) -> Encoder:
    """Copy an encoder and put dropout between its trainable layers.

    A layer goes before each convolution, linear layer or other block with parameters of an
    `nn.Sequential` backbone, except the first, and one before the head. A backbone that is not an
    `nn.Sequential`, such as a pretrained transformer, is one block. Norm layers and GeM belong to the
    block before them.

    Args:
        encoder: Stays as it is.
        rate: The share of entries to drop.

    Returns:
        An encoder with copies of the weights. Layers of a sequential backbone keep their names, so
        its ``state_dict`` is that of the plain encoder.

    Raises:
        InputError: If the encoder has such layers already.
    """
    if _holds_dropout(encoder):
        raise InputError("the encoder has dropout already; pass the one that it was made from.")
    new = copy.deepcopy(encoder)
    backbone = new.backbone
    if type(backbone) is nn.Sequential:
        layers = dict(_interleaved(backbone, rate, first=True).named_children())
    else:
        layers = {"backbone": backbone}
    layers["dropout_before_head"] = Dropout(rate).train(backbone.training)
    new.backbone = _sequential(layers, training=backbone.training)
    return new


def mask_seeds(n_samples: int, generator: torch.Generator) -> list[int]:
    """Draw a seed for the masks of each joint sample."""
    check_int("n_samples", n_samples, least=1)
    seeds = torch.randint(2**62, (n_samples,), generator=generator, device=generator.device)
    return [int(seed) for seed in seeds]


def joint_samples(encoder: Encoder, inputs: Tensor, seeds: Sequence[int]) -> Tensor:
    """Embed inputs with sampled networks, the same ones whenever the seeds are the same.

    Args:
        encoder: With `Dropout` layers, in evaluation mode.
        inputs: The examples, first axis n; may be one batch of many.
        seeds: From `mask_seeds`, one a network.

    Returns:
        Unit embeddings (s, n, z).
    """
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    return _samples(encoder, inputs, generators, joint=True)


def marginal_samples(
    encoder: Encoder, inputs: Tensor, n_samples: int, generator: torch.Generator
) -> Tensor:
    """Embed each input with sampled networks of its own.

    Args:
        encoder: With `Dropout` layers, in evaluation mode.
        inputs: The examples, first axis n.
        n_samples: How many of each.
        generator: The source of randomness.

    Returns:
        Unit embeddings (s, n, z).
    """
    check_int("n_samples", n_samples, least=1)
    return _samples(encoder, inputs, (generator for _ in range(n_samples)), joint=False)


def _samples(
    encoder: Encoder, inputs: Tensor, generators: Iterator[torch.Generator], *, joint: bool
) -> Tensor:
    before, after = _split(encoder)
    samples = []
    with torch.no_grad():
        start = before(inputs)
        for generator in generators:
            with dropping(generator, joint=joint):
                samples.append(after(start))
    return torch.stack(samples)


def _split(encoder: Encoder) -> tuple[nn.Module, Encoder]:
    """Cut an encoder in front of the first layer that holds dropout."""
    if type(encoder.backbone) is not nn.Sequential:
        return nn.Identity(), encoder
    layers = list(encoder.backbone)
    at = next((i for i, layer in enumerate(layers) if _holds_dropout(layer)), 0)
    after = Encoder(_sequential(layers[at:], training=False), encoder.head)
    after.training = False
    return _sequential(layers[:at], training=False), after


def _holds_dropout(layer: nn.Module) -> bool:
    return any(isinstance(m, Dropout) for m in layer.modules())


def _interleaved(block: nn.Sequential, rate: float, *, first: bool) -> nn.Sequential:
    """Put dropout before each trainable layer, except the network's first."""
    layers: dict[str, nn.Module] = {}
    for name, layer in block.named_children():
        trainable = any(True for _ in layer.parameters()) and not isinstance(layer, (GeM, *NORMS))
        if type(layer) is nn.Sequential:
            layers[name] = _interleaved(layer, rate, first=first)
        else:
            if trainable and not first:
                layers[f"dropout_before_{name}"] = Dropout(rate).train(block.training)
            layers[name] = layer
        first = first and not trainable
    return _sequential(layers, training=block.training)


def _sequential(
    layers: Mapping[str, nn.Module] | Sequence[nn.Module], *, training: bool
) -> nn.Sequential:
    """Chain layers without changing the mode that each of them is in."""
    named = layers if isinstance(layers, Mapping) else {str(i): m for i, m in enumerate(layers)}
    block = nn.Sequential(OrderedDict(named))
    block.training = training
    return block


@dataclass(frozen=True, eq=False)
class DropoutEmbedder:
    """An encoder with dropout that stays on.

    Attributes:
        encoder: In evaluation mode, with dropout layers.
        n_samples: Networks that an embedding is made of.
    """

    encoder: Encoder
    n_samples: int
    runs_network_once: ClassVar[bool] = False

    @property
    def network(self) -> Encoder:
        """The encoder, without its dropout."""
        return self.encoder

    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch under the sampled networks."""
        seeds = mask_seeds(self.n_samples, seeded(0, "mc-dropout"))
        return sampled_embeddings(joint_samples(self.encoder, inputs, seeds))

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Return a function that embeds under fresh masks, the same for all inputs if ``joint``."""
        if not joint:
            return lambda inputs: marginal_samples(self.encoder, inputs, n_samples, generator)
        seeds = mask_seeds(n_samples, generator)
        return lambda inputs: joint_samples(self.encoder, inputs, seeds)

    def tensors(self) -> dict[str, Tensor]:
        """Return the encoder's state."""
        return prefixed("encoder", self.encoder.state_dict())


@dataclass(frozen=True)
class MCDropout:
    """Train with dropout and keep it on.

    Attributes:
        rate: Share of the entries that are dropped.
        n_samples: Networks that an embedding is made of.
    """

    rate: float = 0.2
    n_samples: int = 100

    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> DropoutEmbedder:
        """Train a copy of the encoder with dropout."""
        dropped = with_dropout(encoder, self.rate)
        kind = f"dropout {self.rate}"
        trained = trained_copy(dropped, dataset, session, kind=kind, forward=_forward)
        return DropoutEmbedder(trained, self.n_samples)

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> DropoutEmbedder:
        """Put the encoder together again, with its dropout layers."""
        dropped = with_dropout(encoder, self.rate)
        return DropoutEmbedder(restored_copy(dropped, tensors), self.n_samples)


def _forward(encoder: Encoder, inputs: Tensor, generator: torch.Generator) -> Tensor:
    with dropping(generator):
        embeddings: Tensor = encoder(inputs)
    return embeddings
