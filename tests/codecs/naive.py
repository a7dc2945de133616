"""The dual and the group codec again, slowly: one scalar at a time, from the definitions alone."""

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MASK32, MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
F32 = np.float32


def mix(h: int) -> int:
    h ^= h >> 16
    h = h * 0x7FEB352D & MASK32
    h ^= h >> 15
    h = h * 0x846CA68B & MASK32
    return h ^ h >> 16


def seed_words(seed: int) -> tuple[int, int]:
    x = (seed + 0x9E3779B97F4A7C15) & MASK64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK64
    x ^= x >> 31
    return x & MASK32, x >> 32


def noise(seed: int, row: int, element: int) -> np.float32:
    low, high = seed_words(seed)
    key = mix(mix(row & MASK32 ^ low) ^ high ^ (row >> 32) * 0x9E3779B9 & MASK32)
    word = mix((element // 16 * 8 + element % 8) * 0x9E3779B9 & MASK32 ^ key)
    half = word >> 16 if element // 8 % 2 else word & 0xFFFF
    return F32((half + 0.5) / 65536)


def bits32(x: np.float32) -> int:
    return int(np.asarray(x, F32).view(np.uint32))


def float32(bits: int) -> np.float32:
    return F32(np.array(bits, np.uint32).view(F32))


def nearest(x: np.float32) -> np.float32:
    """bfloat16, ties to even."""
    b = bits32(x)
    return float32((b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000)


def down(x: np.float32) -> np.float32:
    """The greatest bfloat16 not above; -0 is 0."""
    b = bits32(x + F32(0))
    cut = b & 0xFFFF0000
    return float32(cut + 0x10000 if b >> 31 and cut != b else cut)


def up(x: np.float32) -> np.float32:
    """The least bfloat16 not below a non-negative number."""
    return float32((bits32(x) + 0xFFFF) & 0xFFFF0000)


def tree(values: list[np.float32]) -> np.float32:
    width = 1 << (len(values) - 1).bit_length()
    values = values + [F32(0)] * (width - len(values))
    while len(values) > 1:
        half = len(values) // 2
        values = [F32(a + b) for a, b in zip(values[:half], values[half:], strict=True)]
    return values[0] + F32(0)


class Row(NamedTuple):
    codes: list[int]
    offset: np.float32
    step: np.float32


def quantize(values: Sequence[np.float32], bits: int, draws: Sequence[np.float32]) -> Row:
    if not all(math.isfinite(v) for v in values):
        return Row([0] * len(values), F32(math.nan), F32(math.nan))
    levels, low, high = 2**bits - 1, min(values), max(values)
    offset = down(low)
    spread = F32(high - offset) + F32(0)
    if low == high and up(spread) == spread:
        return Row([1] * len(values), offset, spread)
    step = up(max(F32(spread / F32(levels)), F32(2.0**-126)))
    codes = []
    for value, u in zip(values, draws, strict=True):
        t = F32(F32(value - offset) * F32(F32(1) / step))
        floor = np.floor(t)
        codes.append(min(max(int(floor) + int(u < F32(t - floor)), 0), levels))
    return Row(codes, offset, step)


def packed(codes: Sequence[int], bits: int) -> bytes:
    """Code e in the bits from e * bits on, lowest bits of a byte first."""
    number = sum(code << e * bits for e, code in enumerate(codes))
    return number.to_bytes(-(-len(codes) * bits // 8), "little")


class Plane(NamedTuple):
    lfc: list[np.float32]
    codes: bytes
    offset: np.float32
    step: np.float32
    decoded: NDArray[np.float32]


def dual_plane(x: NDArray[np.float32], row: int, block: int, bits: int, seed: int) -> Plane:
    """One plane, float32 ``[*spatial]``."""
    sides = [min(block, n) for n in x.shape]
    grid = [-(-n // side) for n, side in zip(x.shape, sides, strict=True)]
    finite, constant = bool(np.isfinite(x).all()), bool(x.min() == x.max())
    lfc = {}
    for g in product(*map(range, grid)):
        mean = x.flat[0] if constant else _block_mean(x, g, sides)
        limit = float32(0x7F7F0000)
        lfc[g] = nearest(min(max(F32(mean), -limit), limit)) + F32(0) if finite else F32(0)
    cells = list(product(*map(range, x.shape)))
    own = [lfc[tuple(i // side for i, side in zip(cell, sides, strict=True))] for cell in cells]
    high = [F32(x[cell] - base) for cell, base in zip(cells, own, strict=True)]
    span, reach = F32(x.max() - x.min()), F32(max(high) - min(high))
    bound = F32(1.25) * reach if x.min() == 0 else reach
    if finite and len(lfc) > 1 and span < bound and reach < F32(np.inf):
        lfc, own, high = dict.fromkeys(lfc, F32(0)), [F32(0)] * len(cells), [F32(x[cell] - F32(0)) for cell in cells]
    coded = quantize(high, bits, [noise(seed, row, e) for e in range(len(cells))])
    decoded = [
        F32(F32(F32(F32(code) * coded.step) + coded.offset) + base) for code, base in zip(coded.codes, own, strict=True)
    ]
    shaped = np.array(decoded, F32).reshape(x.shape)
    return Plane(list(lfc.values()), packed(coded.codes, bits), coded.offset, coded.step, shaped)


def _block_mean(x: NDArray[np.float32], g: tuple[int, ...], sides: Sequence[int]) -> np.float32:
    """Equal columns first, leading dims ascending; then the columns as a tree; then one division."""
    spans = [range(i * side, min((i + 1) * side, n)) for i, side, n in zip(g, sides, x.shape, strict=True)]
    columns = []
    for column in spans[-1]:
        total = None
        for leading in product(*spans[:-1]):
            total = x[(*leading, column)] if total is None else F32(total + x[(*leading, column)])
        assert total is not None
        columns.append(total)
    return F32(tree(columns) / F32(math.prod(map(len, spans))))
