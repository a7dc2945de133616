"""The dual codec on the CPU."""

import functools
from collections.abc import Sequence
from ctypes import c_uint32
from math import prod
from typing import Any

import torch
from torch import Tensor

from division.kernels.cpu import library
from division.kernels.noise import seed_words
from division.kernels.ops import body
from division.kernels.reference import dual as reference


def geometry(size: Sequence[int], stride: Sequence[int], block: int) -> Any:
    """What the C++ struct ``Map`` reads: samples, channels, three spatial sizes, their five strides, the block."""
    return _geometry(tuple(size), tuple(stride), block)


@functools.lru_cache(1024)
def _geometry(size: tuple[int, ...], stride: tuple[int, ...], block: int) -> Any:
    fill = 5 - len(size)
    sizes = (*size[:2], *(1,) * fill, *size[2:])
    strides = (*stride[:2], *(0,) * fill, *stride[2:])
    return library.numbers((*sizes, *strides, block))


@body("dual_encode", "CPU")
def dual_encode(x: Tensor, block: int, bits: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """LFC, codes and (offset, step) of every plane."""
    encode = library.function("dual_encode")
    if encode is None or x.dtype not in library.TYPES:
        return reference.dual_encode(x, block, bits, seed)
    lfc, codes, scale = code = reference.empty_code(x, block, bits, seed)
    if x.numel() == 0:
        return code
    low, high = seed_words(seed)
    left = encode(
        library.pointer(x), library.TYPES[x.dtype], geometry(x.shape, x.stride(), block), bits,
        c_uint32(low), c_uint32(high), *map(library.pointer, code),
    )  # fmt: skip
    return reference.dual_encode(x, block, bits, seed) if left else (lfc, codes, scale)


@body("dual_decode", "CPU")
def dual_decode(
    lfc: Tensor, codes: Tensor, scale: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    block: int, bits: int,
) -> Tensor:  # fmt: skip
    """``(step * code + offset) + LFC`` of each cell, held within the range of the dtype."""
    decode = library.function("dual_decode")
    if decode is None or dtype not in library.TYPES or prod(size) == 0:
        return reference.dual_decode(lfc, codes, scale, size, stride, dtype, block, bits)
    out = reference.empty_map(lfc, codes, scale, size, stride, dtype, block, bits)
    parts = [part.contiguous() for part in (lfc, codes, scale)]
    left = decode(
        library.pointer(out), library.TYPES[dtype], geometry(size, stride, block), bits,
        *map(library.pointer, parts),
    )  # fmt: skip
    return reference.dual_decode(lfc, codes, scale, size, stride, dtype, block, bits) if left else out
