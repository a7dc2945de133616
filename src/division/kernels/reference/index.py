"""Reference bodies: pooling indices as offsets inside their window, packed in few bits."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from division.kernels import ops
from division.kernels.reference.packing import pack_small, unpack_small

_CHUNK = 1 << 18  # elements turned into int64 at a time
_STORED = {16: torch.int16, 32: torch.int32}


_WIDTHS = (1, 2, 4, 8, 16, 32)


def window_bits(kernel: Sequence[int]) -> int:
    """Bits an offset inside a window of this size takes: the fewest of 1, 2, 4, 8, 16, 32 that hold it."""
    return next(bits for bits in _WIDTHS if math.prod(kernel) <= 1 << bits)


def code_count(count: int, bits: int) -> int:
    """Elements of the code tensor for ``count`` offsets: bytes up to 8 bits, one an offset above."""
    return -(-count * bits // 8) if bits < 8 else count


def code_dtype(bits: int) -> torch.dtype:
    """The dtype of the code tensor."""
    return _STORED.get(bits, torch.uint8)


def _check(
    size: Sequence[int], plane: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> None:  # fmt: skip
    if not kernel or min(kernel) < 1 or math.prod(kernel) > 1 << _WIDTHS[-1]:
        most = f"of 2^{_WIDTHS[-1]} cells at most"
        raise ValueError(f"got kernel {tuple(kernel)}, expected one size of 1 or more for each pooled dim, {most}")
    if len(plane) != len(kernel) or len(size) < len(kernel) or min(plane) < 1:
        raise ValueError(
            f"got indices of shape {tuple(size)} into a plane {tuple(plane)}, expected {len(kernel)} pooled dims in "
            f"both, as in kernel {tuple(kernel)}, and a plane of 1 or more cells each"
        )
    settings = (stride, padding, dilation)
    if any(len(setting) != (len(kernel) if stride else 0) for setting in settings):
        raise ValueError(
            f"got stride {tuple(stride)}, padding {tuple(padding)} and dilation {tuple(dilation)}, "
            f"expected {len(kernel)} numbers each, as in kernel {tuple(kernel)}, or none at all for adaptive windows"
        )
    if stride and (min(*stride, *padding) < 0 or min(dilation) < 1):
        raise ValueError(
            f"got stride {tuple(stride)}, padding {tuple(padding)} and dilation {tuple(dilation)}, "
            "expected 0 or more, 0 or more, and 1 or more"
        )


def _check_encode(
    index: Tensor,
    plane: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> None:
    _check(index.shape, plane, kernel, stride, padding, dilation)
    if index.dtype != torch.int64:
        raise ValueError(f"got indices of dtype {index.dtype}, expected torch.int64")


@ops.define(
    "window_encode(Tensor index, int[] plane, int[] kernel, int[] stride, int[] padding, int[] dilation) -> Tensor",
    _check_encode,
)
def _(
    index: Tensor,
    plane: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    bits = window_bits(kernel)
    return index.new_empty(code_count(index.numel(), bits), dtype=code_dtype(bits))


@ops.body("window_encode")
def window_encode(
    index: Tensor,
    plane: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Flat indices into a plane as offsets inside their windows, in row-major order of the window and of the shape.

    Without strides the windows are those of adaptive pooling: output o of O starts at ``floor(o * size / O)``.
    """
    bits = window_bits(kernel)
    offsets = index.new_empty(index.shape, dtype=code_dtype(bits))
    starts = _starts(index.shape, plane, stride, padding, index.device)
    steps = dilation or [1] * len(plane)
    for whole, coded in _by_first_dim(index, offsets, index.dim() - len(plane)):
        rest, offset, scale = whole, torch.zeros_like(whole), 1
        for d in reversed(range(len(plane))):
            place = rest.remainder(plane[d]).sub_(starts[d]).div_(steps[d], rounding_mode="floor")
            offset.add_(place, alpha=scale)
            rest = rest.div(plane[d], rounding_mode="floor")
            scale *= kernel[d]
        coded.copy_(offset)
    return pack_small(offsets.view(-1), bits) if bits < 8 else offsets.view(-1)


def _check_decode(
    codes: Tensor,
    size: Sequence[int],
    strides: Sequence[int],
    plane: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> None:
    _check(size, plane, kernel, stride, padding, dilation)
    bits = window_bits(kernel)
    expected = code_count(math.prod(size), bits)
    if codes.dtype != code_dtype(bits) or tuple(codes.shape) != (expected,):
        raise ValueError(
            f"got codes of dtype {codes.dtype} and shape {tuple(codes.shape)}, expected {code_dtype(bits)} "
            f"({expected},) for indices of shape {tuple(size)}"
        )


@ops.define(
    "window_decode(Tensor codes, SymInt[] size, SymInt[] strides, int[] plane, int[] kernel, int[] stride, "
    "int[] padding, int[] dilation) -> Tensor",
    _check_decode,
)
def _(
    codes: Tensor,
    size: Sequence[int],
    strides: Sequence[int],
    plane: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    return torch.empty_strided(size, strides, dtype=torch.int64, device=codes.device)


@ops.body("window_decode")
def window_decode(
    codes: Tensor,
    size: Sequence[int],
    strides: Sequence[int],
    plane: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """The flat indices that :func:`window_encode` coded: int64, with this shape and these strides."""
    bits = window_bits(kernel)
    index = torch.empty_strided(size, strides, dtype=torch.int64, device=codes.device)
    offsets = (unpack_small(codes, bits, index.numel()) if bits < 8 else codes).view(index.shape)
    starts = _starts(index.shape, plane, stride, padding, index.device)
    steps = dilation or [1] * len(plane)
    for whole, coded in _by_first_dim(index, offsets, index.dim() - len(plane)):
        rest = coded.to(torch.int64).bitwise_and_((1 << bits) - 1)
        whole.zero_()
        scale = 1
        for d in reversed(range(len(plane))):
            place = rest.remainder(kernel[d]).mul_(steps[d]).add_(starts[d])
            whole.add_(place, alpha=scale)
            rest = rest.div(kernel[d], rounding_mode="floor")
            scale *= plane[d]
    return index


def _starts(
    shape: Sequence[int], plane: Sequence[int], stride: Sequence[int], padding: Sequence[int], device: torch.device
) -> list[Tensor]:
    """Where each output's window starts along each pooled dim, shaped to broadcast against the indices."""
    starts = []
    for d, size in enumerate(plane):
        count = shape[len(shape) - len(plane) + d]
        out = torch.arange(count, device=device)
        start = out * stride[d] - padding[d] if stride else (out * size).div(max(count, 1), rounding_mode="floor")
        starts.append(start.view(-1, *[1] * (len(plane) - 1 - d)))
    return starts


def _by_first_dim(index: Tensor, offsets: Tensor, leading: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same slices of both along the first dim, if it isn't a pooled one: a bounded number of elements each."""
    if index.numel() <= _CHUNK or leading < 1:
        yield index, offsets
        return
    rows = max(1, _CHUNK * index.shape[0] // index.numel())
    yield from zip(index.split(rows), offsets.split(rows), strict=True)
