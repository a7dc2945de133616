"""Cutting a tensor into pieces, so that temporaries stay small (and, on a CPU, in the cache)."""

from collections.abc import Iterator

import torch
from torch import Tensor

_CPU_ELEMENTS = 1 << 18
_ELEMENTS = 1 << 24


def chunks(x: Tensor, dims: int) -> Iterator[tuple[int, tuple[slice, ...]]]:
    """Slices over the leading ``dims`` dims of ``x`` that cover it in order, each of bounded size.

    Only one dim is cut: the outermost whose slices are small enough, one index at a time for those before it.

    Yields:
        (the number of leading-dim rows before this piece, the slices).
    """
    limit = _CPU_ELEMENTS if x.device.type == "cpu" else _ELEMENTS
    if dims == 0 or x.numel() <= limit:
        yield 0, ()
        return
    inner = x.numel() // x.shape[0]
    rows = 1
    for d in range(1, dims):
        rows *= x.shape[d]
    if inner > limit and dims > 1:
        for i in range(x.shape[0]):
            for first, cut in chunks(x[i], dims - 1):
                yield i * rows + first, (slice(i, i + 1), *cut)
        return
    step = max(1, limit // max(inner, 1))
    for start in range(0, x.shape[0], step):
        yield start * rows, (slice(start, start + step),)


def write(piece: Tensor, values: Tensor) -> None:
    """Put float32 ``values``, overwritten, into a piece of the same elements, held within the range of its dtype."""
    if piece.dtype != torch.float64:
        limit = torch.finfo(piece.dtype).max
        values.clamp_(-limit, limit)
    piece.copy_(values.reshape(piece.shape))
