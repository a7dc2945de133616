"""Planes of bits inside a Triton kernel, a block a program: ``kernels/reference/planes.py`` says what they hold.

Bits are put by atomic or into words of 32 bits that are 0 before; ``at`` is the next bit's place, int64.
"""

import triton
import triton.language as tl

from division.kernels.reference import planes as reference

BLOCK = tl.constexpr(reference.BLOCK)
WORDS = tl.constexpr(reference.BLOCK // reference.WORD)
LEVELS = tl.constexpr(reference.LEVELS)
NONE, FLAGS, TREE = (tl.constexpr(style) for style in (reference.NONE, reference.FLAGS, reference.TREE))


@triton.jit
def rank_of(mask: tl.tensor) -> tl.tensor:
    """How many of the mask, int32 0 or 1, come before each element."""
    return tl.cumsum(mask, 0) - mask


@triton.jit
def put_bits(words: tl.tensor, place: tl.tensor, bit: tl.tensor) -> None:
    """Set the bits at these places where ``bit`` is 1."""
    tl.atomic_or(words + (place >> 5), bit << (place & 31).to(tl.int32), mask=bit != 0, sem="relaxed")


@triton.jit
def get_bits(payload: tl.tensor, place: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The bits at these places, int32; 0 outside the mask."""
    byte = tl.load(payload + (place >> 3), mask=mask != 0, other=0).to(tl.int32)
    return (byte >> (place & 7).to(tl.int32)) & mask


@triton.jit
def put(words: tl.tensor, at: tl.tensor, mask: tl.tensor, plane: tl.tensor) -> tl.tensor:
    """One plane; where the next begins."""
    put_bits(words, at + rank_of(mask), plane & mask)
    return at + tl.sum(mask, 0)


@triton.jit
def any_of(plane: tl.tensor, count: tl.constexpr) -> tl.tensor:
    """Whether any of each ``count`` neighbours is 1."""
    return tl.max(tl.reshape(plane, (plane.shape[0] // count, count)), 1)


@triton.jit
def spread(plane: tl.tensor) -> tl.tensor:
    """Each element four times."""
    count: tl.constexpr = plane.shape[0]
    return tl.reshape(tl.broadcast_to(plane[:, None], (count, 4)), (count * 4,))


@triton.jit
def tree_bits(nonzero: tl.tensor, there: tl.tensor) -> tl.tensor:
    """Bits that the tree takes."""
    inner = tl.sum(any_of(nonzero, 64), 0) + tl.sum(any_of(nonzero, 16), 0) + tl.sum(any_of(nonzero, 4), 0)
    return tl.sum(any_of(there, 64), 0) + 4 * inner


@triton.jit
def put_numbers(
    words: tl.tensor, at: tl.tensor, numbers: tl.tensor, there: tl.tensor,
    style: tl.tensor, low: tl.tensor, high: tl.tensor,
) -> None:  # fmt: skip
    """A block's numbers, int32 and 0 where no element is, as planes; all bits are put from ``at`` on."""
    nonzero = (numbers > 0).to(tl.int32)
    flagged = (style != NONE).to(tl.int32)
    mask = any_of(there, 64) * (style == TREE).to(tl.int32)
    some = any_of(nonzero, 64)
    at = put(words, at, mask, some)
    mask = spread(mask & some)
    some = any_of(nonzero, 16)
    at = put(words, at, mask, some)
    mask = spread(mask & some)
    some = any_of(nonzero, 4)
    at = put(words, at, mask, some)
    mask = spread(mask & some)
    at = put(words, at, mask | (there * (style == FLAGS).to(tl.int32)), nonzero)
    live = tl.where(flagged != 0, nonzero, there)
    rest = tl.where(live != 0, numbers - flagged, 0)
    for bit in range(low):
        at = put(words, at, live, (rest >> bit) & 1)
    above = rest >> low
    for level in tl.static_range(LEVELS):
        plane = (above > level).to(tl.int32)
        at = put(words, at, live, plane)
        live = live & plane
    place = at + rank_of(live).to(tl.int64) * (high - low)
    for bit in range(high - low):
        put_bits(words, place + bit, (above >> bit) & live)


@triton.jit
def get_numbers(
    payload: tl.tensor, at: tl.tensor, there: tl.tensor, style: tl.tensor, low: tl.tensor, high: tl.tensor
) -> tl.tensor:
    """The numbers that :func:`put_numbers` put."""
    flagged = (style != NONE).to(tl.int32)
    mask = any_of(there, 64) * (style == TREE).to(tl.int32)
    for _ in tl.static_range(3):
        some = get_bits(payload, at + rank_of(mask), mask)
        at += tl.sum(mask, 0)
        mask = spread(some)
    mask = mask | (there * (style == FLAGS).to(tl.int32))
    nonzero = get_bits(payload, at + rank_of(mask), mask)
    at += tl.sum(mask, 0)
    live = tl.where(flagged != 0, nonzero, there)
    rank, count = rank_of(live), tl.sum(live, 0)
    rest = tl.zeros((BLOCK,), tl.int32)
    for bit in range(low):
        rest += get_bits(payload, at + rank, live) << bit
        at += count
    above = tl.zeros((BLOCK,), tl.int32)
    for _ in tl.static_range(LEVELS):
        passed = tl.sum(live, 0)
        live = get_bits(payload, at + rank_of(live), live)
        at += passed
        above += live
    place = at + rank_of(live).to(tl.int64) * (high - low)
    whole = tl.zeros((BLOCK,), tl.int32)
    for bit in range(high - low):
        whole += get_bits(payload, place + bit, live) << bit
    return (tl.where(live != 0, whole, above) << low) + rest + nonzero * flagged
