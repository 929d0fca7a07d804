"""What the layers of a network say about an input: statistics of its stages, taken while it runs.

A *stage* is a place in the backbone whose output is looked at. Of a map (n, c, h, w) or of tokens (n, t, c)
the statistics are, for each channel, the mean over its positions, their standard deviation, and the means
of the parts of a coarse grid (`Layers`); of a plain vector (n, c), the vector itself. How much of this is
taken is decided by a budget: the finest of

    means, deviations, 4 × 4 parts      means, deviations, 2 × 2 parts      means, deviations      means

with which all stages together have at most `MOST` numbers, and where even the means are more, those of
evenly spaced channels. The output, which comes last, is beside this budget.
All are of at most `GRID` × `GRID` evenly spaced positions: what they cost beside the network stays small.

**Which stages.** A batch is passed through the backbone once, and its places say the shapes of their
outputs. The places are blocks, that is, modules of a kind that comes several times (residual blocks, layers
of a transformer); and outside of these, every activation (ReLU, GELU, …) and every module that has others
in it. Where the shape changes, a stage ends: the last place before it is taken. That is each activation of
a small network and each residual stage of a ResNet. Where there are fewer than three shapes, as in a
transformer, all blocks of the commonest kind are taken instead, or all places if there are no blocks. Of
more than `STAGES`, evenly spaced ones are kept, the last among them. A module that runs several times in a
pass is no place; a network without any, whose activations are functions, gives its layers. Places with
positions are preferred to vectors. A backbone that knows better names its own (``own_stages``). The names
of the stages are kept with the model, and the caller may name others. After them comes the output, of the
head or, where nobody has trained that, of the backbone.

Axes: ``n`` inputs, ``c`` channels, ``h``, ``w``, ``t`` positions, ``m`` statistics.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from surefind.errors import InputError

STAGES = 6
MOST = 2048
"""Numbers of all stages together; and half of those of the output."""
GRID = 16
OUTPUT, HEAD = "", "(head)"
"""Names of the backbone's own output, and of the head's before normalisation: what comes last."""

ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU),
    *(nn.Mish, nn.Hardswish, nn.Softplus, nn.Tanh, nn.Sigmoid),
)
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules that say nothing by being of one kind."""


Kept = Callable[[Tensor, str], Tensor]
"""What is kept of a stage's output, given the stage's name."""


@dataclass(frozen=True)
class Layers:
    """Which stages of a network are looked at, and what is kept of each.

    Attributes:
        names: Modules, in the order in which they run.
        parts: Side of the coarse grid; 0 for none.
        deviations: Whether standard deviations are taken.
        thinning: Every so manieth channel.
        of_parts: How many numbers of each stage are of the grid; they come last.
    """

    names: tuple[str, ...]
    parts: int = 0
    deviations: bool = True
    thinning: int = 1
    of_parts: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, network: nn.Module, inputs: Tensor, names: Sequence[str] | None = None, *, output: bool
    ) -> "Layers":
        """Choose stages, and what is kept of them.

        Args:
            network: The backbone, in evaluation mode.
            inputs: A few inputs, which are passed through it.
            names: Of modules; None for the rule above.
            output: Whether the backbone's output comes last, in place of the head's.

        Returns:
            The choice.
        """
        chosen = choose_stages(network, inputs) if names is None else tuple(names)
        watch = StageWatch(network, cls(chosen))
        with torch.no_grad(), watch.watching(lambda output, _: output):
            network(inputs)
        shapes = [tuple(x.shape[1:]) for x in watch.take(len(inputs))]
        chosen = (*chosen, OUTPUT)
        count = 0
        for parts, deviations in ((4, True), (2, True), (0, True), (0, False)):
            grids = tuple(_of_parts(shape, parts) for shape in shapes)
            count = sum(_channels(s) * (1 + (deviations and len(s) > 1)) for s in shapes)
            count += sum(grids)
            if count <= MOST:
                return cls(chosen, parts, deviations, of_parts=grids).ending(output=output)
        return cls(chosen, 0, False, -(-count // MOST)).ending(output=output)

    def ending(self, *, output: bool) -> "Layers":
        """Return the same with the backbone's output as the last, or the head's if there are stages."""
        *stages, _ = self.names
        return replace(self, names=(*stages, OUTPUT if output or not stages else HEAD))

    def statistics(self, output: Tensor, name: str = "stage") -> Tensor:
        """Return what is kept of a stage's output (n, m): means, deviations, parts; or its values."""
        x = output.detach()
        if name in (OUTPUT, HEAD) and x.ndim == 2:
            return x[:, :: _step(x.shape[1], 2 * MOST)].float()
        x = x[..., :: self.thinning] if x.ndim == 3 else x[:, :: self.thinning]
        if x.ndim == 2:
            return x.float()
        pooled = []
        if x.ndim == 4:
            x = x[:, :, :: _step(x.shape[2], GRID), :: _step(x.shape[3], GRID)]
            if _of_parts(tuple(x.shape[1:]), self.parts):
                pooled = [adaptive_avg_pool2d(x.float(), self.parts).flatten(1)]
            # Positions before channels: the order in memory that the kernels prefer.
            x = x.permute(0, 2, 3, 1).flatten(1, 2)
        else:
            x = x[:, :: _step(x.shape[1], GRID * GRID)]
        x = x.float()
        mean = x.mean(1)
        if not self.deviations:
            return mean
        # Not torch.std, which takes several times as long; what cancels is far below what images differ by.
        spread = (x.square().mean(1) - mean.square()).clamp(min=0).sqrt()
        return torch.cat([mean, spread, *pooled], dim=1)


def _channels(shape: tuple[int, ...]) -> int:
    return shape[-1] if len(shape) == 2 else shape[0]


def _of_parts(shape: tuple[int, ...], parts: int) -> int:
    """Return how many numbers a grid gives of an output (c, h, w); only of a map that is as large."""
    return shape[0] * parts**2 if len(shape) == 3 and parts <= min(shape[1:]) else 0


def encoder_places(names: Sequence[str]) -> list[str]:
    """Return where stages of a backbone, and what comes last, are in an encoder."""
    return ["head" if name == HEAD else f"backbone.{name}".rstrip(".") for name in names]


class StageWatch:
    """Collects the statistics of a network's stages, each time that it runs.

    Args:
        network: The backbone; it is not changed.
        layers: Which stages, and what is kept of them.
        places: Names of the modules, where they have others than the stages.

    Raises:
        InputError: If the network has no module of such a name.
    """

    def __init__(
        self, network: nn.Module, layers: Layers, places: Sequence[str] | None = None
    ) -> None:
        modules = dict(network.named_modules())
        places = layers.names if places is None else places
        for name in places:
            if name not in modules:
                raise InputError(
                    f"the network has no module {name!r} to watch; its modules are "
                    f"{', '.join(n for n in modules if n)}.",
                    field="stages",
                )
        self._watched = [modules[name] for name in places]
        self._layers = layers
        self._found: list[Tensor | None] = []

    @contextmanager
    def watching(self, kept: Kept | None = None) -> Iterator["StageWatch"]:
        """Watch whatever passes through the network inside the ``with``; keep statistics, or another."""
        self._found = [None] * len(self._watched)
        kept = kept or self._layers.statistics
        hooks = [
            module.register_forward_hook(self._hook(place, kept))
            for place, module in enumerate(self._watched)
        ]
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def take(self, n: int | torch.SymInt) -> list[Tensor]:
        """Return the statistics (n, m) of each stage for the batch of n that has just passed."""
        # By shape, not by len: in a graph that is being traced, the size of a batch is a symbol.
        found = [value for value in self._found if value is not None and value.shape[0] == n]
        if len(found) < len(self._found):
            raise InputError(
                "a stage of the network did not run, or gave no output with one row per input; name "
                "stages that every input passes.",
                field="stages",
            )
        return found

    def _hook(self, place: int, kept: Kept) -> Any:
        # The network may be running in another thread too, with other inputs.
        owner, name = get_ident(), self._layers.names[place]

        def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if get_ident() == owner:
                value = first_tensor(output)
                if value is not None and value.ndim not in (2, 3, 4):
                    value = None
                self._found[place] = None if value is None else kept(value, name)

        return look


@torch.no_grad()
def choose_stages(network: nn.Module, inputs: Tensor) -> tuple[str, ...]:
    """Name the stages of a network, by the rule above.

    Args:
        network: The backbone, in evaluation mode.
        inputs: A few inputs, which are passed through it.

    Returns:
        Names of modules, in the order in which they run; none if it is empty, or runs none by themselves.
    """
    own = getattr(network, "own_stages", None)
    if own is not None:
        return tuple(own)
    modules = dict(network.named_modules())
    blocks = _blocks(modules)
    inside = {name for name in modules for block in blocks if name.startswith(f"{block}.")}
    around = {name for name in modules for block in blocks if block.startswith(f"{name}.")}
    outer = {n: m for n, m in modules.items() if n and n not in inside | around}
    places = {n: m for n, m in outer.items() if isinstance(m, ACTIVATIONS) or _has_others(m)}
    layers = {
        n: m for n, m in outer.items() if not _has_others(m) and any(True for _ in m.parameters())
    }
    seen = _shapes_seen(network, inputs, places) or _shapes_seen(network, inputs, layers)
    seen = [one for one in seen if len(one[1]) > 1] or seen
    ends = [
        name
        for i, (name, shape) in enumerate(seen)
        if i + 1 == len(seen) or seen[i + 1][1] != shape
    ]
    if len(ends) < min(3, len(seen)):
        ends = _alike([name for name, _ in seen], modules, blocks)
    return tuple(ends[i] for i in _evenly(len(ends), STAGES))


def _blocks(modules: Mapping[str, nn.Module]) -> list[str]:
    """Name the outermost modules of kinds that come several times, side by side."""
    found: dict[type, list[str]] = {}
    for name, module in modules.items():
        same = found.setdefault(type(module), [])
        nested = any(name.startswith(f"{other}.") for other in same)
        if name and type(module) not in CONTAINERS and _has_others(module) and not nested:
            same.append(name)
    several = [name for same in found.values() if len(same) > 1 for name in same]
    return [name for name in several if not any(name.startswith(f"{other}.") for other in several)]


def _shapes_seen(
    network: nn.Module, inputs: Tensor, modules: Mapping[str, nn.Module]
) -> list[tuple[str, tuple[int, ...]]]:
    """Return the names of the modules that run once, in that order, and the shapes of their outputs."""
    seen: list[tuple[str, tuple[int, ...]]] = []

    def look(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            value = first_tensor(output)
            if value is not None and value.ndim in (2, 3, 4) and len(value) == len(inputs):
                seen.append((name, tuple(value.shape[1:])))

        return hook

    if not modules:
        return seen
    hooks = [module.register_forward_hook(look(name)) for name, module in modules.items()]
    try:
        network(inputs)
    finally:
        for one in hooks:
            one.remove()
    runs = Counter(name for name, _ in seen)
    return [one for one in seen if runs[one[0]] == 1]


def _alike(names: list[str], modules: Mapping[str, nn.Module], blocks: list[str]) -> list[str]:
    """Return the blocks of the commonest kind among places; without blocks, all places side by side."""
    kinds = Counter(type(modules[name]) for name in names if name in blocks)
    if kinds:
        kind = kinds.most_common(1)[0][0]
        return [name for name in names if name in blocks and type(modules[name]) is kind]
    numbered = [name for name in names if name.rpartition(".")[2].isdigit()] or names
    depth = min(name.count(".") for name in numbered)
    return [name for name in numbered if name.count(".") == depth]


def _has_others(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def first_tensor(output: Any) -> Tensor | None:
    """Return the tensor that a module gave, or the first of several; None if there is none."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, list | tuple):
        return next((t for t in map(first_tensor, output) if t is not None), None)
    return None


def _step(size: int, most: int) -> int:
    """Return the step of evenly spaced entries, at most so many."""
    return -(-size // most)


def _evenly(size: int, most: int) -> list[int]:
    """Return at most so many of the places 0 … size - 1, evenly spaced, the last among them."""
    if size <= most:
        return list(range(size))
    return [round((i + 1) * size / most) - 1 for i in range(most)]
