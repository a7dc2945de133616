"""The group codec on the CPU."""

from collections.abc import Sequence
from ctypes import c_uint32
from math import prod
from typing import Any

import torch
from torch import Tensor

from division.kernels.cpu import library
from division.kernels.cpu.strided import shape
from division.kernels.noise import seed_words
from division.kernels.ops import body
from division.kernels.reference import group as reference


def _rows(size: Sequence[int], lead: int, group: int, bits: Sequence[int]) -> Any:
    """What the C++ struct ``Rows`` reads: rows, their elements, the size of a group, how many widths, the widths."""
    return library.numbers((prod(size[:lead]), prod(size[lead:]), group, len(bits), *bits))


@body("group_encode", "CPU")
def group_encode(x: Tensor, lead: int, group: int, bits: Sequence[int], seed: int) -> tuple[Tensor, Tensor]:
    """Codes and (offset, step) of every group."""
    encode = library.function("group_encode")
    if encode is None or x.dtype not in library.TYPES or x.numel() == 0:
        return reference.group_encode(x, lead, group, bits, seed)
    codes, scale = reference.empty_code(x, lead, group, bits, seed)
    low, high = seed_words(seed)
    encode(
        library.pointer(x), library.TYPES[x.dtype], shape(x.shape, x.stride()),
        _rows(x.shape, lead, group, bits), c_uint32(low), c_uint32(high), library.pointer(codes),
        library.pointer(scale),
    )  # fmt: skip
    return codes, scale


@body("group_decode", "CPU")
def group_decode(
    codes: Tensor, scale: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, lead: int,
    group: int, bits: Sequence[int],
) -> Tensor:  # fmt: skip
    """``step * code + offset`` of each element, held within the range of the dtype."""
    decode = library.function("group_decode")
    if decode is None or dtype not in library.TYPES or 0 in size:
        return reference.group_decode(codes, scale, size, stride, dtype, lead, group, bits)
    out = reference.empty_rows(codes, scale, size, stride, dtype, lead, group, bits)
    codes, scale = codes.contiguous(), scale.contiguous()
    decode(
        library.pointer(codes), library.pointer(scale), _rows(size, lead, group, bits), library.TYPES[dtype],
        shape(size, stride), library.pointer(out),
    )  # fmt: skip
    return out
