"""The group codec's ops, in plain PyTorch: rows cut into groups, each quantised over its own range.

``x`` is a view whose first ``lead`` dims number the rows and whose other dims, in row-major order, are a row's
elements. Groups are ``size`` consecutive elements of a row; the last may be shorter. ``bits`` holds one width for
all rows, or one for each index of dim 0.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from division.kernels.noise import uniform
from division.kernels.ops import body, define
from division.kernels.reference.chunks import chunks, write
from division.kernels.reference.dual import DTYPES
from division.kernels.reference.quantize import code_bytes, pack_codes, quantize, to_bf16, unpack_codes


def total_bytes(size: Sequence[int], lead: int, bits: Sequence[int]) -> int:
    """Bytes of the codes of all rows."""
    elements = prod(size[lead:])
    return prod(size[:lead]) // max(len(bits), 1) * sum(code_bytes(elements, b) for b in bits)


def check_rows(size: Sequence[int], dtype: torch.dtype, lead: int, group: int, bits: Sequence[int]) -> None:
    """Refuse rows of another dtype, or with numbers that don't fit them."""
    if dtype not in DTYPES:
        raise TypeError(f"got dtype {dtype}, expected one of {', '.join(map(str, DTYPES))}")
    if not 0 <= lead <= len(size):
        raise ValueError(f"got lead={lead}, expected 0 to {len(size)} for shape {tuple(size)}")
    if group < 1:
        raise ValueError(f"got a group of {group} elements, expected at least 1")
    if not all(1 <= b <= 16 for b in bits):
        raise ValueError(f"got bits={list(bits)}, expected widths from 1 to 16")
    if len(bits) != 1 and (lead == 0 or len(bits) != size[0]):
        raise ValueError(f"got {len(bits)} bit widths, expected 1 or one for each index of dim 0 of {tuple(size)}")


def check_scale(scale: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse parameters of another shape or dtype."""
    if tuple(scale.shape) != shape or scale.dtype != torch.bfloat16:
        raise ValueError(f"got scale {scale.dtype} {tuple(scale.shape)}, expected torch.bfloat16 {shape}")


def _check_encode(x: Tensor, lead: int, group: int, bits: Sequence[int], seed: int) -> None:
    check_rows(x.shape, x.dtype, lead, group, bits)


def _check_decode(
    codes: Tensor, scale: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, lead: int,
    group: int, bits: Sequence[int],
) -> None:  # fmt: skip
    check_rows(size, dtype, lead, group, bits)
    rows, elements = prod(size[:lead]), prod(size[lead:])
    width = total_bytes(size, lead, bits)
    if tuple(codes.shape) != (width,) or codes.dtype != torch.uint8:
        raise ValueError(f"got codes {codes.dtype} {tuple(codes.shape)}, expected torch.uint8 {(width,)}")
    check_scale(scale, (rows, -(-elements // group), 2))
    if codes.device != scale.device:
        raise ValueError(f"got codes on {codes.device} and scale on {scale.device}, expected one device")


@define("group_encode(Tensor x, int lead, int group, int[] bits, int seed) -> (Tensor, Tensor)", _check_encode)
def empty_code(x: Tensor, lead: int, group: int, bits: Sequence[int], seed: int) -> tuple[Tensor, Tensor]:
    """codes uint8 ``[bytes]``, rows one after the other; (offset, step) bf16 ``[rows, groups, 2]``."""
    rows, elements = prod(x.shape[:lead]), prod(x.shape[lead:])
    return (
        x.new_empty((total_bytes(x.shape, lead, bits),), dtype=torch.uint8),
        x.new_empty((rows, -(-elements // group), 2), dtype=torch.bfloat16),
    )


@define(
    "group_decode(Tensor codes, Tensor scale, int[] size, int[] stride, ScalarType dtype, int lead, int group,"
    " int[] bits) -> Tensor",
    _check_decode,
)
def empty_rows(
    codes: Tensor, scale: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, lead: int,
    group: int, bits: Sequence[int],
) -> Tensor:  # fmt: skip
    """An empty tensor of the given size, stride and dtype."""
    return torch.empty_strided(size, stride, dtype=dtype, device=codes.device)


def _runs(x: Tensor, lead: int, bits: Sequence[int]) -> list[tuple[int, Tensor, int, int]]:
    """Pieces of ``x`` whose rows share a width: (first row, piece, width, byte where its codes begin)."""
    rows = prod(x.shape[:lead])
    elements = x.numel() // max(rows, 1)
    runs, byte = [], 0
    parts = [x] if len(bits) == 1 else list(x.split(1))
    for i, (part, width) in enumerate(zip(parts, bits, strict=True)):
        ahead = i * (rows // len(parts))
        for first, cut in chunks(part, lead):
            piece = part[cut]
            runs.append((ahead + first, piece, width, byte))
            byte += prod(piece.shape[:lead]) * code_bytes(elements, width)
    return runs


@body("group_encode")
def group_encode(x: Tensor, lead: int, group: int, bits: Sequence[int], seed: int) -> tuple[Tensor, Tensor]:
    """Codes and (offset, step) of every group."""
    codes, scale = empty_code(x, lead, group, bits, seed)
    if x.numel() == 0:
        return codes, scale
    elements = prod(x.shape[lead:])
    group = min(group, elements)
    pad = -elements % group
    for first, piece, width, byte in _runs(x, lead, bits):
        rows = piece.reshape(-1, elements).to(torch.float32, copy=True)
        if pad:  # the last value again: the range of its group stays
            rows = torch.cat((rows, rows[:, -1:].expand(-1, pad)), 1)
        noise = uniform(seed, first, rows.shape[0], rows.shape[1], x.device)
        split = rows.view(rows.shape[0], -1, group)
        coded = quantize(split, torch.isfinite(split).all(-1), width, noise.view(split.shape))
        packed = pack_codes(coded.codes.flatten(1)[:, :elements], width)
        codes[byte : byte + packed.numel()] = packed.flatten()
        scale[first : first + rows.shape[0]] = to_bf16(torch.stack((coded.offset, coded.step), -1))
    return codes, scale


@body("group_decode")
def group_decode(
    codes: Tensor, scale: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, lead: int,
    group: int, bits: Sequence[int],
) -> Tensor:  # fmt: skip
    """``step * code + offset`` of each element, held within the range of the dtype."""
    out = empty_rows(codes, scale, size, stride, dtype, lead, group, bits)
    if out.numel() == 0:
        return out
    elements = prod(size[lead:])
    group = min(group, elements)
    pad = -elements % group
    for first, piece, width, byte in _runs(out, lead, bits):
        rows = piece.numel() // elements
        row_bytes = code_bytes(elements, width)
        packed = codes[byte : byte + rows * row_bytes].view(rows, row_bytes)
        values = unpack_codes(packed, elements, width).to(torch.float32)
        if pad:
            values = torch.nn.functional.pad(values, (0, pad))
        offset, step = scale[first : first + rows].to(torch.float32).split(1, -1)
        values = values.view(rows, -1, group).mul_(step).add_(offset).flatten(1)[:, :elements]
        write(piece, values)
    return out
