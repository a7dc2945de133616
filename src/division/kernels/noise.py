"""The noise of stochastic rounding: a hash of (seed, row, element), the same in every backend and layout.

A word is one 32-bit hash of (seed, row, word index); it serves two elements of the row, 16 bits each. Elements
``e`` and ``e + 8`` of every 16 share a word: element ``e`` has word ``e // 16 * 8 + e % 8`` and takes its low half if
``e // 8`` is even, its high half if odd, so that eight or sixteen lanes of a vector unit need no shuffling.

    u(e) = (half + 1/2) / 65536, in [2^-17, 1 - 2^-17], exact in float32
"""

import torch
from torch import Tensor

from division.seeds import scatter

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B9


def _signed(value: int) -> int:
    """A 32-bit pattern as the int32 that has it."""
    value &= _MASK32
    return value - (1 << 32) if value >> 31 else value


def _mix(h: Tensor) -> Tensor:
    """A bijection of int32 that scatters its bits (xor, shift, multiply, twice); in place on its argument."""
    h ^= (h >> 16) & 0xFFFF
    h *= _signed(0x7FEB352D)
    h ^= (h >> 15) & 0x1FFFF
    h *= _signed(0x846CA68B)
    h ^= (h >> 16) & 0xFFFF
    return h


def seed_words(seed: int) -> tuple[int, int]:
    """The two 32-bit words that a seed stands for: scattered, so that neighbouring seeds share no row's noise."""
    x = scatter((seed + 0x9E3779B97F4A7C15) & _MASK64)
    return x & _MASK32, x >> 32


def row_keys(seed: int, first: int, rows: int, device: torch.device | str = "cpu") -> Tensor:
    """One int32 key for each of the rows ``first`` to ``first + rows``, shape ``[rows]``."""
    index = torch.arange(first, first + rows, dtype=torch.int64, device=device)
    low = (index & _MASK32).to(torch.int32)  # wraps: bit patterns, not values
    high = (index >> 32).to(torch.int32)
    seed_low, seed_high = seed_words(seed)
    key = _mix(low ^ _signed(seed_low))
    return _mix(key ^ _signed(seed_high) ^ (high * _signed(_GOLDEN)))


def uniform(
    seed: int, first: int, rows: int, elements: int, device: torch.device | str = "cpu", start: int = 0
) -> Tensor:
    """Noise for ``elements`` of each of ``rows`` rows, the first of them row ``first``, from element ``start`` on.

    Args:
        seed: any 64-bit integer.

    Returns:
        float32 ``[rows, elements]``, uniform in (0, 1) in steps of 2^-16.

    Example:
        >>> u = uniform(7, 0, 3, 40)
        >>> torch.equal(uniform(7, 2, 1, 40), u[2:])
        True
    """
    skipped = start % 16
    words = -(-(skipped + elements) // 16) * 8
    counter = torch.arange(start // 16 * 8, start // 16 * 8 + words, dtype=torch.int64, device=device)
    counter = counter.to(torch.int32) * _signed(_GOLDEN)  # wraps
    h = _mix(counter ^ row_keys(seed, first, rows, device)[:, None])  # [rows, words]
    h = h.view(rows, words // 8, 1, 8)
    halves = torch.cat((h & 0xFFFF, (h >> 16) & 0xFFFF), 2)  # [rows, words / 8, 2, 8]
    u = halves.view(rows, 2 * words)[:, skipped : skipped + elements].to(torch.float32)
    return u.add_(0.5).mul_(2.0**-16)
