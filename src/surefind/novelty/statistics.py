"""What the layers of a network say about an input: statistics of its stages, taken while it runs.

A *stage* is a place in the backbone whose output is looked at. Of an output with positions, (n, c, h, w)
or tokens (n, t, c), the statistics are mean and standard deviation over the positions, for each channel;
of a plain vector, the vector itself. To stay cheap beside the network itself, at most `CHANNELS` channels
of a stage are looked at, evenly spaced, on a grid of at most `GRID` × `GRID` positions.

**Which stages.** A batch is passed through the backbone once, and every activation (ReLU, GELU, …) and
every block (a module that has others in it) says the shape of its output. Where the shape changes, a
stage ends: the last such output before it is taken. That is each activation of a small network and each
residual stage of a ResNet. A network whose blocks all have one shape, as in a transformer, is cut into
`STAGES` equal runs of blocks instead, and so is a network with more changes than that. A network without
positions gives vectors. The names of the stages are kept with the model, and the caller may name others.

Axes: ``n`` inputs, ``c`` channels, ``h``, ``w``, ``t`` positions, ``m`` statistics.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from surefind.errors import InputError

STAGES = 6
CHANNELS = 64
VALUES, MOST_VALUES = 256, 2048
"""Values of a vector that are looked at: of a stage's, and of one that is all there is."""
GRID = 16

ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU),
    *(nn.Mish, nn.Hardswish, nn.Softplus, nn.Tanh, nn.Sigmoid),
)


class StageWatch:
    """Collects the statistics of a network's stages, each time that it runs.

    Args:
        network: The backbone; it is not changed.
        stages: Names of modules in it, in the order in which they run.

    Raises:
        InputError: If the network has no module of such a name.
    """

    def __init__(self, network: nn.Module, stages: Sequence[str]) -> None:
        modules = dict(network.named_modules())
        for name in stages:
            if name not in modules:
                raise InputError(
                    f"the network has no module {name!r} to watch; its modules are "
                    f"{', '.join(n for n in modules if n)}.",
                    field="stages",
                )
        self._watched = [modules[name] for name in stages]
        self._found: list[Tensor | None] = []

    @contextmanager
    def watching(self) -> Iterator["StageWatch"]:
        """Watch whatever passes through the network inside the ``with``."""
        self._found = [None] * len(self._watched)
        hooks = [
            module.register_forward_hook(self._hook(place))
            for place, module in enumerate(self._watched)
        ]
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def take(self) -> list[Tensor]:
        """Return the statistics (n, m) of each stage for the batch that has just passed."""
        found = [value for value in self._found if value is not None]
        if len(found) < len(self._found):
            raise InputError(
                "a stage of the network did not run; name stages that every input passes.",
                field="stages",
            )
        return found

    def _hook(self, place: int) -> Any:
        def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
            value = first_tensor(output)
            self._found[place] = None if value is None else stage_statistics(value)

        return look


def stage_statistics(output: Tensor, *, whole: bool = False) -> Tensor:
    """Return what is kept of an output: (n, 2c) with positions, values (n, c) without, or ``whole``."""
    x = output.detach()
    if x.ndim == 2:
        return x[:, _spaced(x.shape[1], MOST_VALUES if whole else VALUES)].float()
    if x.ndim == 3:
        x = x[:, _spaced(x.shape[1], GRID * GRID), _spaced(x.shape[2], CHANNELS)].float()
        positions: tuple[int, ...] = (1,)
    else:
        x = x[:, _spaced(x.shape[1], CHANNELS)]
        x = x[..., _spaced(x.shape[2], GRID), _spaced(x.shape[3], GRID)].float()
        positions = (2, 3)
    mean = x.mean(positions)
    # Not torch.std, which takes several times as long; what cancels is far below what images differ by.
    spread = (x.square().mean(positions) - mean.square()).clamp(min=0).sqrt()
    return torch.cat([mean, spread], dim=1)


@torch.no_grad()
def choose_stages(network: nn.Module, inputs: Tensor) -> tuple[str, ...]:
    """Name the stages of a network, by the rule above.

    Args:
        network: The backbone, in evaluation mode.
        inputs: A few inputs, which are passed through it.

    Returns:
        Names of modules, in the order in which they run; none if it is empty, or runs none by themselves.
    """
    seen: list[tuple[str, tuple[int, ...]]] = []

    def look(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            value = first_tensor(output)
            if value is not None and value.ndim in (2, 3, 4) and len(value) == len(inputs):
                seen.append((name, tuple(value.shape[1:])))

        return hook

    modules = {
        name: module
        for name, module in network.named_modules()
        if name and (isinstance(module, ACTIVATIONS) or any(module.children()))
    }
    hooks = [module.register_forward_hook(look(name)) for name, module in modules.items()]
    try:
        network(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    spatial = [one for one in seen if len(one[1]) > 1]
    runs: list[list[str]] = []
    last: tuple[int, ...] | None = None
    for name, shape in spatial or seen:
        if shape != last:
            runs.append([])
        runs[-1].append(name)
        last = shape
    if len(runs) >= min(3, len(seen)):
        ends = [run[-1] for run in runs]
    else:
        longest = max(runs, key=len, default=[])
        blocks = [name for name in longest if name.rpartition(".")[2].isdigit()] or longest
        depth = min((name.count(".") for name in blocks), default=0)
        ends = [name for name in blocks if name.count(".") == depth]
    return tuple(ends[i] for i in _evenly(len(ends), STAGES))


def first_tensor(output: Any) -> Tensor | None:
    """Return the tensor that a module gave, or the first of several; None if there is none."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, list | tuple):
        return next((t for t in map(first_tensor, output) if t is not None), None)
    return None


def _spaced(size: int, most: int) -> slice:
    """Return evenly spaced entries, at most so many."""
    return slice(None, None, -(-size // most))


def _evenly(size: int, most: int) -> list[int]:
    """Return at most so many of the places 0 … size - 1, evenly spaced, the last among them."""
    if size <= most:
        return list(range(size))
    return [round((i + 1) * size / most) - 1 for i in range(most)]
