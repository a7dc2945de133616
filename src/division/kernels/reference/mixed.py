"""The mixed codec's ops, in plain PyTorch: groups of a sample, in a width of its own for each sample.

A sample is one index of dim 0, its other dims in row-major order its elements. Codes, parameters and noise are those
of ``group_encode`` with these widths, but that each sample's codes are those of a multiple of eight elements, so that
together they take ``ceil(elements / 8)`` bytes for each bit of ``total``, however it is shared out.

Widths minimise the sum over samples of ``C / (2^b - 1)^2`` at the sum ``total``, C being the sum over the sample's
groups of (range^2 * elements). Bits are given one by one to whom they help most (a convex problem, of which that is
the optimum), to the first of equals.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from division.kernels.ops import body, define
from division.kernels.reference import group as rows
from division.kernels.reference.chunks import chunks
from division.kernels.reference.dual import DTYPES
from division.kernels.reference.quantize import code_bytes

LEAST, MOST = 1, 8
#: A group is a multiple of the one, and has at most the other.
UNIT, LARGEST = 16, 4096


def _check_samples(size: Sequence[int], dtype: torch.dtype, group: int) -> None:
    if dtype not in DTYPES:
        raise TypeError(f"got dtype {dtype}, expected one of {', '.join(map(str, DTYPES))}")
    if not size:
        raise ValueError("got a tensor without dims, expected samples along dim 0")
    if group % UNIT or not UNIT <= group <= LARGEST:
        raise ValueError(f"got a group of {group} elements, expected a multiple of {UNIT} up to {LARGEST}")


def _check_encode(x: Tensor, group: int, total: int, seed: int) -> None:
    _check_samples(x.shape, x.dtype, group)
    samples = x.shape[0]
    if not LEAST * samples <= total <= MOST * samples:
        raise ValueError(
            f"got {total} bits for {samples} samples, expected {LEAST} to {MOST} for each: {LEAST * samples} to {MOST * samples}"
        )


def _check_decode(
    codes: Tensor, scale: Tensor, widths: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, group: int
) -> None:  # fmt: skip
    _check_samples(size, dtype, group)
    samples, elements = size[0], prod(size[1:])
    octets = -(-elements // 8)
    whole = codes.numel() % octets == 0 if octets else codes.numel() == 0
    least = LEAST * samples * octets
    if codes.dim() != 1 or codes.dtype != torch.uint8 or not (whole and least <= codes.numel() <= MOST * least):
        raise ValueError(
            f"got codes {codes.dtype} {tuple(codes.shape)}, expected torch.uint8, {octets} for each bit of {samples} samples"
        )
    shape = (samples, -(-elements // group), 2)
    if tuple(scale.shape) != shape or scale.dtype != torch.bfloat16:
        raise ValueError(f"got scale {scale.dtype} {tuple(scale.shape)}, expected torch.bfloat16 {shape}")
    if tuple(widths.shape) != (samples,) or widths.dtype != torch.uint8:
        raise ValueError(f"got widths {widths.dtype} {tuple(widths.shape)}, expected torch.uint8 {(samples,)}")
    if not codes.device == scale.device == widths.device:
        raise ValueError(f"got parts on {codes.device}, {scale.device} and {widths.device}, expected one device")


@define("mixed_encode(Tensor x, int group, int total, int seed) -> (Tensor, Tensor, Tensor)", _check_encode)
def empty_code(x: Tensor, group: int, total: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """codes uint8 ``[bytes]``; (offset, step) bf16 ``[samples, groups, 2]``; widths uint8 ``[samples]``."""
    samples, elements = x.shape[0], prod(x.shape[1:])
    return (
        x.new_empty((-(-elements // 8) * total,), dtype=torch.uint8),
        x.new_empty((samples, -(-elements // group), 2), dtype=torch.bfloat16),
        x.new_empty((samples,), dtype=torch.uint8),
    )


@define(
    "mixed_decode(Tensor codes, Tensor scale, Tensor widths, int[] size, int[] stride, ScalarType dtype, int group) -> Tensor",
    _check_decode,
)
def empty_samples(
    codes: Tensor, scale: Tensor, widths: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, group: int
) -> Tensor:  # fmt: skip
    """An empty tensor of the given size, stride and dtype."""
    return torch.empty_strided(size, stride, dtype=dtype, device=codes.device)


def allot(low: Tensor, high: Tensor, elements: int, group: int, total: int) -> Tensor:
    """The width of each sample, uint8 ``[samples]``: the same bits on every device, without waiting for it.

    Args:
        low, high: float32 ``[samples, groups]``: ranges of the groups; those that are not finite count for nothing.
        elements: of a sample.
        group: elements of a group, but the last.
        total: the sum of the widths.
    """
    samples, groups = low.shape
    if samples == 0:
        return low.new_empty((0,), dtype=torch.uint8)
    spread = high - low
    spread = torch.where(torch.isfinite(spread), spread, 0.0).to(torch.float64)
    cost = spread * spread
    if groups:
        cost[:, :-1] *= group
        cost[:, -1] *= elements - (groups - 1) * group
    while cost.shape[1] > 1:  # by halves over the next power of two: a sum in a stated order
        half = 1 << (cost.shape[1] - 1).bit_length() - 1
        upper = cost[:, half:]
        cost = cost[:, :half].clone()
        cost[:, : upper.shape[1]] += upper
    cost = cost.sum(1)
    levels = ((1 << torch.arange(LEAST, MOST + 1, device=low.device)) - 1).to(torch.float64)
    error = 1 / (levels * levels)
    gain = (error[:-1] - error[1:])[:, None] * cost  # [widths, samples]: of equal ones the narrow come first
    order = gain.flatten().sort(stable=True, descending=True).indices[: total - LEAST * samples]
    taken = torch.zeros(gain.numel(), dtype=torch.uint8, device=low.device).scatter_(0, order, 1)
    return taken.view(gain.shape).sum(0, dtype=torch.uint8) + LEAST


def ranges(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """The least and the greatest of every group, float32 ``[samples, groups]``; NaN where one is not finite."""
    samples, elements = x.shape[0], prod(x.shape[1:])
    low = x.new_empty((samples, -(-elements // group)), dtype=torch.float32)
    high = torch.empty_like(low)
    if x.numel() == 0:
        return low, high
    group = min(group, elements)
    pad = -elements % group
    for first, cut in chunks(x, 1):
        piece = x[cut].reshape(-1, elements).to(torch.float32)
        if pad:
            piece = torch.cat((piece, piece[:, -1:].expand(-1, pad)), 1)
        split = piece.view(piece.shape[0], -1, group)
        finite = torch.isfinite(split).all(-1)
        for to, found in zip((low, high), torch.aminmax(split, dim=-1), strict=True):
            to[first : first + piece.shape[0]] = torch.where(finite, found, torch.nan)
    return low, high


def places(elements: int, widths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Of each sample: where its codes begin with padding, where without, and how many bytes they are without."""
    found, padded, dense = [], 0, 0
    for width in widths:
        own = code_bytes(elements, width)
        found.append((padded, dense, own))
        padded += -(-elements // 8) * width
        dense += own
    return found


@body("mixed_encode")
def mixed_encode(x: Tensor, group: int, total: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, (offset, step) of every group and the width of every sample, which it waits for."""
    elements = prod(x.shape[1:])
    widths = allot(*ranges(x, group), elements, group, total)
    if x.numel() == 0:
        return (*empty_code(x, group, total, seed)[:2], widths)
    bits = widths.tolist()
    dense, scale = rows.group_encode(x, 1, group, bits, seed)
    if elements % 8 == 0:
        return dense, scale, widths
    codes = torch.zeros(-(-elements // 8) * total, dtype=torch.uint8, device=x.device)
    for to, begin, count in places(elements, bits):
        codes[to : to + count] = dense[begin : begin + count]
    return codes, scale, widths


@body("mixed_decode")
def mixed_decode(
    codes: Tensor, scale: Tensor, widths: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, group: int
) -> Tensor:  # fmt: skip
    """``step * code + offset`` of each element, held within the range of the dtype."""
    elements = prod(size[1:])
    bits = known_widths(codes, widths, elements)
    if elements % 8:
        found = places(elements, bits)
        codes = torch.cat([codes[begin : begin + count] for begin, _, count in found]) if found else codes
    if 0 in size:
        return empty_samples(codes, scale, widths, size, stride, dtype, group)
    return rows.group_decode(codes, scale, size, stride, dtype, 1, group, bits)


def known_widths(codes: Tensor, widths: Tensor, elements: int) -> list[int]:
    """The widths as numbers.

    Raises:
        ValueError: they are not those of these codes.
    """
    bits: list[int] = widths.tolist()
    if not all(LEAST <= b <= MOST for b in bits) or sum(bits) * -(-elements // 8) != codes.numel():
        raise ValueError(
            f"got {codes.numel()} bytes of codes for widths {bits}: expected those that were encoded together"
        )
    return bits
