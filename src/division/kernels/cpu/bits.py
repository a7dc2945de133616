"""The exact ops of one and two bits an element on the CPU."""

import math
import struct
from collections.abc import Callable, Sequence
from ctypes import c_double
from functools import lru_cache

import torch
from torch import Tensor

from division.kernels.cpu import library
from division.kernels.cpu.strided import shape
from division.kernels.ops import body
from division.kernels.reference import bits as reference

_MASKS = {**library.TYPES, torch.bool: 3}


def _compiled(name: str, taken: bool, size: Sequence[int]) -> Callable[..., int] | None:
    """The compiled function where it takes these elements, and there are any."""
    return library.function(name) if taken and 0 not in size else None


def _finite(lo: float, hi: float) -> int:
    return math.isfinite(lo) + 2 * math.isfinite(hi)


@lru_cache(maxsize=1024)
def _elements(values: bytes, dtype: torch.dtype) -> Tensor:
    """The float64 numbers in ``values`` as elements of a dtype, each as ``fill_`` gives it."""
    numbers = struct.unpack(f"{len(values) // 8}d", values)
    return torch.cat([torch.full((1,), number, dtype=dtype, device="cpu") for number in numbers])


@body("bits_encode", "CPU")
def bits_encode(x: Tensor, lo: float, hi: float, closed_lo: bool, closed_hi: bool, nan_inside: bool) -> Tensor:
    """One bit an element, 1 inside the interval."""
    finite = _finite(lo, hi)
    encode = _compiled("bits_encode", finite > 0 and x.dtype in library.TYPES, x.shape)
    if encode is None:
        return reference.bits_encode(x, lo, hi, closed_lo, closed_hi, nan_inside)
    codes = x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)
    closed = closed_lo + 2 * closed_hi + 4 * nan_inside
    encode(
        library.pointer(x), library.TYPES[x.dtype], shape(x.shape, x.stride()), c_double(lo), c_double(hi), finite,
        closed, library.pointer(codes),
    )  # fmt: skip
    return codes


@body("bits_decode", "CPU")
def bits_decode(
    codes: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, inside: float, outside: float
) -> Tensor:
    """``inside`` where the bit is 1, ``outside`` where it is 0."""
    decode = _compiled("bits_decode", dtype in library.TYPES, size)
    if decode is None:
        return reference.bits_decode(codes, size, stride, dtype, inside, outside)
    return _decoded(decode, codes, size, stride, _elements(struct.pack("2d", outside, inside), dtype))


@body("interval_encode", "CPU")
def interval_encode(x: Tensor, lo: float, hi: float) -> Tensor:
    """Two bits an element: outside, inside, at a bound, NaN."""
    encode = _compiled("interval_encode", x.dtype in library.TYPES, x.shape)
    if encode is None:
        return reference.interval_encode(x, lo, hi)
    codes = x.new_empty(-(-x.numel() // 4), dtype=torch.uint8)
    encode(
        library.pointer(x), library.TYPES[x.dtype], shape(x.shape, x.stride()), c_double(lo), c_double(hi),
        _finite(lo, hi), library.pointer(codes),
    )  # fmt: skip
    return codes


@body("interval_decode", "CPU")
def interval_decode(
    codes: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, values: Sequence[float]
) -> Tensor:
    """One of four values for each element."""
    decode = _compiled("interval_decode", dtype in library.TYPES, size)
    if decode is None:
        return reference.interval_decode(codes, size, stride, dtype, values)
    return _decoded(decode, codes, size, stride, _elements(struct.pack("4d", *values), dtype))


@body("mask_encode", "CPU")
def mask_encode(x: Tensor) -> Tensor:
    """One bit an element, 1 where it is not zero."""
    encode = _compiled("mask_encode", x.dtype in _MASKS, x.shape)
    if encode is None:
        return reference.mask_encode(x)
    codes = x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)
    encode(library.pointer(x), _MASKS[x.dtype], shape(x.shape, x.stride()), library.pointer(codes))
    return codes


@body("mask_decode", "CPU")
def mask_decode(codes: Tensor, value: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """``value`` where the bit is 1, zero elsewhere."""
    decode = _compiled("mask_decode", value.dtype in _MASKS and value.device == codes.device, size)
    if decode is None:
        return reference.mask_decode(codes, value, size, stride)
    return _decoded(decode, codes, size, stride, value)


def _decoded(
    decode: Callable[..., int], codes: Tensor, size: Sequence[int], stride: Sequence[int], values: Tensor
) -> Tensor:
    """A tensor of elements chosen by ``codes`` among ``values``."""
    out = torch.empty_strided(size, stride, dtype=values.dtype, device=codes.device)
    codes = codes.contiguous()
    decode(
        library.pointer(codes), shape(size, stride), library.pointer(values), values.element_size(),
        library.pointer(out),
    )  # fmt: skip
    return out
