"""The mixed codec on the CPU: one pass for the ranges, one for the codes."""

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
from division.kernels.reference import mixed as reference


def _samples(size: Sequence[int], group: int, bits: Sequence[int]) -> Any:
    """What the C++ struct ``Rows`` reads: rows, their elements, the size of a group, how many widths, the widths."""
    return library.numbers((size[0], prod(size[1:]), group, len(bits), *bits))


@body("mixed_encode", "CPU")
def mixed_encode(x: Tensor, group: int, total: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, (offset, step) of every group and the width of every sample."""
    ranges, encode = library.function("group_ranges"), library.function("mixed_encode")
    if ranges is None or encode is None or x.dtype not in library.TYPES or x.numel() == 0:
        return reference.mixed_encode(x, group, total, seed)
    codes, scale, _ = reference.empty_code(x, group, total, seed)
    low = x.new_empty(scale.shape[:2], dtype=torch.float32)
    high = torch.empty_like(low)
    layout = library.pointer(x), library.TYPES[x.dtype], shape(x.shape, x.stride())
    ranges(*layout, _samples(x.shape, group, (1,)), library.pointer(low), library.pointer(high))
    widths = reference.allot(low, high, prod(x.shape[1:]), group, total)
    words = (c_uint32(word) for word in seed_words(seed))
    encode(
        *layout, _samples(x.shape, group, widths.tolist()), library.pointer(low), library.pointer(high), *words,
        library.pointer(codes), library.pointer(scale),
    )  # fmt: skip
    return codes, scale, widths


@body("mixed_decode", "CPU")
def mixed_decode(
    codes: Tensor, scale: Tensor, widths: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, group: int
) -> Tensor:  # fmt: skip
    """``step * code + offset`` of each element, held within the range of the dtype."""
    decode = library.function("mixed_decode")
    if decode is None or dtype not in library.TYPES or 0 in size:
        return reference.mixed_decode(codes, scale, widths, size, stride, dtype, group)
    bits = reference.known_widths(codes, widths, prod(size[1:]))
    out = reference.empty_samples(codes, scale, widths, size, stride, dtype, group)
    codes, scale = codes.contiguous(), scale.contiguous()
    decode(
        library.pointer(codes), library.pointer(scale), _samples(size, group, bits), library.TYPES[dtype],
        shape(size, stride), library.pointer(out),
    )  # fmt: skip
    return out
