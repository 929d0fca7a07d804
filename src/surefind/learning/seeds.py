"""Generators by name: every random choice of a run has its own, found again from the seed.

A run's randomness is a tree: ``seeded(seed, "epoch", 3)`` is the same generator whenever and wherever it is
asked for. So a run that was killed needs no saved random state to go on exactly as it would have.
"""

import hashlib

import torch


def seeded(seed: int, *path: str | int) -> torch.Generator:
    """Make the generator that belongs to a seed and a purpose.

    Args:
        seed: The run's seed.
        path: Where it is used, for example ("step", epoch, step).

    Returns:
        A new generator on the CPU; equal arguments give equal ones, others independent ones.
    """
    name = "/".join(map(str, (seed, *path)))
    digest = hashlib.sha256(name.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
