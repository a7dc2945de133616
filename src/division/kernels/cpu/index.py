"""Pooling indices as offsets inside their windows on the CPU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from division.kernels.cpu import library
from division.kernels.cpu.strided import shape
from division.kernels.ops import body
from division.kernels.reference import index as reference

_DIMS = 3


def _windows(
    size: Sequence[int], plane: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:  # fmt: skip
    """What the C++ struct ``Windows`` reads: three numbers of each setting, and whether the windows are adaptive."""
    fill, none = _DIMS - len(plane), [1] * len(plane)
    settings = ((plane, 1), (kernel, 1), (stride or none, 1), (padding or none, 0), (dilation or none, 1))
    rows = [(*(neutral,) * fill, *values) for values, neutral in settings]
    outputs = (*(1,) * fill, *size[len(size) - len(plane) :])
    return library.numbers((*(n for row in rows for n in row), *outputs, not stride))


@body("window_encode", "CPU")
def window_encode(
    index: Tensor, plane: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:  # fmt: skip
    """Flat indices into a plane as offsets inside their windows."""
    encode = library.function("window_encode")
    if encode is None or len(plane) > _DIMS or index.numel() == 0:
        return reference.window_encode(index, plane, kernel, stride, padding, dilation)
    bits = reference.window_bits(kernel)
    codes = index.new_empty(reference.code_count(index.numel(), bits), dtype=reference.code_dtype(bits))
    encode(
        library.pointer(index), shape(index.shape, index.stride()),
        _windows(index.shape, plane, kernel, stride, padding, dilation), bits, library.pointer(codes),
    )  # fmt: skip
    return codes


@body("window_decode", "CPU")
def window_decode(
    codes: Tensor, size: Sequence[int], strides: Sequence[int], plane: Sequence[int], kernel: Sequence[int],
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
) -> Tensor:  # fmt: skip
    """The flat indices that :func:`window_encode` coded."""
    decode = library.function("window_decode")
    if decode is None or len(plane) > _DIMS or 0 in size:
        return reference.window_decode(codes, size, strides, plane, kernel, stride, padding, dilation)
    index = torch.empty_strided(size, strides, dtype=torch.int64, device=codes.device)
    codes = codes.contiguous()
    decode(
        library.pointer(codes), shape(size, strides), _windows(size, plane, kernel, stride, padding, dilation),
        reference.window_bits(kernel), library.pointer(index),
    )  # fmt: skip
    return index
