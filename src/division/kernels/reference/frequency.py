"""The frequency codec's ops, in plain PyTorch: cosine transforms of blocks of a map, rounded to steps; zeros left out.

``x`` is ``[N, C, *spatial]`` with 1 to 3 spatial dims, in any layout; a row is one (sample, channel) plane. All in
float32, each product and sum rounded on its own:

    peak    greatest magnitude of a channel, over the planes that are finite; at least 2^-126
    x'      x * 2^-e, with e the exponent of the peak, held within -126 and 126; peak' = peak * 2^-e
    X       the orthonormal DCT-II of the blocks of x', along the spatial dims from the last to the first
    q       X / (peak' * weight), to the nearest whole number, halves to even: -127 to 127

A dim is cut into ``ceil(dim / 8)`` blocks as even as can be, the longer ones first. Along a dim of a block, of length n
with h = n // 2 and M[k, i] = sqrt((1 or 2) / n) * cos(pi * k * (2 i + 1) / (2 n)):

    s_i = x_i + x_(n-1-i), d_i = x_i - x_(n-1-i)    for i < h
    X_k = sum of s_i * M[k, i], i ascending, and of x_h * M[k, h] where n is odd (k even); of d_i * M[k, i] (k odd)

and back, with k ascending, and x_h = e_h where n is odd:

    e_i = sum over even k of X_k * M[k, i], o_i = sum over odd k    x_i = e_i + o_i, x_(n-1-i) = e_i - o_i

The q of a plane follow one another block by block, both blocks and frequencies in row-major order. Kept are a bit for
each, whether it is not 0, those that aren't, and the peaks. A plane with an element that is not finite keeps one q, the
first, of -128: it decodes to NaN as a whole.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from division.kernels.ops import body, define
from division.kernels.reference.chunks import chunks, write
from division.kernels.reference.dual import all_finite, as_rows, check_map
from division.kernels.reference.packing import pack_small, unpack_small

BLOCK = 8
LEVELS = 127
NOT_FINITE = -128
_TINY = 2.0**-126
Transform = Callable[[Tensor], Tensor]


def check_steps(quality: float, slope: float) -> None:
    """Refuse a table that has no steps."""
    if not (math.isfinite(quality) and quality > 0):
        raise ValueError(f"got quality={quality}, expected a finite number above 0")
    if not (math.isfinite(slope) and slope >= 0):
        raise ValueError(f"got slope={slope}, expected a finite number of at least 0")


def _check_encode(x: Tensor, quality: float, slope: float) -> None:
    check_map(x.shape, x.dtype, BLOCK)
    check_steps(quality, slope)


def mask_bytes(size: Sequence[int]) -> int:
    """Bytes of the mask of a plane: a bit for each element."""
    return -(-prod(size[2:]) // 8)


def _check_decode(
    masks: Tensor, values: Tensor, peaks: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    quality: float, slope: float,
) -> None:  # fmt: skip
    check_map(size, dtype, BLOCK)
    check_steps(quality, slope)
    for name, part, shape, kind in (
        ("masks", masks, (size[0] * size[1], mask_bytes(size)), torch.uint8),
        ("peaks", peaks, (size[1],), torch.float32),
    ):
        if tuple(part.shape) != shape or part.dtype != kind:
            raise ValueError(f"got {name} {part.dtype} {tuple(part.shape)}, expected {kind} {shape} for shape {size}")
    if values.dim() != 1 or values.dtype != torch.int8 or values.numel() > prod(size):
        raise ValueError(
            f"got values {values.dtype} {tuple(values.shape)}, expected at most {prod(size)} of torch.int8 in one dim"
        )
    if not masks.device == values.device == peaks.device:
        raise ValueError(
            f"got masks on {masks.device}, values on {values.device} and peaks on {peaks.device}, expected one device"
        )


@define("frequency_encode(Tensor x, float quality, float slope) -> (Tensor, Tensor, Tensor)", _check_encode)
def most_code(x: Tensor, quality: float, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    """masks uint8 ``[planes, ceil(elements / 8)]``; values int8 ``[values]``, here as many as there may be; peaks ``[C]``."""
    planes = x.shape[0] * x.shape[1]
    return (
        x.new_empty((planes, mask_bytes(x.shape)), dtype=torch.uint8),
        x.new_empty((x.numel(),), dtype=torch.int8),
        # Of channels without elements nobody writes them.
        (x.new_empty if x.numel() else x.new_zeros)((x.shape[1],), dtype=torch.float32),
    )


@define(
    "frequency_decode(Tensor masks, Tensor values, Tensor peaks, int[] size, int[] stride, ScalarType dtype,"
    " float quality, float slope) -> Tensor",
    _check_decode,
)
def empty_map(
    masks: Tensor, values: Tensor, peaks: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    quality: float, slope: float,
) -> Tensor:  # fmt: skip
    """An empty tensor of the given size, stride and dtype."""
    return torch.empty_strided(size, stride, dtype=dtype, device=masks.device)


def cuts(dim: int) -> list[int]:
    """The lengths of the blocks along a dim.

    Example:
        >>> cuts(28), cuts(9), cuts(3)
        ([7, 7, 7, 7], [5, 4], [3])
    """
    blocks = -(-dim // BLOCK)
    return [dim // blocks + (b < dim % blocks) for b in range(blocks)]


@functools.cache
def matrix(n: int) -> list[list[float]]:
    """The orthonormal DCT-II of length n, ``[k][i]``, each entry rounded to float32."""
    scale = [math.sqrt((1.0 if k == 0 else 2.0) / n) for k in range(n)]
    exact = [[scale[k] * math.cos(math.pi * k * (2 * i + 1) / (2 * n)) for i in range(n)] for k in range(n)]
    return torch.tensor(exact, dtype=torch.float64).to(torch.float32).tolist()  # type: ignore[no-any-return]


def matrices() -> Tensor:
    """Those of length 1 to 8, one after the other: float32, on the CPU."""
    entries = [entry for n in range(1, BLOCK + 1) for row in matrix(n) for entry in row]
    return torch.tensor(entries, dtype=torch.float32)


@functools.lru_cache(maxsize=64)
def weights(spatial: tuple[int, ...], quality: float, slope: float) -> Tensor:
    """The step at each place of a plane, as a part of the peak: float32 ``[*spatial]``, on the CPU.

    That of the k-th frequency of a block of n elements is ``max((1 + slope * f) / quality, sqrt(n) / 127)``, where f is
    the sum over the dims of 8 times k over the block's length.
    """
    count = torch.ones((), dtype=torch.float64)
    sums = torch.zeros((), dtype=torch.float64)
    for dim in spatial:
        lengths = torch.tensor([n for n in cuts(dim) for _ in range(n)], dtype=torch.float64)
        k = torch.tensor([k for n in cuts(dim) for k in range(n)], dtype=torch.float64)
        count, sums = count[..., None] * lengths, sums[..., None] + k * 8 / lengths
    return torch.maximum((sums * slope + 1) / quality, count.sqrt() / LEVELS).to(torch.float32)


@functools.lru_cache(maxsize=64)
def order(spatial: tuple[int, ...]) -> Tensor:
    """Places of a plane, row-major, in the order in which they are kept: int64 ``[elements]``, on the CPU."""
    number = torch.zeros((), dtype=torch.int64)
    for dim in spatial:
        block = torch.tensor([b for b, n in enumerate(cuts(dim)) for _ in range(n)])
        number = number[..., None] * len(cuts(dim)) + block
    return number.flatten().argsort(stable=True)


def _runs(rows: Tensor, d: int) -> Iterator[Tensor]:
    """Views of dim ``d`` of ``rows``: its blocks of one length, their elements in the last dim."""
    lengths = cuts(rows.shape[d])
    for n in sorted(set(lengths), reverse=True):
        first = 0 if n == lengths[0] else lengths.count(lengths[0]) * lengths[0]
        yield rows.narrow(d, first, n * lengths.count(n)).unflatten(d, (-1, n)).movedim(d + 1, -1)


def _sum(terms: Sequence[Tensor], factors: Sequence[float]) -> Tensor:
    """The terms times their factors, added one after the other."""
    total = terms[0] * factors[0]
    for term, factor in zip(terms[1:], factors[1:], strict=True):
        total += term * factor
    return total


def transform(rows: Tensor) -> Tensor:
    """Blocks of float32 rows ``[rows, *spatial]`` to their coefficients, in their place; overwrites the rows."""
    for d in range(rows.dim() - 1, 0, -1):
        for blocks in _runs(rows, d):
            n = blocks.shape[-1]
            m, h = matrix(n), n // 2
            x = blocks.unbind(-1)
            middle = [x[h].clone()] if n % 2 else []
            sums = [x[i] + x[n - 1 - i] for i in range(h)] + middle
            differences = [x[i] - x[n - 1 - i] for i in range(h)]
            for k in range(n):
                terms = differences if k % 2 else sums
                blocks[..., k] = _sum(terms, m[k][: len(terms)])
    return rows


def transform_back(rows: Tensor) -> Tensor:
    """The inverse of :func:`transform`, but for rounding."""
    for d in range(1, rows.dim()):
        for blocks in _runs(rows, d):
            n = blocks.shape[-1]
            m = matrix(n)
            coefficients = blocks.clone().unbind(-1)
            for i in range((n + 1) // 2):
                even = _sum(coefficients[0::2], [m[k][i] for k in range(0, n, 2)])
                if 2 * i + 1 == n:
                    blocks[..., i] = even
                    continue
                odd = _sum(coefficients[1::2], [m[k][i] for k in range(1, n, 2)])
                blocks[..., i], blocks[..., n - 1 - i] = even + odd, even - odd
    return rows


def _sizes(peaks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of peaks: the power of two that brings them to 1 and more, its inverse, and what they are then."""
    exponent = ((peaks.view(torch.int32) >> 23) - 127).clamp(-126, 126)
    down, up = (((127 + e) << 23).to(torch.int32).view(torch.float32) for e in (-exponent, exponent))
    return down, up, peaks * down


def _peaks(x: Tensor) -> Tensor:
    """The peak of each channel: float32 ``[C]``."""
    found = x.new_zeros(x.shape[0] * x.shape[1], dtype=torch.float32)
    for first, cut in chunks(x, 2):
        rows = as_rows(x[cut])
        high = rows.flatten(1).abs().amax(1)
        found[first : first + len(high)] = torch.where(all_finite(rows), high, 0.0)
    return found.view(x.shape[0], x.shape[1]).amax(0).clamp_min_(_TINY)


def _quantized(
    x: Tensor, peaks: Tensor, quality: float, slope: float, forward: Transform
) -> Iterator[tuple[int, Tensor]]:
    """(number of the first row, q int8 ``[rows, elements]``) of one piece of the map after the other."""
    down, _, size = _sizes(peaks)
    weight = weights(tuple(x.shape[2:]), quality, slope).to(x.device)
    places = order(tuple(x.shape[2:])).to(x.device)
    for first, cut in chunks(x, 2):
        rows = as_rows(x[cut])
        finite = all_finite(rows)
        channel = torch.arange(first, first + len(rows), device=x.device) % x.shape[1]
        one = (-1, *(1,) * (rows.dim() - 1))
        rows = torch.where(finite.view(one), rows * down[channel].view(one), 0.0)
        rows = forward(rows).div_(size[channel].view(one) * weight)
        q = rows.flatten(1).round_().to(torch.int8)[:, places]
        q[:, 0] = torch.where(finite, q[:, 0], NOT_FINITE)
        yield first, q


def encode(x: Tensor, quality: float, slope: float, forward: Transform) -> tuple[Tensor, Tensor, Tensor]:
    """Masks, values and peaks: in two passes, the first to know how many values there are."""
    if x.numel() == 0:
        return most_code(x, quality, slope)
    masks = x.new_empty((x.shape[0] * x.shape[1], mask_bytes(x.shape)), dtype=torch.uint8)
    peaks = _peaks(x)
    count = 0
    for first, q in _quantized(x, peaks, quality, slope, forward):
        kept = q != 0
        masks[first : first + len(q)] = pack_small(kept.view(torch.uint8), 1)
        count += int(kept.sum())
    values = x.new_empty((count,), dtype=torch.int8)
    start = 0
    for _, q in _quantized(x, peaks, quality, slope, forward):
        piece = q[q != 0]
        values[start : start + len(piece)] = piece
        start += len(piece)
    return masks, values, peaks


@body("frequency_encode")
def frequency_encode(x: Tensor, quality: float, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    """Masks, values and peaks."""
    return encode(x, quality, slope, transform)


def not_of_the_masks(values: Tensor) -> str:
    """What is said of values that are not those of the masks."""
    return f"got {values.numel()} values, expected as many as the masks have bits: those of another code"


def decode(
    masks: Tensor, values: Tensor, peaks: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    quality: float, slope: float, backward: Transform,
) -> Tensor:  # fmt: skip
    """The blocks that the values are the coefficients of, held within the range of the dtype."""
    out = empty_map(masks, values, peaks, size, stride, dtype, quality, slope)
    if out.numel() == 0:
        return out
    _, up, steps = _sizes(peaks)
    weight = weights(tuple(size[2:]), quality, slope).to(out.device)
    back = order(tuple(size[2:])).argsort().to(out.device)
    start = 0
    for first, cut in chunks(out, 2):
        piece = out[cut]
        count = piece.shape[0] * piece.shape[1]
        kept = unpack_small(masks[first : first + count], 1, weight.numel()).view(torch.bool)
        q = torch.zeros(kept.shape, dtype=torch.int8, device=out.device)
        here = values[start : start + int(kept.sum())]
        if len(here) < int(kept.sum()):
            raise ValueError(not_of_the_masks(values))
        q[kept] = here
        start += len(here)
        channel = torch.arange(first, first + count, device=out.device) % size[1]
        one = (-1, *(1,) * (len(size) - 2))
        rows = q[:, back].to(torch.float32).view(-1, *size[2:]).mul_(steps[channel].view(one) * weight)
        rows = backward(rows).mul_(up[channel].view(one))
        rows.masked_fill_((q[:, 0] == NOT_FINITE).view(one), torch.nan)
        write(piece, rows)
    if start != values.numel():
        raise ValueError(not_of_the_masks(values))
    return out


@body("frequency_decode")
def frequency_decode(
    masks: Tensor, values: Tensor, peaks: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    quality: float, slope: float,
) -> Tensor:  # fmt: skip
    """The blocks that the values are the coefficients of, held within the range of the dtype."""
    return decode(masks, values, peaks, size, stride, dtype, quality, slope, transform_back)
