"""Random streams that belong to a run, each named by what it is for and where in the run it is."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def stream(seed: int, *name: object) -> torch.Generator:
    """A CPU generator that depends on the seed and the name alone, so that nothing has to be stored to resume.

    Example:
        >>> a, b, c = stream(0, "order", 3), stream(0, "order", 3), stream(0, "order", 4)
        >>> a.initial_seed() == b.initial_seed(), a.initial_seed() == c.initial_seed()
        (True, False)
    """
    digest = hashlib.blake2b(repr((seed, *name)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def order(seed: int, epoch: int, count: int) -> Tensor:
    """The order in which an epoch visits `count` training images, the same for every method: int64 (count,)."""
    return torch.randperm(count, generator=stream(seed, "order", epoch))
