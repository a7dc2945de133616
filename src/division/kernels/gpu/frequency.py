"""Triton bodies of the frequency codec's ops: the transforms, one dim at a time; the rest is the reference's.

An element of the result takes up to eight of its block, which its neighbours take too: they come from the cache.
"""

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from division.kernels.gpu.launch import Configuration, Launch
from division.kernels.reference import frequency as reference

_TILE = 1024


@triton.jit
def place_of(
    cuts: tl.tensor, elements: tl.tensor, dim: tl.tensor, inner: tl.tensor, tile: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Of each element: its number, whether there is one, its index in its block, the block's length and first element."""
    e = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    there = e < elements
    place = (e // inner) % dim
    start = tl.load(cuts + 2 * place, mask=there, other=0)
    n = tl.load(cuts + 2 * place + 1, mask=there, other=1)
    k = place.to(tl.int32) - start
    return e, there, k, n, e - k * inner


@triton.jit
def forward_kernel(
    x: tl.tensor, out: tl.tensor, cuts: tl.tensor, matrices: tl.tensor,
    elements: tl.tensor, dim: tl.tensor, inner: tl.tensor, tile: tl.constexpr,
) -> None:  # fmt: skip
    """Coefficients along one dim: ``inner`` elements from one index to the next; cuts is int32 ``[dim, (start, length)]``."""
    e, there, k, n, base = place_of(cuts, elements, dim, inner, tile)
    h, odd = n // 2, k % 2 == 1
    row = matrices + ((n - 1) * n * (2 * n - 1) // 6 + k * n)
    total = tl.zeros((tile,), tl.float32)
    for i in tl.static_range(4):
        has = there & (i < h)
        a = tl.load(x + (base + i * inner), mask=has, other=0.0)
        b = tl.load(x + (base + (n - 1 - i) * inner), mask=has, other=0.0)
        term = tl.where(odd, a - b, a + b) * tl.load(row + i, mask=has, other=0.0)
        total = tl.where(has, term if i == 0 else total + term, total)
    has = there & (n % 2 == 1) & (k % 2 == 0)
    term = tl.load(x + (base + h * inner), mask=has, other=0.0) * tl.load(row + h, mask=has, other=0.0)
    total = tl.where(has, tl.where(h == 0, term, total + term), total)
    tl.store(out + e, total, mask=there)


@triton.jit
def backward_kernel(
    x: tl.tensor, out: tl.tensor, cuts: tl.tensor, matrices: tl.tensor,
    elements: tl.tensor, dim: tl.tensor, inner: tl.tensor, tile: tl.constexpr,
) -> None:  # fmt: skip
    """And back."""
    e, there, j, n, base = place_of(cuts, elements, dim, inner, tile)
    mirrored = n - 1 - j
    column = matrices + ((n - 1) * n * (2 * n - 1) // 6 + tl.minimum(j, mirrored))
    even, odd = tl.zeros((tile,), tl.float32), tl.zeros((tile,), tl.float32)
    for pair in tl.static_range(4):
        has = there & (2 * pair < n)
        term = tl.load(x + (base + 2 * pair * inner), mask=has, other=0.0)
        term = term * tl.load(column + 2 * pair * n, mask=has, other=0.0)
        even = tl.where(has, term if pair == 0 else even + term, even)
        has = there & (2 * pair + 1 < n)
        term = tl.load(x + (base + (2 * pair + 1) * inner), mask=has, other=0.0)
        term = term * tl.load(column + (2 * pair + 1) * n, mask=has, other=0.0)
        odd = tl.where(has, term if pair == 0 else odd + term, odd)
    total = tl.where(j < mirrored, even + odd, even - odd)
    tl.store(out + e, tl.where(j == mirrored, even, total), mask=there)


@functools.lru_cache(maxsize=256)
def _cuts(dim: int, device: torch.device) -> Tensor:
    """int32 ``[dim, 2]``: where each index's block begins, and its length."""
    pairs, start = [], 0
    for n in reference.cuts(dim):
        pairs += [(start, n)] * n
        start += n
    return torch.tensor(pairs, dtype=torch.int32).to(device)


@functools.lru_cache(maxsize=16)
def _matrices(device: torch.device) -> Tensor:
    return reference.matrices().to(device)


def launch(kernel: object, rows: Tensor, out: Tensor, d: int) -> Launch:
    """The launch that transforms contiguous rows ``[rows, *spatial]`` along dim ``d``."""
    arguments = {
        "x": rows, "out": out, "cuts": _cuts(rows.shape[d], rows.device), "matrices": _matrices(rows.device),
        "elements": rows.numel(), "dim": rows.shape[d], "inner": rows.stride(d),
    }  # fmt: skip
    return Launch(kernel, (triton.cdiv(rows.numel(), _TILE),), arguments, {"tile": _TILE}, 4)


def _by(kernel: object, rows: Tensor, dims: Sequence[int]) -> Tensor:
    for d in dims:
        if rows.shape[d] > 1:
            rows = rows.contiguous()
            out = torch.empty_like(rows)
            launch(kernel, rows, out, d)()
            rows = out
    return rows


def forward(rows: Tensor) -> Tensor:
    """What the reference's ``transform`` gives."""
    return _by(forward_kernel, rows, range(rows.dim() - 1, 0, -1))


def backward(rows: Tensor) -> Tensor:
    """What the reference's ``transform_back`` gives."""
    return _by(backward_kernel, rows, range(1, rows.dim()))


def frequency_encode(x: Tensor, quality: float, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    """Masks, values and peaks."""
    return reference.encode(x, quality, slope, forward)


def frequency_decode(
    masks: Tensor, values: Tensor, peaks: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    quality: float, slope: float,
) -> Tensor:  # fmt: skip
    """The blocks that the values are the coefficients of, held within the range of the dtype."""
    return reference.decode(masks, values, peaks, size, stride, dtype, quality, slope, backward)


def configurations() -> list[Configuration]:
    """Both, along the last dim and along another."""
    rows = torch.empty((64, 56, 56), dtype=torch.float32, device="meta")
    return [
        launch(kernel, rows, rows, d).configuration(f"{kernel.__name__} {tuple(rows.shape)} along {d}")
        for kernel in (forward_kernel, backward_kernel)
        for d in (1, 2)
    ]
