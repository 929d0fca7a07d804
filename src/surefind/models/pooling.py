"""From a map to a vector: generalised-mean pooling, between the average and the maximum; or all of it.

    GeM(x)_c = ( mean over positions of max(x_c, ε)^p )^(1/p)

p = 1 is the average of the clamped values and p → ∞ their maximum; p = 3 is usual for retrieval, and
learnt. Values are divided by their largest first, which cancels in exact arithmetic and lets p be large
without overflow. The clamp sends negative activations to ε: it loses nothing after a ReLU, but does
elsewhere.

Axes: ``n`` examples, ``c`` channels, ``h`` and ``w`` positions of a map, ``t`` tokens.
"""

import torch
from torch import Tensor, nn

from surefind.checks import check_positive
from surefind.errors import InputError


def generalized_mean(values: Tensor, p: Tensor | float, eps: float) -> Tensor:
    """Compute the generalised mean over the last axis, values below ``eps`` raised to it."""
    values = values.clamp(min=eps)
    largest = values.detach().amax(dim=-1, keepdim=True)
    return (values / largest).pow(p).mean(dim=-1).pow(1 / p) * largest.squeeze(-1)


class GeM(nn.Module):
    """Generalised-mean pooling with one learnable exponent.

    Args:
        p: The exponent to start from.
        eps: Values below are raised to it.
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        check_positive("p", p)
        check_positive("eps", eps)
        self.start: float = float(p)
        self.eps = eps
        self.p: nn.Parameter = nn.Parameter(torch.tensor(self.start, dtype=torch.float32))

    def reset_parameters(self) -> None:
        """Set the exponent back to where it started."""
        with torch.no_grad():
            self.p.fill_(self.start)

    def forward(self, values: Tensor) -> Tensor:
        """Pool maps (n, c, h, w), or sequences of tokens (n, t, c), to one vector each (n, c)."""
        if values.ndim not in (3, 4) or 0 in values.shape[1:]:
            raise InputError(
                f"GeM pools maps (n, c, h, w) or tokens (n, t, c); got shape {tuple(values.shape)}."
            )
        positions_last = values.flatten(2) if values.ndim == 4 else values.mT
        return generalized_mean(positions_last, self.p, self.eps)

    def extra_repr(self) -> str:
        """Show the exponent as it is now."""
        return f"p={float(self.p.detach()):.3g}, eps={self.eps:g}"


class FlattenPositions(nn.Module):
    """Lists the channels of the first position, then of the next.

    A map in `torch.channels_last` lies in memory like that: nothing is copied, neither here nor in the
    gradient, which `nn.Flatten` would hand back in the other format for every layer below to convert.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Flatten maps (n, c, h, w) to vectors (n, h·w·c)."""
        return maps.movedim(1, -1).flatten(1)
