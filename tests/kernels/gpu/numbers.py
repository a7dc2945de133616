"""Kernels that show what the functions of ``rounding.py`` and ``noise.py`` do to numbers."""

import triton
import triton.language as tl

from division.kernels.gpu import noise, rounding


@triton.jit
def round_kernel(
    x: tl.tensor, down: tl.tensor, up: tl.tensor, nearest: tl.tensor, stored: tl.tensor, n: tl.constexpr
) -> None:
    """All roundings of ``x``."""
    i = tl.arange(0, n)
    value = tl.load(x + i)
    tl.store(down + i, rounding.round_down(value))
    tl.store(up + i, rounding.round_up(tl.abs(value)))
    tl.store(nearest + i, rounding.to_bf16(rounding.round_nearest(value)))
    tl.store(stored + i, rounding.to_stored(value, stored.dtype.element_ty))


@triton.jit
def code_kernel(t: tl.tensor, half: tl.tensor, codes: tl.tensor, levels: tl.constexpr, n: tl.constexpr) -> None:
    """The codes of places ``t`` with noise ``half``."""
    i = tl.arange(0, n)
    drawn = tl.load(half + i).to(tl.uint32, bitcast=True)
    tl.store(codes + i, rounding.code_of(tl.load(t + i), drawn, levels))


@triton.jit(do_not_specialize=["low", "high"])
def noise_kernel(
    row: tl.tensor, keys: tl.tensor, words: tl.tensor, low: tl.tensor, high: tl.tensor, n: tl.constexpr
) -> None:
    """The key of each row, and the word of that row with the number of its place."""
    i = tl.arange(0, n)
    key = noise.row_key(tl.load(row + i), low, high)
    tl.store(keys + i, key.to(tl.int32, bitcast=True))
    tl.store(words + i, noise.word(key, i).to(tl.int32, bitcast=True))
