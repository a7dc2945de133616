"""Affine quantisation of rows with bfloat16 parameters, rounded so that decoding is unbiased.

For a row r and Q bits, in float32:

    offset = bf16 of min r, rounded down        step = bf16 of (max r - offset) / (2^Q - 1), rounded up
    t = (r - offset) * (1 / step)               code = floor(t) + [u < t - floor(t)]

The step is at least 2^-126, so that its inverse is finite. Codes are taken against the stored (rounded) parameters, so
E[step * code + offset] = r, and the top code reaches max r. A row of one value has step = value - offset and every
code 1. A row with a non-finite element, or whose parameters would exceed bfloat16's range, gets NaN parameters and
codes 0: it decodes to NaN as a whole.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from division.kernels.reference.packing import pack_small, unpack_small

_TINY = torch.finfo(torch.float32).tiny


class Quantized(NamedTuple):
    """Codes int32 ``[..., elements]`` and their float32 parameters ``[...]``, which are bfloat16 values."""

    codes: Tensor
    offset: Tensor
    step: Tensor


def round_down(x: Tensor) -> Tensor:
    """float32 to the next bfloat16 value below or equal, by integer operations; still float32."""
    bits = (x + 0.0).view(torch.int32)
    cut = bits & -0x10000
    return torch.where((bits < 0) & (cut != bits), cut + 0x10000, cut).view(torch.float32)


def round_up(x: Tensor) -> Tensor:
    """Non-negative float32 to the next bfloat16 value above or equal; still float32."""
    return ((x.view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)


def to_bf16(x: Tensor) -> Tensor:
    """bfloat16 of a float32 tensor that holds bfloat16 values: the upper half of the bits."""
    return (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)


def _number(value: float, device: torch.device) -> Tensor:
    """A divisor: a GPU multiplies by the inverse of one that is no tensor of its own."""
    return torch.full((), value, dtype=torch.float32, device=device)


class Parameters(NamedTuple):
    """Offset and step of rows, float32 that hold bfloat16 values; which rows have one value, and which decode to numbers."""

    offset: Tensor
    step: Tensor
    constant: Tensor
    finite: Tensor

    def stored(self) -> tuple[Tensor, Tensor]:
        """Offset and step as they are kept: NaN where the row decodes to NaN."""
        nan = _number(torch.nan, self.step.device)
        return torch.where(self.finite, self.offset, nan), torch.where(self.finite, self.step, nan)


def parameters(low: Tensor, high: Tensor, finite: Tensor, levels: int | Tensor) -> Parameters:
    """The parameters of rows by their least and greatest element.

    Args:
        low, high: float32 ``[...]``.
        finite: bool ``[...]``, False where the row is to decode to NaN.
        levels: the greatest code, ``2**bits - 1``; of all rows or of each.
    """
    offset = round_down(low)
    spread = high - offset + 0.0  # of a row of -0 it would be -0
    if isinstance(levels, int):
        levels = _number(levels, spread.device)
    step = round_up((spread / levels).clamp_min_(_TINY))
    whole = round_up(spread)
    constant = (high == low) & (whole == spread)
    step = torch.where(constant, whole, step)
    return Parameters(offset, step, constant, finite & torch.isfinite(step) & torch.isfinite(offset))


def spanning(low: Tensor, high: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The parameters, as bfloat16 values in float32, under which all from ``low`` to ``high`` has a code.

    Both NaN where the range isn't finite or exceeds bfloat16's.
    """
    offset = round_down(low)
    step = round_up(((high - offset + 0.0) / _number(2**bits - 1, low.device)).clamp_min(_TINY))
    finite = torch.isfinite(low) & torch.isfinite(high) & torch.isfinite(step) & torch.isfinite(offset)
    nan = _number(torch.nan, low.device)
    return torch.where(finite, offset, nan), torch.where(finite, step, nan)


def quantize(r: Tensor, finite: Tensor, bits: int, u: Tensor) -> Quantized:
    """Quantise along the last dim.

    Args:
        r: float32 ``[..., elements]``; overwritten.
        finite: bool ``[...]``, False where the row is to decode to NaN.
        bits: 1 to 16.
        u: noise in (0, 1), shape of ``r``; overwritten.
    """
    levels = 2**bits - 1
    of = parameters(*torch.aminmax(r, dim=-1), finite, levels)
    scale = torch.where(of.constant, 0.0, 1.0 / of.step)
    t = r.sub_(of.offset[..., None]).mul_(scale[..., None])
    t = torch.where((of.finite & ~of.constant)[..., None], t, of.constant.to(t.dtype)[..., None])
    floor = t.floor()
    codes = floor.to(torch.int32).add_(u < t.sub_(floor)).clamp_(0, levels)
    return Quantized(codes, *of.stored())


def code_bytes(elements: int, bits: int) -> int:
    """Bytes of one row of codes: ``ceil(elements * bits / 8)``."""
    return -(-elements * bits // 8)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Integer ``[rows, elements]`` to uint8 ``[rows, ceil(elements * bits / 8)]``, lowest bits first.

    Code ``e`` takes the bits ``e * bits`` to ``(e + 1) * bits`` of its row, counted from the lowest of each byte.
    """
    rows, elements = codes.shape
    if bits == 8:
        return codes.to(torch.uint8)
    if bits == 16:
        # A column alone counts as contiguous whatever its stride, which `view` then refuses.
        return torch.empty(codes.shape, dtype=torch.uint16, device=codes.device).copy_(codes).view(torch.uint8)
    if 8 % bits == 0:
        return pack_small(codes.to(torch.uint8), bits)
    digits = torch.stack([((codes >> i) & 1).to(torch.uint8) for i in range(bits)], -1)
    return pack_small(digits.view(rows, elements * bits), 1)


def unpack_codes(packed: Tensor, elements: int, bits: int) -> Tensor:
    """The inverse of :func:`pack_codes`: integers ``[rows, elements]`` in uint8, or int32 beyond 8 bits."""
    if bits == 8:
        return packed[:, :elements]
    if bits == 16:
        return packed[:, ::2].to(torch.int32) | packed[:, 1::2].to(torch.int32) << 8
    if 8 % bits == 0:
        return unpack_small(packed, bits, elements)
    digits = unpack_small(packed, 1, elements * bits).view(packed.shape[0], elements, bits)
    codes = digits[..., 0].to(torch.int32)
    for i in range(1, bits):
        codes |= digits[..., i].to(torch.int32) << i
    return codes
