"""A posterior over the biases of all layers beside the head's weights: outputs' variance by linearisation.

The head's posterior sees the last features alone. Let the biases b of each layer ℓ be independent Gaussians
too, and the layers independent of each other. To first order in them, variances of the outputs add up:

    z | x ~ N(W h, V_head + Σ_ℓ J_ℓ diag(1 / precision_ℓ) J_ℓᵀ),        J_ℓ = ∂z/∂b_ℓ

κ is about directions, and to first order 1 - R̄² is the variance in the tangent space of the sphere at
u = z/|z|, over |z|². So what the layers add is one number an input, the trace over the tangent space,

    τ = Σ_ℓ Σ_t Σ_p (J_ℓᵀ t)_p² / precision_ℓp        over an orthonormal basis t of it,

spread evenly over its z - 1 dimensions. Each t is one backward pass. With q < z - 1
*probes* the sum runs over q random orthonormal directions, times (z - 1) / q: unbiased, and exact for
q = z - 1. The probes are drawn once and turned into each input's tangent space by the reflection that
takes the first axis to u: the same input has the same κ, whatever its company.

**Prior.** Each layer has a scale of its own, or the largest would drown the rest:

    precision_ℓ = s_ℓ · (max(0, curvature_ℓ) + ρ · its mean),

and s_ℓ is such that, for the median training example, half of the relative variance in the tangent space is
the head's, and each layer below has the same share of the other half, at the level that the head's
posterior had alone. It is a prior by what it says of outputs instead of weights, whose lengths mean
nothing in a network that normalises its outputs. ρ and the half were chosen on validation data against
inputs made of them; what came of it, bad news included, is in docs/explanation/reading-kappa.md.

What is not guaranteed: without biases a ReLU network is homogeneous, so the relative variance by biases
falls with the square of an input's contrast. It finds inputs that leave the network with little to respond
to, and overlooks those that excite it more than training data do.

Joint samples are linear in the same biases, z + Σ_ℓ J_ℓ ε_ℓ: one backward pass for each output, whatever
the number of samples. They agree with κ up to Monte Carlo error, the probes' error and, for a wide
posterior, what "to first order" leaves out.

**Derivatives.** A layer adds its bias to what it gives out, so an example's derivative in the bias is that
in the layer's output, added up over positions. One backward pass of a batch, down to the layers' outputs
and never to their weights, pulls one direction v_i of each example's outputs back to

    g_i = (∂z_i/∂b)ᵀ v_i        for the biases b of all layers at once,

at about the cost of a forward pass. The diagonal of the "fixed" curvature, diag Σ_i J_iᵀ A_i J_i, follows
from the form of the blocks A_i (`surefind.curvature.head`), with an orthonormal basis q_k:

    diag J_iᵀ A_i J_i = 2 s_i² (a_i Σ_k (J_iᵀ q_k)² + 2 (J_iᵀ u_i) ∘ (J_iᵀ b_i))

It equals that of `surefind.curvature.network`, which takes any parameters, one example at a time.

Layers are the convolutions, linear layers and normalisations (in evaluation mode) below a module that have
a bias. Their outputs must have the examples on the first axis; a layer that the forward pass does not call
as a module, such as the projections of `torch.nn.MultiheadAttention`, has zero derivatives.

Axes: ``n`` examples, ``z`` outputs, ``p`` biases of a layer, ``q`` probes, ``s`` samples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from surefind.checks import check_int
from surefind.curvature.dataset import dataset_output_hessians
from surefind.curvature.head import OutputHessians
from surefind.data.batches import like_network
from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.learning.methods.contract import Sampler, prefixed, unprefixed
from surefind.learning.methods.laplace_online import LaplaceOnline
from surefind.learning.methods.laplace_posthoc import HeadEmbedder, LaplacePosthoc
from surefind.learning.seeds import seeded
from surefind.learning.session import TrainingSession
from surefind.learning.train import epoch_batches, relation_of
from surefind.models.encoder import Encoder, plain_features
from surefind.posterior.head import HeadPosterior, clip_negative, completed, normal
from surefind.posterior.sphere import gaussian_embeddings, unit

CHANNELS_FIRST = (_ConvNd, _NormBase, nn.GroupNorm)
CHANNELS_LAST = (nn.Linear, nn.LayerNorm)


def bias_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Find the layers below a module that have a bias.

    Args:
        network: A backbone.

    Returns:
        The layers by name, in the order of the module.

    Raises:
        InputError: If there is none.
    """
    kinds = (*CHANNELS_FIRST, *CHANNELS_LAST)
    found: dict[str, nn.Module] = {
        name: layer
        for name, layer in network.named_modules()
        if isinstance(layer, kinds) and layer.bias is not None
    }
    if not found:
        raise InputError(
            f"the backbone ({type(network).__name__}) has no convolution, linear layer or normalisation "
            "with a bias, so there is nothing below the head to be uncertain about."
        )
    return found


@dataclass(frozen=True, eq=False)
class Pullback:
    """A batch that went through the network, and the way back to its biases.

    Attributes:
        plain: The backbone's features (n, d), without a column of ones.
        outputs: (n, z), before normalisation.
        widths: How many biases each layer has.
    """

    plain: Tensor
    outputs: Tensor
    widths: Mapping[str, int]
    _features: Tensor
    _edges: Sequence[tuple[str, bool, GradientEdge]]
    _weight: Tensor

    def __call__(self, directions: Float[Tensor, "n z"]) -> dict[str, Float[Tensor, "n p"]]:
        """Pull one direction of each example's outputs back to the biases of each layer."""
        found = {k: directions.new_zeros(len(directions), p) for k, p in self.widths.items()}
        if self._edges:
            gradients = torch.autograd.grad(
                self._features,
                [edge for _, _, edge in self._edges],
                directions @ self._weight,
                retain_graph=True,
                allow_unused=True,
            )
            for (name, first, _), g in zip(self._edges, gradients, strict=True):
                if g is not None:
                    found[name] += _over_positions(g, found[name].shape[1], first)
        return found


def pullback(encoder: Encoder, inputs: Tensor) -> Pullback:
    """Run a batch forward and keep what is needed to pull directions back.

    Args:
        encoder: In evaluation mode; it is only read.
        inputs: The batch.

    Returns:
        Features, outputs and the way back.

    Raises:
        InputError: If no layer has a bias, or one does not keep the examples apart.
    """
    layers = bias_layers(encoder.backbone)
    edges: list[tuple[str, bool, GradientEdge]] = []
    with torch.enable_grad(), _watched(layers, len(inputs), edges):
        features = plain_features(encoder.backbone, encoder.head, inputs)
    plain = features.detach()
    with torch.no_grad():
        outputs = encoder.head(plain)
    widths = {name: layer.bias.numel() for name, layer in layers.items()}  # type: ignore[operator]
    return Pullback(plain, outputs, widths, features, edges, encoder.head.weight.detach())


def bias_curvature(
    encoder: Encoder,
    batches: Iterable[Tensor],
    hessians: OutputHessians,
    basis: Float[Tensor, "z q"],
) -> dict[str, Float[Tensor, " p"]]:
    """Compute the diagonal of the "fixed" curvature of the backbone's biases.

    Args:
        encoder: In evaluation mode.
        batches: The examples, in order.
        hessians: Their blocks, from `surefind.curvature.dataset.dataset_output_hessians`.
        basis: Orthonormal directions of the outputs, in columns. All z make the curvature exact; fewer,
            drawn uniformly, an unbiased estimate.

    Returns:
        For each layer one number a bias: a sum over pairs, which may be negative.
    """
    z, q = basis.shape
    u, b = hessians.directions, hessians.partners
    outer = 2 * hessians.inverse_lengths**2
    inner = outer * hessians.isotropic * z / q
    total: dict[str, Tensor] = {}
    start = 0
    for inputs in batches:
        pull, at = pullback(encoder, inputs), slice(start, start + len(inputs))
        start = at.stop
        terms = [(inner[at], g, g) for g in map(pull, basis.T[:, None].expand(q, len(inputs), z))]
        terms.append((2 * outer[at], pull(u[at]), pull(b[at])))
        for weight, left, right in terms:
            for name in left:
                part = (weight @ (left[name] * right[name])).double()
                total[name] = total[name] + part if name in total else part
    return {name: value.to(u.dtype) for name, value in total.items()}


@contextmanager
def _watched(
    layers: Mapping[str, nn.Module], n: int, edges: list[tuple[str, bool, GradientEdge]]
) -> Iterator[None]:
    """Note where each layer's output enters the graph."""

    def watching(name: str) -> Callable[..., Tensor]:
        def watch(layer: nn.Module, args: Any, output: Tensor) -> Tensor:
            if len(output) != n:
                raise InputError(
                    f"layer {name} gives {len(output)} rows for {n} inputs, so an input has no "
                    "derivative of its own in the layer's bias."
                )
            if not output.requires_grad:
                output = output.requires_grad_().clone()
            # Before an in-place activation can follow: the edge stays that of the layer's own output.
            edges.append((name, isinstance(layer, CHANNELS_FIRST), get_gradient_edge(output)))
            return output

        return watch

    hooks = [layer.register_forward_hook(watching(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _over_positions(gradient: Tensor, width: int, channels_first: bool) -> Float[Tensor, "n p"]:
    """Add up the gradient over the positions that share a bias."""
    n = len(gradient)
    if channels_first:
        return gradient.flatten(2).sum(2) if gradient.ndim > 2 else gradient
    return gradient.reshape(n, -1, width).sum(1)


PROBES = 2
"""Backward passes an input: with two, κ costs about three times the embedding."""
SHAPE = 1e-2
"""ρ of the biases, in units of their layer's mean curvature."""
HEAD_SHARE = 0.5
"""The head's share of the variance; the layers below share the rest equally."""


@dataclass(frozen=True, eq=False)
class BiasPosterior:
    """Independent Gaussian biases of a backbone's layers.

    Attributes:
        precision: For each layer, one over the variances of its biases (p).
        probes: Orthonormal columns (z - 1, q).
    """

    precision: Mapping[str, Tensor]
    probes: Tensor

    def tangent_variance(self, pull: Pullback) -> Float[Tensor, " n"]:
        """Estimate the variance of the outputs in the tangent space, summed over it."""
        found = layer_variances(pull, {k: 1 / v for k, v in self.precision.items()}, self.probes)
        return torch.stack(list(found.values())).sum(0)

    def isotropic_variance(self, pull: Pullback) -> Float[Tensor, "n 1"]:
        """Estimate the variance, the same for each output, that has this trace in the tangent space."""
        return self.tangent_variance(pull)[:, None] / len(self.probes)

    def tensors(self) -> dict[str, Tensor]:
        """Return its parts by name."""
        return {f"precision.{k}": v for k, v in self.precision.items()} | {"probes": self.probes}

    @staticmethod
    def restored(tensors: Mapping[str, Tensor], like: Tensor) -> "BiasPosterior":
        """Put it together again from `tensors`."""
        start = "precision."
        parts = {
            k.removeprefix(start): v.to(like) for k, v in tensors.items() if k.startswith(start)
        }
        return BiasPosterior(parts, tensors["probes"].to(like))

    def draw(
        self, pull: Pullback, n_samples: int, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw biases, and return by how much each changes the outputs, linearised."""
        noise = {
            k: normal((n_samples, len(v)), v, generator) / v.sqrt()
            for k, v in self.precision.items()
        }
        outputs = pull.outputs
        change = outputs.new_zeros(n_samples, *outputs.shape)
        for k in range(outputs.shape[1]):
            axis = torch.zeros_like(outputs)
            axis[:, k] = 1
            pulled = pull(axis)
            for name, of_biases in noise.items():
                change[:, :, k] += of_biases @ pulled[name].T
        return change


def orthonormal(
    dim: int, count: int, like: Tensor, generator: torch.Generator
) -> Float[Tensor, "t q"]:
    """Draw orthonormal directions uniformly.

    Args:
        dim: Of their space.
        count: How many; no more than there are dimensions are drawn.
        like: Whose dtype and device they get.
        generator: The source of randomness.

    Returns:
        Directions in columns.
    """
    noise = normal((dim, min(dim, count)), torch.empty(0, dtype=torch.float64), generator)
    basis, triangle = torch.linalg.qr(noise)
    uniform: Tensor = (basis * triangle.diagonal().sign()).to(like)
    return uniform


def fit_biases(
    head: HeadPosterior,
    curvature: Mapping[str, Tensor],
    pulls: Callable[[], Iterable[Pullback]],
    generator: torch.Generator,
    *,
    probes: int = PROBES,
) -> tuple[HeadPosterior, BiasPosterior]:
    """Share the variance that a head's posterior has between the head and the layers below it.

    The level stays: for the median training example, the sum is what the head's alone was.

    Args:
        head: Its posterior, fitted.
        curvature: Of the biases, for each layer: a sum over pairs, unscaled and unclipped.
        pulls: Makes training examples, batch by batch.
        generator: Draws the probes.
        probes: How many.

    Returns:
        The head's posterior with its share, and that of the biases.

    Raises:
        InputError: If there is but one output: a sphere of two points has no tangent.
        DegenerateError: If no layer's curvature has anything positive.
    """
    check_int("probes", probes, least=1)
    z = len(head.mean)
    if z < 2:
        raise InputError("a posterior over biases needs at least two outputs; this head has one.")
    known = {k: clip_negative(c)[0] for k, c in curvature.items() if bool((c > 0).any())}
    if not known:
        raise DegenerateError(
            "no bias below the head has a positive curvature: the backbone does not respond to its "
            "biases, or there is no positive pair in the sample."
        )
    shape = {k: c + SHAPE * c.mean() for k, c in known.items()}
    directions = orthonormal(z - 1, probes, head.mean, generator)
    of_head, of_layers = [], []
    for pull in pulls():
        squares = pull.outputs.square().sum(1)
        tangential = 1 - pull.outputs.square() / squares[:, None]
        of_head.append((head.output_variance(pull.plain) * tangential).sum(1) / squares)
        found = layer_variances(pull, {k: 1 / v for k, v in shape.items()}, directions)
        of_layers.append(torch.stack(list(found.values())) / squares)
    level = torch.cat(of_head).median()
    medians = torch.cat(of_layers, dim=1).median(dim=1).values
    share = (1 - HEAD_SHARE) * level / len(shape)
    precision = {k: v * m / share for (k, v), m in zip(shape.items(), medians, strict=True)}
    scaled = replace(head, precision=head.precision / HEAD_SHARE)
    return scaled, BiasPosterior(precision, directions)


def tangents(outputs: Float[Tensor, "n z"], probes: Float[Tensor, "t q"]) -> Float[Tensor, "q n z"]:
    """Turn probes into directions orthogonal to each output, by the reflection of the first axis to it."""
    u = torch.nn.functional.normalize(outputs, dim=1)
    axis = torch.zeros_like(u)
    axis[:, 0] = torch.where(u[:, 0] < 0, -1.0, 1.0)
    mirror = torch.nn.functional.normalize(u + axis, dim=1)
    padded = torch.cat([torch.zeros_like(probes[:1]), probes]).T[:, None]
    turned: Tensor = padded - 2 * (padded * mirror).sum(2, keepdim=True) * mirror
    return turned


def layer_variances(
    pull: Pullback, variance: Mapping[str, Tensor], probes: Float[Tensor, "t q"]
) -> dict[str, Float[Tensor, " n"]]:
    """Estimate what each layer's biases add to the variance in the tangent space.

    Args:
        pull: A batch.
        variance: Of the biases, for each layer (p).
        probes: Orthonormal columns, from `orthonormal`.

    Returns:
        For each layer the trace over the tangent space (n).
    """
    total = dict.fromkeys(variance, pull.outputs.new_zeros(()))
    for direction in tangents(pull.outputs, probes):
        pulled = pull(direction)
        for name, of_biases in variance.items():
            total[name] = total[name] + (pulled[name] ** 2) @ of_biases
    factor = len(probes) / probes.shape[1]
    return {name: factor * value for name, value in total.items()}


BIAS_EXAMPLES = 2048
"""Training examples that the curvature of the biases is computed from."""
BIAS_BATCH = 256
BIAS_BASIS = 16
"""Backward passes a batch for that curvature, exact for heads with up to so many outputs."""


@dataclass(frozen=True, eq=False)
class BiasEmbedder:
    """A frozen backbone under a posterior of its head and of the biases below.

    Attributes:
        head: The encoder and the diagonal posterior of its head.
        biases: Over the biases of the layers below.
    """

    head: HeadEmbedder
    biases: BiasPosterior
    runs_network_once: ClassVar[bool] = True

    @property
    def network(self) -> Encoder:
        """The encoder."""
        return self.head.encoder

    @property
    def posterior(self) -> HeadPosterior:
        """The head's."""
        assert isinstance(self.head.posterior, HeadPosterior)
        return self.head.posterior

    @torch.no_grad()
    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch, with κ from the posterior, without sampling."""
        return gaussian_embeddings(*self._moments(pullback(self.network, inputs)))

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Return a function that draws embeddings; jointly, a head and biases, both linearised."""
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))

        @torch.no_grad()
        def draw(inputs: Tensor) -> Tensor:
            pull = pullback(self.network, inputs)
            if not joint:
                mean, variance = self._moments(pull)
                noise = normal((n_samples, *mean.shape), mean, generator)
                return unit(mean + variance.sqrt() * noise)
            source = torch.Generator().manual_seed(seed)
            change = self.biases.draw(pull, n_samples, source)
            features = completed(pull.plain, self.posterior.mean)
            return unit(pull.outputs + change + self.posterior.draw(features, n_samples, source))

        return draw

    def _moments(self, pull: Pullback) -> tuple[Tensor, Tensor]:
        variance = self.posterior.output_variance(pull.plain)
        return pull.outputs, variance + self.biases.isotropic_variance(pull)

    def tensors(self) -> dict[str, Tensor]:
        """Return the head's and the biases' parts."""
        return self.head.tensors() | prefixed("biases", self.biases.tensors())


@dataclass(frozen=True)
class LaplaceBiases:
    """Extend a Laplace method's posterior of the head to the biases below it.

    The curvature is that of all pairs of up to `BIAS_EXAMPLES` training examples, from batches as in
    training. Each layer has a scale of its own, so the number of examples has no say.

    Attributes:
        head: The method that trains and fits the head, with a diagonal posterior.
    """

    head: LaplacePosthoc | LaplaceOnline

    @torch.no_grad()
    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> BiasEmbedder:
        """Fit the head's posterior, then the biases'.

        Args:
            encoder: Stays as it is.
            dataset: The training data.
            session: What to train by.

        Returns:
            The encoder with both posteriors.

        Raises:
            InputError: If the posterior of the head is not diagonal, or the backbone has no biases.
        """
        bias_layers(encoder.backbone)
        with torch.enable_grad():
            embedder = self.head.fit(encoder, dataset, session)
        if not isinstance(embedder.posterior, HeadPosterior):
            raise InputError("biases go with structure='diagonal' alone.", field="structure")
        network, config = embedder.encoder, session.config
        batches = epoch_batches(dataset, config, epoch=0)
        count = max(1, BIAS_EXAMPLES // max(1, len(batches[0])))
        rows = torch.cat([torch.as_tensor(r) for r in batches[:count]])[:BIAS_EXAMPLES]

        def inputs() -> Iterator[Tensor]:
            for some in rows.split(BIAS_BATCH):  # type: ignore[no-untyped-call]
                yield like_network(dataset.read(some, preprocessing=config.preprocessing), network)

        outputs = torch.cat([network.outputs(x) for x in inputs()])
        relation = relation_of(dataset, config, rows)
        hessians = dataset_output_hessians(
            outputs, relation, distance=self.head.distance, margin=session.margin
        )
        generator = seeded(config.seed, "biases")
        basis = orthonormal(outputs.shape[1], BIAS_BASIS, outputs, generator)
        curvature = bias_curvature(network, inputs(), hessians, basis)
        head, biases = fit_biases(
            embedder.posterior,
            curvature,
            lambda: (pullback(network, x) for x in inputs()),
            generator,
        )
        return BiasEmbedder(HeadEmbedder(network, head), biases)

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> BiasEmbedder:
        """Put encoder and posteriors together again."""
        head = self.head.restore(encoder, tensors)
        below = unprefixed("biases", tensors)
        return BiasEmbedder(head, BiasPosterior.restored(below, head.posterior.mean))
