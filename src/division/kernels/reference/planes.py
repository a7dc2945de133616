"""Whole numbers as planes of bits: what a block of the error-bounded code holds, written and read in plain PyTorch.

A plane holds one bit of some of the elements, those its mask has, in their order. The planes of a block follow one
another without gaps; the first bit of a byte is its lowest. Of every block a tensor holds one row.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Elements of a block, and of a word of it.
BLOCK, WORD = 2048, 64
#: The most ones that say what is above the low bits of a number; of one with as many, the rest follows in binary.
LEVELS = 6
#: Bits of the greatest number.
BITS = 25
#: How a block says which of its numbers are 0: not at all, by a bit each, by a tree over 64, 16, 4 and 1 elements.
NONE, FLAGS, TREE = 0, 1, 2


@dataclass(frozen=True)
class Layout:
    """How the numbers of some blocks are written.

    With flags, what is written of a number that is not 0 is the number less 1. Of it first come the low bits, one plane
    each, then as many ones as there are ``2**low`` in it and a 0, one plane for the first of each, one for the second.
    Of those with ``LEVELS`` ones what is above the low bits comes last, number by number.

    Attributes:
        style: int64 ``[blocks]``.
        low: bits of the low planes, int64 ``[blocks]``.
        high: bits of the greatest number, and no fewer than ``low``: int64 ``[blocks]``.
        there: which elements there are, bool ``[blocks, BLOCK]``.
    """

    style: Tensor
    low: Tensor
    high: Tensor
    there: Tensor

    def where(self, style: int) -> Tensor:
        """bool ``[blocks, 1]``: which blocks are of this style."""
        return (self.style == style)[:, None]


class Planes:
    """The bits of some blocks: uint8 ``[blocks, most]``, 0 or 1, and how many of each are passed."""

    def __init__(self, bits: Tensor) -> None:
        self.bits = bits
        self.passed = torch.zeros(bits.shape[0], 1, dtype=torch.int64, device=bits.device)

    def _places(self, mask: Tensor) -> Tensor:
        places = mask.cumsum(1).add_(self.passed - 1)
        self.passed = self.passed + mask.sum(1, keepdim=True)
        return places

    def put(self, mask: Tensor, plane: Tensor) -> None:
        """Write the bits of ``plane``, bool as ``mask`` is, of the elements in the mask."""
        places = self._places(mask)
        block = torch.arange(mask.shape[0], device=mask.device)[:, None].expand_as(mask)
        self.bits[block[mask], places[mask]] = plane[mask].to(torch.uint8)

    def get(self, mask: Tensor) -> Tensor:
        """The plane that :meth:`put` wrote; False outside the mask."""
        places = self._places(mask).clamp_(0, max(self.bits.shape[1] - 1, 0))
        return self.bits.gather(1, places).bool() & mask


def any_of(plane: Tensor, count: int) -> Tensor:
    """Whether any of each ``count`` neighbours is True: ``[blocks, elements / count]``."""
    return plane.view(plane.shape[0], -1, count).any(-1)


def spread(plane: Tensor, count: int) -> Tensor:
    """Each element ``count`` times: ``[blocks, elements * count]``."""
    return plane.repeat_interleave(count, 1)


def tree_bits(nonzero: Tensor, there: Tensor) -> Tensor:
    """Bits that the tree of each block takes: int64 ``[blocks]``."""
    inner = any_of(nonzero, WORD).sum(1) + any_of(nonzero, 16).sum(1) + any_of(nonzero, 4).sum(1)
    return any_of(there, WORD).sum(1) + 4 * inner


def flag_bits(nonzero: Tensor, layout: Layout) -> Tensor:
    """Bits that say which numbers are 0: int64 ``[blocks]``."""
    plain = torch.where(layout.style == FLAGS, layout.there.sum(1), 0)
    return torch.where(layout.style == TREE, tree_bits(nonzero, layout.there), plain)


def written(numbers: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """What the planes hold of each number, and of which numbers they hold anything."""
    flagged = ~layout.where(NONE)
    return numbers - flagged.to(numbers.dtype), torch.where(flagged, numbers > 0, layout.there)


def stream_bits(numbers: Tensor, layout: Layout) -> Tensor:
    """Bits of each block: int64 ``[blocks]``."""
    rest, live = written(numbers, layout)
    above = rest >> layout.low[:, None]
    each = layout.low[:, None] + 1 + above.clamp(max=LEVELS - 1)
    each = each + torch.where(above >= LEVELS, (layout.high - layout.low)[:, None], 0)
    return flag_bits(numbers > 0, layout) + torch.where(live, each, 0).sum(1)


def put_numbers(stream: Planes, numbers: Tensor, layout: Layout) -> None:
    """Write int64 ``numbers``, ``[blocks, BLOCK]``, below ``2**BITS``, 0 where there is no element."""
    nonzero = numbers > 0
    _put_flags(stream, nonzero, layout)
    rest, live = written(numbers, layout)
    for place, mask in _low_planes(live, layout):
        stream.put(mask, (rest >> place & 1).bool())
    above = rest >> layout.low[:, None]
    for level in range(LEVELS):
        plane = above > level
        stream.put(live, plane)
        live = live & plane
        if not live.any():
            return
    mask, bit = _above_planes(live, layout)
    stream.put(mask, (above[:, :, None] >> bit & 1).flatten(1).bool())


def get_numbers(stream: Planes, layout: Layout) -> Tensor:
    """The numbers that :func:`put_numbers` wrote."""
    nonzero = _get_flags(stream, layout)
    live = torch.where(layout.where(NONE), layout.there, nonzero)
    numbers = (nonzero & ~layout.where(NONE)).to(torch.int64)
    rest = torch.zeros_like(numbers)
    for place, mask in _low_planes(live, layout):
        rest += stream.get(mask).to(torch.int64) << place
    for _ in range(LEVELS):
        live = stream.get(live)
        rest += live.to(torch.int64) << layout.low[:, None]
        if not live.any():
            return numbers + rest
    mask, bit = _above_planes(live, layout)
    above = (stream.get(mask).view(*live.shape, BITS).to(torch.int64) << bit).sum(2)
    kept = rest & ((1 << layout.low[:, None]) - 1)
    return numbers + torch.where(live, above << layout.low[:, None] | kept, rest)


def _above_planes(live: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The bits above the low ones of the numbers in ``live``: a mask ``[blocks, BLOCK * BITS]``, their places ``[BITS]``."""
    bit = torch.arange(BITS, device=live.device)
    mask = live[:, :, None] & (bit < (layout.high - layout.low)[:, None, None])
    return mask.flatten(1), bit


def _low_planes(live: Tensor, layout: Layout) -> Iterator[tuple[int, Tensor]]:
    for bit in range(int(layout.low.max()) if layout.low.numel() else 0):
        yield bit, live & (layout.low > bit)[:, None]


def _put_flags(stream: Planes, nonzero: Tensor, layout: Layout) -> None:
    mask = layout.where(TREE) & any_of(layout.there, WORD)
    for count in (WORD, 16, 4):
        plane = any_of(nonzero, count)
        stream.put(mask, plane)
        mask = spread(mask & plane, 4)
    stream.put(mask | (layout.where(FLAGS) & layout.there), nonzero)


def _get_flags(stream: Planes, layout: Layout) -> Tensor:
    mask = layout.where(TREE) & any_of(layout.there, WORD)
    for _ in (WORD, 16, 4):
        mask = spread(stream.get(mask), 4)
    return stream.get(mask | (layout.where(FLAGS) & layout.there))
