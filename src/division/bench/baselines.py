"""What PyTorch itself offers against the memory of saved tensors: recomputing them, or keeping them elsewhere.

Recomputing also beside `division`, which then codes what lies between the blocks, and by `division.recompute`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

#: Recomputing from coded inputs, and the bits they take.
RECOMPUTED = {"recompute-8": 8, "recompute-4": 4}
BLOCKWISE = ("checkpoint", "checkpoint+division", "recompute-8")
BASELINES = (*BLOCKWISE, "save_on_cpu")
_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks a network is made of: compound members of its outermost lists of modules.

    Of a ResNet its residual blocks, of a vision transformer its encoder blocks; none of a network that is one flat list.

    Example:
        >>> block = lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        >>> len(blocks(nn.Sequential(nn.Flatten(), block(), block())))
        2
    """
    if isinstance(model, _LISTS):
        return [member for member in model.children() if next(member.children(), None) is not None]
    return [block for child in model.children() for block in blocks(child)]


@contextlib.contextmanager
def checkpointed(members: list[nn.Module], call: Callable[..., Any] = checkpoint) -> Iterator[None]:
    """Each of these modules, where called inside, keeps its inputs alone and is run again in backward.

    By ``torch.utils.checkpoint`` without reentrance, its other settings left as they are, or by what is called like it.
    """
    for member in members:
        member.forward = partial(call, member.forward, use_reentrant=False)
    try:
        yield
    finally:
        for member in members:
            del member.forward
