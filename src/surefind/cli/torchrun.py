"""Several processes under ``torchrun``: become one of them, and leave together."""

import os

from surefind.cli.console import console


def join_processes() -> bool:
    """Under torchrun, become one of its processes, of which only the first speaks.

    Returns:
        Whether this process is the one that speaks and writes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    import torch

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend)
    console.quiet = torch.distributed.get_rank() > 0
    return not console.quiet


def leave_processes() -> None:
    """Wait for all processes before any of them goes: one that is still busy must not lose its peers."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()
