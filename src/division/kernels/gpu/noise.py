"""The noise of ``kernels/noise.py`` inside a Triton kernel.

The two words that a seed stands for are computed on the host and passed as int32 (:func:`seed_arguments`); kernels
name them in ``do_not_specialize``, or every seed would be compiled for. A word serves two elements of its row: a
kernel computes it once, for elements ``e`` and ``e + 8`` of every 16, and takes its halves.
"""

import triton
import triton.language as tl

from division.kernels.noise import seed_words

GOLDEN = tl.constexpr(0x9E3779B9)
FIRST = tl.constexpr(0x7FEB352D)
SECOND = tl.constexpr(0x846CA68B)


def seed_arguments(seed: int) -> tuple[int, int]:
    """The words of a seed as two int32 arguments of a kernel.

    Example:
        >>> seed_arguments(7)
        (1496452567, 1674306020)
    """
    low, high = (word - (word >> 31 << 32) for word in seed_words(seed))
    return low, high


@triton.jit
def mix(h: tl.tensor) -> tl.tensor:
    """A bijection of uint32 that scatters its bits."""
    h = (h ^ (h >> 16)) * FIRST
    h = (h ^ (h >> 15)) * SECOND
    return h ^ (h >> 16)


@triton.jit
def row_key(row: tl.tensor, seed_low: tl.tensor, seed_high: tl.tensor) -> tl.tensor:
    """The uint32 key of each row, int64."""
    low = row.to(tl.uint32)
    high = (row >> 32).to(tl.uint32)
    key = mix(low ^ seed_low.to(tl.uint32, bitcast=True))
    return mix(key ^ seed_high.to(tl.uint32, bitcast=True) ^ (high * GOLDEN))


@triton.jit
def word(key: tl.tensor, index: tl.tensor) -> tl.tensor:
    """Word ``index`` (int32) of the row with this key, uint32.

    Its low half serves element ``index // 8 * 16 + index % 8``, its high half the one eight later.
    """
    return mix(count(index) ^ key)


@triton.jit
def count(index: tl.tensor) -> tl.tensor:
    """What :func:`word` mixes with the key. It is linear modulo 2^32: one number's may be added to another's."""
    return index.to(tl.uint32, bitcast=True) * GOLDEN


@triton.jit
def low_half(word: tl.tensor) -> tl.tensor:
    """The noise of the first of the two elements, 16 bits in uint32."""
    return word & 0xFFFF


@triton.jit
def high_half(word: tl.tensor) -> tl.tensor:
    """The noise of the second of the two elements, 16 bits in uint32."""
    return word >> 16
