"""What a tile of lanes holds: elements, their ranges, and codes put together to bytes.

Elements are taken in two halves, ``[lanes, width / 2]`` each: of every 16 the first eight and the others, which
share their noise.
"""

import triton
import triton.language as tl

from division.kernels.gpu.noise import word
from division.kernels.gpu.rounding import bits_of, code_of, of_bits, place
from division.kernels.gpu.rows import within

LEAST = tl.constexpr(-(2**31))
GREATEST = tl.constexpr(2**31 - 1)
INFINITY_RANK = tl.constexpr(0x7F800000)


@triton.jit
def rank_of(x: tl.tensor) -> tl.tensor:
    """An int32 in the order of float32, with NaN beyond the infinity of its sign."""
    bits = bits_of(x)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def settle(least: tl.tensor, greatest: tl.tensor) -> tuple[tl.tensor, ...]:
    """The least and the greatest of some float32 by their ranks, and whether all are finite; else both are 0."""
    finite = (least > -INFINITY_RANK - 1) & (greatest < INFINITY_RANK) & (least <= greatest)
    low = of_bits(tl.where(finite, least ^ ((least >> 31) & 0x7FFFFFFF), 0))
    high = of_bits(tl.where(finite, greatest ^ ((greatest >> 31) & 0x7FFFFFFF), 0))
    return low, high, finite


@triton.jit
def half_of(half: tl.constexpr, width: tl.constexpr) -> tl.tensor:
    """The elements of a half of each sixteen, int32 ``[width / 2]``."""
    i = tl.arange(0, width // 2)
    return i // 8 * 16 + (i % 8 + half * 8)


@triton.jit
def range_of(
    before: tl.tensor, after: tl.tensor, is_before: tl.tensor, is_after: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The least and the greatest rank among the elements of both halves that there are, ``[lanes]``."""
    first, second = rank_of(before), rank_of(after)
    least = tl.minimum(tl.where(is_before, first, GREATEST), tl.where(is_after, second, GREATEST))
    most = tl.maximum(tl.where(is_before, first, LEAST), tl.where(is_after, second, LEAST))
    return tl.min(least, 1), tl.max(most, 1)


@triton.jit
def noise_of(key: tl.tensor, start: tl.tensor, width: tl.constexpr) -> tl.tensor:
    """The words of noise of a tile, ``[lanes, width / 2]``, the elements of whose lanes begin at ``start``, int64."""
    first = (start // 16 * 8).to(tl.int32)
    return word(key[:, None], first[:, None] + tl.arange(0, width // 2)[None, :])


@triton.jit
def encode(
    x: tl.tensor, there: tl.tensor, half: tl.tensor, base: tl.tensor, scale: tl.tensor, floor: tl.tensor,
    bits: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The codes of elements, int32, 0 where there is none; an element of a group without a scale may be anything."""
    known = scale > 0.0
    t = place(tl.where(known, x, 0.0), tl.where(known, base, 0.0), scale, floor, 2**bits - 1)
    return tl.where(there, code_of(t, half, 2**bits - 1), 0)


@triton.jit
def together(
    codes: tl.tensor, begin: tl.constexpr, end: tl.constexpr, bits: tl.constexpr,
    lanes: tl.constexpr, width: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Codes begin to end of each eight in one word, int32 if they fit, else int64: ``[lanes, width / 16]``."""
    codes = tl.reshape(codes, (lanes, width // 16, 8))
    k = tl.arange(0, 8)
    if (end - begin) * bits > 32:
        codes = codes.to(tl.int64)
    if end - begin < 8:
        codes = tl.where(((k >= begin) & (k < end))[None, None, :], codes, 0)
    return tl.sum(codes << ((k % (end - begin)) * bits)[None, None, :], 2)


@triton.jit
def interleave(
    before: tl.tensor, after: tl.tensor, begin: tl.constexpr, end: tl.constexpr, bits: tl.constexpr,
    lanes: tl.constexpr, width: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The words of both halves, in the order of their elements: ``[lanes, width / 8, 1]``."""
    first = together(before, begin, end, bits, lanes, width)
    second = together(after, begin, end, bits, lanes, width)
    return tl.reshape(tl.join(first, second), (lanes, width // 8, 1))


@triton.jit
def store_codes(
    to: tl.tensor, before: tl.tensor, after: tl.tensor, count: tl.tensor, live: tl.tensor,
    grain: tl.constexpr, bits: tl.constexpr, span: tl.constexpr, lanes: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """Store the codes of a tile, 0 where there is no element: bits bytes for each eight.

    Args:
        to: pointers to where the bytes of each lane begin, ``[lanes]``.
        before, after: codes of both halves.
        count, live: as ``lanes_of`` gives them.
        span: bits, or the next power of two.
    """
    if bits == 8:
        for_before, for_after = half_of(0, width), half_of(1, width)
        tl.store(to[:, None] + for_before[None, :], before.to(tl.uint8), mask=within(for_before, count, live, grain))
        tl.store(to[:, None] + for_after[None, :], after.to(tl.uint8), mask=within(for_after, count, live, grain))
    else:
        m = tl.arange(0, span)
        bit = (m * 8)[None, None, :]
        if bits < 8:
            byte = interleave(before, after, 0, 8, bits, lanes, width) >> bit
        else:
            half: tl.constexpr = 4 * bits
            low = interleave(before, after, 0, 4, bits, lanes, width)
            high = interleave(before, after, 4, 8, bits, lanes, width)
            byte = tl.where(bit < half, low >> tl.minimum(bit, half - 1), 0)
            byte |= tl.where(bit < half, high << tl.maximum(half - bit, 0), high >> tl.maximum(bit - half, 0))
        j = (tl.arange(0, width // 8) * bits)[:, None] + m[None, :]
        there = live[:, None, None]
        if span != bits:
            there = there & (m < bits)[None, None, :]
        if grain > 0:
            limit = (count * bits + 7) // 8
            if grain * bits % 8 == 0:
                limit = tl.multiple_of(limit, grain * bits // 8)
            there = there & (j[None, :, :] < limit[:, None, None])
        tl.store(to[:, None, None] + j[None, :, :], byte.to(tl.uint8), mask=there)


@triton.jit
def load_codes(
    of: tl.tensor, count: tl.tensor, live: tl.tensor, grain: tl.constexpr, bits: tl.constexpr, reach: tl.constexpr,
    lanes: tl.constexpr, width: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The codes of a tile, int32 ``[lanes, width]``; where there is no element they may be anything.

    Args:
        of: pointers to where the bytes of each lane begin, ``[lanes]``.
        count, live: as ``lanes_of`` gives them.
        reach: in how many bytes the bits of a code may lie.
    """
    if 8 % bits == 0:
        per: tl.constexpr = 8 // bits
        j = tl.arange(0, width // per)
        there = within(j * per, count, live, grain)
        packed = tl.load(of[:, None] + j[None, :], mask=there, other=0).to(tl.int32)
        split = packed[:, :, None] >> (tl.arange(0, per) * bits)[None, None, :]
        code = tl.reshape(split, (lanes, width))
    else:
        bit = tl.arange(0, width) * bits
        there = within(tl.arange(0, width), count, live, grain)
        shift = (bit % 8)[None, :]
        spot = of[:, None] + (bit // 8)[None, :]
        packed = tl.load(spot, mask=there, other=0).to(tl.int32)
        for i in tl.static_range(1, reach):
            more = tl.load(spot + i, mask=there & (shift + bits > 8 * i), other=0)
            packed |= more.to(tl.int32) << (8 * i)
        code = packed >> shift
    return code & (2**bits - 1)
