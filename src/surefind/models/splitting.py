"""A trained module as backbone and head: its last linear layer is found, not guessed.

A module of the caller's own runs once on a few inputs, in evaluation mode, while its linear layers are
watched. The head is the layer whose outputs z give what the module gives,

    module(x) = z,   or  a(x) z  with a(x) > 0,   z = W h + b,

where a is a normalisation, or any positive factor: the directions agree, which is all that `Encoder` keeps.
That is checked on the values, so neither the order of names nor that of definition has a say. A batch norm
after the layer is folded into it; in evaluation mode it is an affine map, and the fold is exact:

    γ (W h + b - m) / √(v + ε) + β  =  (g W) h + g (b - m) + β,    g = γ / √(v + ε).

The backbone is what the layer takes: the layers before it where the module is an `nn.Sequential`, or else
the module itself, left at that layer (`UpTo`).

Anything else between the last linear layer and the output (an activation, a layer norm, a sum) is refused,
with what to do. Axes: ``n`` inputs, ``d`` features, ``z`` outputs.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surefind.errors import InputError
from surefind.models.encoder import Encoder, empty_head, on_sphere

EXAMPLES = 16
"""Inputs that a split is checked on."""
TOLERANCE = 1e-4
"""What directions may differ by: rounding of float32, far below what any other layer does."""
WAY_OUT = (
    "Give surefind.Encoder(backbone, head) yourself, with a torch.nn.Linear as the head. Without one, "
    "take the whole module as a frozen backbone: surefind.Encoder(module, torch.nn.Linear(d, d)) with "
    "freeze_backbone=surefind.Freezing(head='identity'); or compute its vectors and use "
    "surefind.LaplaceHead."
)


@dataclass(frozen=True)
class Split:
    """Where a module was split.

    Attributes:
        layer: Name of the linear layer in the module; empty if the module is that layer.
        folded: Name of the batch norm that was folded into it; None if there is none.
        shape: Outputs and features of the head.
        bias: Whether the head has one.
    """

    layer: str
    folded: str | None
    shape: tuple[int, int]
    bias: bool

    def __str__(self) -> str:
        fold = (
            "" if self.folded is None else f", with the batch norm {self.folded!r} folded into it"
        )
        return f"the head is the linear layer {self.layer or 'itself'!r}{fold}"


class _ReachedError(Exception):
    """Carries features out of a module that is left half-way."""

    def __init__(self, features: Tensor) -> None:
        super().__init__("reached the last layer")
        self.features = features


class _Exit(nn.Module):
    """Stands where the last layer was: leaves the module with the features, or keeps them and goes on."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs, self.leaves = outputs, True
        self.kept: Tensor | None = None

    def forward(self, features: Tensor) -> Tensor:
        if self.leaves:
            raise _ReachedError(features)
        self.kept = features
        return 0 * features[:, :1].expand(-1, self.outputs)


class UpTo(nn.Module):
    """A module up to one of its layers: inputs to what that layer takes.

    Args:
        module: Changed in place: the layer is taken out.
        layer: The name of the layer, a linear one.
    """

    def __init__(self, module: nn.Module, layer: str) -> None:
        super().__init__()
        taken = module.get_submodule(layer)
        assert isinstance(taken, nn.Linear)
        self._exit = (_Exit(taken.out_features),)  # in a tuple: it is a part of the module below
        module.set_submodule(layer, self._exit[0])
        self.module = module
        self.layer = layer
        self.training = module.training

    def traceable(self) -> None:
        """Go on behind the layer from now on, for a tracer that no exception may pass; one thread only."""
        self._exit[0].leaves = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the features (n, d) before the layer."""
        try:
            self.module(inputs)
        except _ReachedError as end:
            return end.features
        kept = self._exit[0].kept
        if kept is None:
            raise InputError(
                f"the module did not come to its layer {self.layer!r} with these inputs, as it did "
                "with others.",
                field="encoder",
            )
        self._exit[0].kept = None
        return kept


def split_module(module: nn.Module, inputs: Tensor) -> tuple[Encoder, Split]:
    """Find the last linear layer of a trained module, and make an encoder of it.

    Args:
        module: Maps inputs to outputs (n, z), normalised or not; stays as it is.
        inputs: Some that it takes, two or more; `EXAMPLES` are enough.

    Returns:
        The encoder, which embeds as the module does in evaluation mode and has weights of its own; and
        where it was split.

    Raises:
        InputError: If the module does not take the inputs, or ends in something else.
    """
    copied = copy.deepcopy(module).eval()
    outputs, calls = _watched(copied, inputs)
    linear = [call for call in calls if isinstance(call.module, nn.Linear)]
    runs = [call.name for call in calls]
    for call in reversed(linear):
        if call.output.ndim != 2 or runs.count(call.name) > 1:
            continue
        follower = _batch_norm_after(call, calls)
        for norm in (None, follower):
            head = _plain_head(call.module) if norm is None else _folded(call.module, norm.module)
            if _agree(head(call.input).detach(), outputs):
                backbone = _before(copied, call.name).train(module.training)
                encoder = Encoder(backbone, head.train(module.training))
                encoder.training = module.training
                return encoder, _record(call, norm, head)
    what = "no linear layer (torch.nn.Linear) runs"
    if linear:
        last = linear[-1]
        what = (
            f"the last one that runs is {last.name or 'itself'!r} {tuple(last.output.shape)}, and "
        )
        what += "something else follows it"
    raise InputError(
        f"the output of {type(module).__name__} is not that of a linear layer, plain, normalised or after "
        f"a batch norm: {what}. {WAY_OUT}",
        field="encoder",
    )


def joined(module: nn.Module, split: Split) -> Encoder:
    """Split a module where another of its kind was split before; the head's weights are to be loaded."""
    z, d = split.shape
    layers = dict(module.named_modules())
    found = layers.get(split.layer)
    if not isinstance(found, nn.Linear) or (found.out_features, found.in_features) != (z, d):
        raise InputError(
            f"the saved model was split at the linear layer {split.layer!r} from {d} to {z}; this "
            f"{type(module).__name__} has none there. Build the same network.",
            field="encoder",
        )
    head = empty_head(d, z, bias=split.bias, like=found.weight)
    encoder = Encoder(_before(copy.deepcopy(module), split.layer), head)
    encoder.eval()
    return encoder


@dataclass(frozen=True, eq=False)
class _Call:
    """One run of a layer."""

    name: str
    module: Any
    input: Tensor
    output: Tensor


@torch.no_grad()
def _watched(module: nn.Module, inputs: Tensor) -> tuple[Tensor, list[_Call]]:
    """Run a module; return its outputs (n, z), and its linear layers and batch norms as they ran."""
    calls: list[_Call] = []

    def hook(name: str) -> Any:
        def look(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            calls.append(_Call(name, layer, args[0].detach(), output.detach()))

        return look

    watched = [
        layer.register_forward_hook(hook(name))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.BatchNorm1d)
    ]
    try:
        outputs = run_module(module, inputs)
    finally:
        for one in watched:
            one.remove()
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(inputs):
        came = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(
            f"{type(module).__name__} must give one tensor of embeddings ({len(inputs)}, z) for "
            f"{len(inputs)} inputs; got {came}. Wrap it in a module whose forward picks and pools "
            "one tensor.",
            field="encoder",
        )
    return outputs, calls


def run_module(module: nn.Module, inputs: Tensor) -> Any:
    """Run a module on inputs; what it says of inputs that it does not take becomes a sentence."""
    try:
        return module(inputs)
    except InputError:
        raise
    except Exception as error:  # whatever a network of others raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the network cannot take inputs {tuple(inputs.shape)} {inputs.dtype} ({reason}).",
            field="encoder",
            hint="Images are (n, channels, height, width), vectors (n, d): check channels, size and the "
            "preprocessing; and that its forward takes one tensor.",
        ) from error


def _batch_norm_after(call: _Call, calls: list[_Call]) -> _Call | None:
    """Return the batch norm that took a layer's outputs."""
    taken = (
        other
        for other in calls
        if isinstance(other.module, nn.BatchNorm1d)
        and other.module.running_mean is not None
        and other.input.shape == call.output.shape
        and torch.equal(other.input, call.output)
    )
    return next(taken, None)


@torch.no_grad()
def _plain_head(linear: nn.Linear) -> nn.Linear:
    head = empty_head(
        linear.in_features, linear.out_features, bias=linear.bias is not None, like=linear.weight
    )
    head.weight.copy_(linear.weight)
    if linear.bias is not None:
        head.bias.copy_(linear.bias)
    return head


@torch.no_grad()
def _folded(linear: nn.Linear, norm: nn.BatchNorm1d) -> nn.Linear:
    """Fold a batch norm, as it is in evaluation mode, into the layer before it; in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    head = empty_head(linear.in_features, linear.out_features, bias=True, like=linear.weight)
    gain = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.affine:
        gain = gain * norm.weight.double()
    shift = -norm.running_mean.double()
    if linear.bias is not None:
        shift = shift + linear.bias.double()
    bias = gain * shift + (norm.bias.double() if norm.affine else 0)
    head.weight.copy_(gain[:, None] * linear.weight.double())
    head.bias.copy_(bias)
    return head


def _agree(values: Tensor, outputs: Tensor) -> bool:
    """Return whether two outputs have the same directions."""
    if values.shape != outputs.shape or not bool(torch.isfinite(outputs).all()):
        return False
    gap = (on_sphere(values.double()) - on_sphere(outputs.double())).abs().max()
    return float(gap) <= TOLERANCE


def _before(module: nn.Module, layer: str) -> nn.Module:
    """Return what comes before a layer; the module may be changed."""
    if not layer:
        return nn.Identity()
    if type(module) is nn.Sequential and layer in dict(module.named_children()):
        # Plain layers can be described in a file; a module that is left half-way cannot.
        return module[: list(dict(module.named_children())).index(layer)]
    return UpTo(module, layer)


def _record(call: _Call, norm: _Call | None, head: nn.Linear) -> Split:
    shape = head.out_features, head.in_features
    return Split(call.name, None if norm is None else norm.name, shape, head.bias is not None)
