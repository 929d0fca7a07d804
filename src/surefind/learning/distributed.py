"""Several processes as one: rows that each of them holds a part of, and sums over all of them.

Everything here is a no-op in a single process. Under ``torchrun`` the caller starts the process group (the
command line does); nothing here does. All processes see the same files and start from the same weights.

Rows are shared out in order: of b rows, the process of rank r holds ``part(b)``. Gathering puts
them together again. Gradients flow into a process's own rows only: if every process computes the
same loss of the gathered rows, adding up the processes' gradients gives the gradient of that loss.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def world() -> tuple[int, int]:
    """Return this process's rank and the number of processes; (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def part(n: int) -> slice:
    """Return the slice of n rows that belongs to this process."""
    rank, size = world()
    return slice(_start(n, rank, size), _start(n, rank + 1, size))


def gather_rows(own: Tensor, n: int) -> Tensor:
    """Put the processes' rows, ``part(n)`` each, together in order; gradients flow into this one's own."""
    rank, size = world()
    if size == 1:
        return own
    most = -(-n // size)
    padded = own.new_zeros(most, *own.shape[1:])
    padded[: len(own)] = own.detach()
    parts = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(parts, padded)
    counts = [_start(n, r + 1, size) - _start(n, r, size) for r in range(size)]
    rows = [p[:count] for p, count in zip(parts, counts, strict=True)]
    rows[rank] = own
    return torch.cat(rows)


def wait_for_all() -> None:
    """Wait until every process has come here."""
    if world()[1] > 1:
        dist.barrier()


def sum_ranks(values: Tensor) -> Tensor:
    """Add up a tensor over all processes; each gets the sum."""
    if world()[1] == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total


def sum_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """Replace each parameter's gradient by its sum over all processes."""
    if world()[1] == 1:
        return
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)


def own_generator(generator: torch.Generator) -> torch.Generator:
    """Derive a generator of this process's own, for noise on its rows.

    The one that comes, which must be in the same state everywhere, is advanced alike everywhere.

    Args:
        generator: The step's.

    Returns:
        Another for each process.
    """
    drawn = torch.randint(2**62, (), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(drawn) + world()[0])


def average_buffers(network: torch.nn.Module) -> None:
    """Replace floating-point buffers, such as batch norm's statistics, by their mean over processes."""
    size = world()[1]
    if size == 1:
        return
    for buffer in network.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer.div_(size)


def shared(value: Tensor) -> Tensor:
    """Pass on what every process computes with alike, so that its gradients add up to one, not to many.

    Gradients of rows are summed because each process has its own; a parameter that acts on the gathered
    rows would be counted once in every process.

    Args:
        value: A parameter, the same in all processes.

    Returns:
        The same value; a share of the gradient flows back.
    """
    size = world()[1]
    return value if size == 1 else value / size + (value - value / size).detach()


def _start(n: int, rank: int, size: int) -> int:
    return n * rank // size
