"""Reference bodies: one bit an element, and small whole numbers packed several to a byte.

Elements are taken in row-major order of the shape, whatever the strides; the first of a byte sits in its low bits.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from division.kernels import ops
from division.kernels.reference.packing import pack_small, unpack_small

_CHUNK = 1 << 20  # elements worked on at a time: a multiple of 8


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same runs of elements of each, if all are contiguous; else the tensors whole."""
    if not all(t.is_contiguous() for t in tensors):
        yield tensors
        return
    for start in range(0, tensors[0].numel(), _CHUNK):
        yield tuple(t.view(-1)[start : start + _CHUNK] for t in tensors)


def _pack_bool(inside: Tensor) -> Tensor:
    return pack_small(inside.reshape(-1).view(torch.uint8), 1)


def _check_floating(x: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError(f"got dtype {x.dtype}, expected a floating one")


def _check_bits_encode(x: Tensor, lo: float, hi: float, closed_lo: bool, closed_hi: bool, nan_inside: bool) -> None:
    _check_floating(x)
    if math.isnan(lo) or math.isnan(hi) or (lo == -math.inf and hi == math.inf):
        raise ValueError(f"got the interval from {lo} to {hi}, expected at least one finite bound and no NaN")


@ops.define(
    "bits_encode(Tensor x, float lo, float hi, bool closed_lo, bool closed_hi, bool nan_inside) -> Tensor",
    _check_bits_encode,
)
def _(x: Tensor, lo: float, hi: float, closed_lo: bool, closed_hi: bool, nan_inside: bool) -> Tensor:
    return x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)


@ops.body("bits_encode")
def bits_encode(x: Tensor, lo: float, hi: float, closed_lo: bool, closed_hi: bool, nan_inside: bool) -> Tensor:
    """One bit an element, 1 inside the interval: uint8 ``(ceil(elements / 8),)``. An infinite bound bounds nothing."""
    above, below = (torch.ge if closed_lo else torch.gt), (torch.le if closed_hi else torch.lt)
    if nan_inside:  # ask for the outside, which NaN is not in
        above, below = (torch.lt if closed_lo else torch.le), (torch.gt if closed_hi else torch.ge)
    codes = []
    for (piece,) in _pieces(x):
        tests = [test(piece, bound) for test, bound in ((above, lo), (below, hi)) if math.isfinite(bound)]
        if nan_inside:
            tests = [test.logical_not_() for test in tests]
        codes.append(_pack_bool(tests[0] if len(tests) == 1 else tests[0].logical_and_(tests[1])))
    return torch.cat(codes) if codes else x.new_empty(0, dtype=torch.uint8)


def _check_codes(codes: Tensor, size: Sequence[int], bits: int = 1) -> None:
    expected = -(-math.prod(size) * bits // 8)
    if codes.dtype != torch.uint8 or tuple(codes.shape) != (expected,):
        raise ValueError(
            f"got codes of dtype {codes.dtype} and shape {tuple(codes.shape)}, expected uint8 ({expected},) "
            f"for a tensor of shape {tuple(size)}"
        )


def _check_bits_decode(
    codes: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, inside: float, outside: float
) -> None:
    _check_codes(codes, size)


@ops.define(
    "bits_decode(Tensor codes, SymInt[] size, SymInt[] stride, ScalarType dtype, float inside, float outside)"
    " -> Tensor",
    _check_bits_decode,
)
def _(
    codes: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, inside: float, outside: float
) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=codes.device)


@ops.body("bits_decode")
def bits_decode(
    codes: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, inside: float, outside: float
) -> Tensor:
    """``inside`` where the bit is 1, ``outside`` where it is 0, with this shape, these strides and this dtype."""
    x = torch.empty_strided(size, stride, dtype=dtype, device=codes.device).fill_(outside)
    return _fill_where(x, codes, torch.full((), inside, dtype=dtype, device=codes.device))


def _check_interval_encode(x: Tensor, lo: float, hi: float) -> None:
    _check_bits_encode(x, lo, hi, False, False, False)


@ops.define("interval_encode(Tensor x, float lo, float hi) -> Tensor", _check_interval_encode)
def _(x: Tensor, lo: float, hi: float) -> Tensor:
    return x.new_empty(-(-x.numel() // 4), dtype=torch.uint8)


@ops.body("interval_encode")
def interval_encode(x: Tensor, lo: float, hi: float) -> Tensor:
    """Two bits an element, uint8 ``(ceil(elements / 4),)``: 0 outside, 1 inside, 2 at a bound, 3 NaN.

    An infinite bound bounds nothing, and nothing is at it.
    """
    codes = []
    for (piece,) in _pieces(x):
        state = piece.isnan().view(torch.uint8) * 3
        inside = torch.ones_like(piece, dtype=torch.bool)
        for beyond, bound in ((torch.gt, lo), (torch.lt, hi)):
            if math.isfinite(bound):
                inside &= beyond(piece, bound)
                state |= (piece == bound).view(torch.uint8) << 1
            else:
                inside &= state == 0
        state |= inside.view(torch.uint8)
        codes.append(pack_small(state.reshape(-1), 2))
    return torch.cat(codes) if codes else x.new_empty(0, dtype=torch.uint8)


def _check_interval_decode(
    codes: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, values: Sequence[float]
) -> None:
    _check_codes(codes, size, 2)
    if len(values) != 4:
        raise ValueError(f"got {len(values)} values, expected 4: outside, inside, at a bound, NaN")


@ops.define(
    "interval_decode(Tensor codes, SymInt[] size, SymInt[] stride, ScalarType dtype, float[] values) -> Tensor",
    _check_interval_decode,
)
def _(codes: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, values: Sequence[float]) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=codes.device)


@ops.body("interval_decode")
def interval_decode(
    codes: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, values: Sequence[float]
) -> Tensor:
    """One of four values for each element, by its two bits, with this shape, these strides and this dtype."""
    x = torch.empty_strided(size, stride, dtype=dtype, device=codes.device).fill_(values[0])
    start = 0
    for (piece,) in _pieces(x):
        run = codes[start // 4 : -(-(start + piece.numel()) // 4)]
        state = unpack_small(run, 2, piece.numel()).view(piece.shape)
        for which in (1, 2, 3):
            piece.masked_fill_(state == which, values[which])
        start += piece.numel()
    return x


def _fill_where(x: Tensor, codes: Tensor, value: Tensor) -> Tensor:
    start = 0
    for (piece,) in _pieces(x):
        run = codes[start // 8 : -(-(start + piece.numel()) // 8)]
        piece.masked_fill_(unpack_small(run, 1, piece.numel()).view(torch.bool).view(piece.shape), value)
        start += piece.numel()
    return x


def _check_mask_encode(x: Tensor) -> None:
    if x.is_complex():
        raise TypeError(f"got dtype {x.dtype}, expected a real one")


@ops.define("mask_encode(Tensor x) -> Tensor", _check_mask_encode)
def _(x: Tensor) -> Tensor:
    return x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)


@ops.body("mask_encode")
def mask_encode(x: Tensor) -> Tensor:
    """One bit an element, 1 where it is not zero: uint8 ``(ceil(elements / 8),)``."""
    codes = [_pack_bool(piece if piece.dtype == torch.bool else piece != 0) for (piece,) in _pieces(x)]
    return torch.cat(codes) if codes else x.new_empty(0, dtype=torch.uint8)


def _check_mask_decode(codes: Tensor, value: Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
    _check_codes(codes, size)
    if value.numel() != 1:
        raise ValueError(f"got a value of shape {tuple(value.shape)}, expected one element")
    if value.device != codes.device:
        raise ValueError(f"got a value on {value.device} and codes on {codes.device}, expected one device")


@ops.define(
    "mask_decode(Tensor codes, Tensor value, SymInt[] size, SymInt[] stride) -> Tensor",
    _check_mask_decode,
)
def _(codes: Tensor, value: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    return torch.empty_strided(size, stride, dtype=value.dtype, device=codes.device)


@ops.body("mask_decode")
def mask_decode(codes: Tensor, value: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """``value`` (one element) where the bit is 1, zero elsewhere, in the dtype of ``value``."""
    x = torch.empty_strided(size, stride, dtype=value.dtype, device=codes.device).zero_()
    return _fill_where(x, codes, value.view(()))
