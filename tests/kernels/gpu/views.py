"""Views to compare bodies on: any shape, any order of dims, with and without gaps; and views too far apart to allocate."""

import math
from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_FAR = 2**31 + 6


def view(x: Tensor, order: Sequence[int], step: int, offset: int) -> Tensor:
    """A tensor equal to ``x``: dims lie in this order in memory, ``step`` elements apart, from ``offset`` on."""
    size = [x.shape[d] for d in order]
    held = torch.zeros(offset + step * max(x.numel(), 1), dtype=x.dtype)
    dense = held[offset:].view(-1, step)[: x.numel(), 0].view(size)
    return dense.permute(sorted(range(x.dim()), key=order.__getitem__)).copy_(x)


@st.composite
def shapes(draw: st.DrawFn, most: int = 600, dims: int = 5) -> list[int]:
    """Up to so many elements and dims."""
    size: list[int] = []
    for _ in range(draw(st.integers(0, dims))):
        size.append(
            draw(st.integers(0 if draw(st.integers(0, 20)) == 20 else 1, max(most // max(math.prod(size), 1), 1)))
        )
    return draw(st.permutations(size))


@st.composite
def layouts(draw: st.DrawFn, dims: int) -> tuple[list[int], int, int]:
    """The arguments of :func:`view` for so many dims."""
    return draw(st.permutations(range(dims))), draw(st.sampled_from((1, 1, 2))), draw(st.sampled_from((0, 0, 1)))


def far(x: Tensor) -> Tensor:
    """A tensor equal to ``x`` (two elements along its first dim), whose second half lies 2^31 elements further on.

    Only the memory that is written takes room.
    """
    stride = x.stride()[1:]
    reach = _FAR + x[0].numel()
    held = torch.empty(reach, dtype=x.dtype).as_strided(x.shape, (_FAR, *stride))
    return held.copy_(x)
