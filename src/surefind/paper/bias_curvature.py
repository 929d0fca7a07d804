"""Derivatives of outputs in the biases of a network's layers, example by example, and their curvature.

A layer adds its bias to what it gives out, so an example's derivative in the bias is that in the layer's
output, added up over positions. One backward pass of a batch, down to the layers' outputs and never to
their weights, pulls one direction v_i of each example's outputs back to

    g_i = (∂z_i/∂b)ᵀ v_i        for the biases b of all layers at once,

at about the cost of a forward pass. The diagonal of the "fixed" curvature, diag Σ_i J_iᵀ A_i J_i, follows
from the form of the blocks A_i (`surefind.curvature.head`), with an orthonormal basis q_k:

    diag J_iᵀ A_i J_i = 2 s_i² (a_i Σ_k (J_iᵀ q_k)² + 2 (J_iᵀ u_i) ∘ (J_iᵀ b_i))

It equals that of `surefind.curvature.network`, which takes any parameters, one example at a time.

Layers are the convolutions, linear layers and normalisations (in evaluation mode) below a module that have
a bias. Their outputs must have the examples on the first axis; a layer that the forward pass does not call
as a module, such as the projections of `torch.nn.MultiheadAttention`, has zero derivatives.

Axes: ``n`` examples, ``z`` outputs, ``p`` biases of a layer.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from surefind.curvature.head import OutputHessians
from surefind.errors import InputError
from surefind.models.encoder import Encoder, plain_features

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
            "with a bias, so there is nothing below the head to be uncertain about. Use layers='head'."
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
    """Note where each layer's output enters the graph, in this thread alone."""
    owner = threading.get_ident()

    def watching(name: str) -> Callable[..., Tensor | None]:
        def watch(layer: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            if threading.get_ident() != owner:
                return None
            if len(output) != n:
                raise InputError(
                    f"layer {name} gives {len(output)} rows for {n} inputs, so an input has no "
                    "derivative of its own in the layer's bias. Use layers='head' with this backbone."
                )
            if not output.requires_grad:
                output = _Attached.apply(output, torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
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


class _Attached(torch.autograd.Function):
    """A tensor that becomes part of the graph without being copied."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None


def _over_positions(gradient: Tensor, width: int, channels_first: bool) -> Float[Tensor, "n p"]:
    """Add up the gradient over the positions that share a bias."""
    n = len(gradient)
    if channels_first:
        return gradient.flatten(2).sum(2) if gradient.ndim > 2 else gradient
    return gradient.reshape(n, -1, width).sum(1)
