"""Triton bodies of the ops of one and two bits an element: which side of a threshold, a mask, an interval.

Elements are compared as float32 (float64 as itself), which holds every value of the narrower types; bounds are
rounded to the tensor's own dtype first, as torch does it. Decoding writes the stored pattern of each value, so that
any dtype of 1, 2, 4 or 8 bytes comes back bit for bit. One read and one write, by the plans of ``address.py``.
"""

import math
import struct
from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from division.kernels.gpu.address import address, of_bytes, of_planes, plan, tile_of_planes
from division.kernels.gpu.launch import Configuration, Launch, reference
from division.kernels.gpu.rounding import INFINITY, to_float32

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MASKS = (*_FLOATS, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_PATTERNS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def threshold(pattern: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """A bound from the int64 pattern of its float64: exact, since it is rounded to the tensor's dtype."""
    return pattern.to(tl.int64).to(tl.float64, bitcast=True).to(kind)


@triton.jit
def state_of(
    raw: tl.tensor, lo: tl.tensor, hi: tl.tensor,
    kind: tl.constexpr, rule_lo: tl.constexpr, rule_hi: tl.constexpr, nan_inside: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The code of each element, int32. rule_lo and rule_hi: 0 for no bound, 1 for an open, 2 for a closed one."""
    if kind == "mask":
        return (raw != 0).to(tl.int32)
    if kind == "bfloat16 mask":
        return ((raw & 0x7FFF) != 0).to(tl.int32)
    x = raw if raw.dtype == tl.float64 else to_float32(raw)
    inside = tl.abs(x) <= INFINITY
    nan = inside == 0
    at_bound = nan
    if rule_lo != 0:
        bound = threshold(lo, x.dtype)
        inside = inside & ((x >= bound) if rule_lo == 2 else (x > bound))
        at_bound = at_bound | (x == bound)
    if rule_hi != 0:
        bound = threshold(hi, x.dtype)
        inside = inside & ((x <= bound) if rule_hi == 2 else (x < bound))
        at_bound = at_bound | (x == bound)
    if kind == "interval":
        return tl.where(nan, 3, tl.where(at_bound, 2, inside.to(tl.int32)))
    if nan_inside:
        inside = inside | nan
    return inside.to(tl.int32)


@triton.jit
def value_of(
    state: tl.tensor, one: tl.tensor, v0: tl.tensor, v1: tl.tensor, v2: tl.tensor, v3: tl.tensor,
    kind: tl.constexpr, dtype: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The stored pattern of what each code decodes to."""
    if kind == "mask":
        return tl.where(state != 0, tl.load(one), 0)
    value = tl.where(state == 1, v1.to(tl.int64).to(dtype), v0.to(tl.int64).to(dtype))
    if kind == "interval":
        value = tl.where(state == 2, v2.to(tl.int64).to(dtype), value)
        value = tl.where(state == 3, v3.to(tl.int64).to(dtype), value)
    return value


@triton.jit(do_not_specialize=["count", "lo", "hi"])
def encode_bytes_kernel(
    x: tl.tensor, codes: tl.tensor, count: tl.tensor, n0: tl.tensor, n1: tl.tensor, n2: tl.tensor, n3: tl.tensor,
    s0: tl.tensor, s1: tl.tensor, s2: tl.tensor, s3: tl.tensor, s4: tl.tensor, lo: tl.tensor, hi: tl.tensor,
    kind: tl.constexpr, rule_lo: tl.constexpr, rule_hi: tl.constexpr, nan_inside: tl.constexpr,
    dims: tl.constexpr, even: tl.constexpr, wide: tl.constexpr, per: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    """Some bytes of the code; the last program also takes the byte that isn't full."""
    sizes, strides = (n0, n1, n2, n3), (s0, s1, s2, s3, s4)
    byte = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    full = count // per
    lane = tl.arange(0, per)
    at = of_bytes(byte, sizes, strides, dims, even, wide, per)
    state = state_of(tl.load(x + at, mask=(byte < full)[:, None], other=0), lo, hi, kind, rule_lo, rule_hi, nan_inside)
    tl.store(codes + byte, tl.sum(state << (lane * (8 // per))[None, :], 1).to(tl.uint8), mask=byte < full)
    if (tl.program_id(0) == tl.num_programs(0) - 1) & (full * per < count):
        last = full.to(tl.int64) * per + lane
        rest = tl.load(x + address(last, sizes, strides, dims), mask=last < count, other=0)
        rest_state = tl.where(last < count, state_of(rest, lo, hi, kind, rule_lo, rule_hi, nan_inside), 0)
        tl.store(codes + full, tl.sum(rest_state << (lane * (8 // per)), 0).to(tl.uint8))


@triton.jit(do_not_specialize=["inner", "width", "n_outer", "steps", "lane_steps", "lo", "hi"])
def encode_planes_kernel(
    x: tl.tensor, codes: tl.tensor, runs: tl.tensor, inner: tl.tensor, width: tl.tensor,
    n_outer: tl.tensor, s_outer: tl.tensor, s_beyond: tl.tensor, steps: tl.tensor, lane_steps: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, s0: tl.tensor, s1: tl.tensor, s2: tl.tensor, lo: tl.tensor, hi: tl.tensor,
    kind: tl.constexpr, rule_lo: tl.constexpr, rule_hi: tl.constexpr, nan_inside: tl.constexpr,
    dims: tl.constexpr, together: tl.constexpr, per: tl.constexpr, block: tl.constexpr, lanes: tl.constexpr,
) -> None:  # fmt: skip
    """Some bytes of the code of some planes that lie side by side."""
    byte, run, outer = tile_of_planes(steps, lane_steps, block, lanes)
    live = (byte < width)[:, None] & (run < runs)[None, :]
    here = x + ((outer % n_outer) * s_outer + (outer // n_outer) * s_beyond)
    packed = tl.zeros((block, lanes), tl.int32)
    for k in tl.static_range(per):
        at = of_planes(byte * per + k, inner, (n0, n1), (s0, s1, s2), dims, together)
        raw = tl.load(here + (at[:, None] + (run * together)[None, :]), mask=live, other=0)
        packed |= state_of(raw, lo, hi, kind, rule_lo, rule_hi, nan_inside) << (k * (8 // per))
    to = ((outer * runs + run) * width)[None, :] + byte[:, None]
    tl.store(codes + to, packed.to(tl.uint8), mask=live)


@triton.jit(do_not_specialize=["count", "v0", "v1", "v2", "v3"])
def decode_bytes_kernel(
    codes: tl.tensor, one: tl.tensor, out: tl.tensor, count: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, n2: tl.tensor, n3: tl.tensor,
    s0: tl.tensor, s1: tl.tensor, s2: tl.tensor, s3: tl.tensor, s4: tl.tensor,
    v0: tl.tensor, v1: tl.tensor, v2: tl.tensor, v3: tl.tensor, kind: tl.constexpr,
    dims: tl.constexpr, even: tl.constexpr, wide: tl.constexpr, per: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    """The elements of some bytes of the code; the last program also takes the byte that isn't full."""
    sizes, strides = (n0, n1, n2, n3), (s0, s1, s2, s3, s4)
    stored = out.dtype.element_ty
    byte = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    full = count // per
    lane = tl.arange(0, per)
    shift = lane * (8 // per)
    packed = tl.load(codes + byte, mask=byte < full, other=0).to(tl.int32)
    state = (packed[:, None] >> shift[None, :]) & ((1 << (8 // per)) - 1)
    at = of_bytes(byte, sizes, strides, dims, even, wide, per)
    tl.store(out + at, value_of(state, one, v0, v1, v2, v3, kind, stored), mask=(byte < full)[:, None])
    if (tl.program_id(0) == tl.num_programs(0) - 1) & (full * per < count):
        last = full.to(tl.int64) * per + lane
        rest = (tl.load(codes + full).to(tl.int32) >> shift) & ((1 << (8 // per)) - 1)
        rest_at = address(last, sizes, strides, dims)
        tl.store(out + rest_at, value_of(rest, one, v0, v1, v2, v3, kind, stored), mask=last < count)


@triton.jit(do_not_specialize=["inner", "width", "n_outer", "steps", "lane_steps", "v0", "v1", "v2", "v3"])
def decode_planes_kernel(
    codes: tl.tensor, one: tl.tensor, out: tl.tensor, runs: tl.tensor, inner: tl.tensor, width: tl.tensor,
    n_outer: tl.tensor, s_outer: tl.tensor, s_beyond: tl.tensor, steps: tl.tensor, lane_steps: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, s0: tl.tensor, s1: tl.tensor, s2: tl.tensor,
    v0: tl.tensor, v1: tl.tensor, v2: tl.tensor, v3: tl.tensor, kind: tl.constexpr,
    dims: tl.constexpr, together: tl.constexpr, per: tl.constexpr, block: tl.constexpr, lanes: tl.constexpr,
) -> None:  # fmt: skip
    """The elements of some bytes of the code of some planes that lie side by side."""
    byte, run, outer = tile_of_planes(steps, lane_steps, block, lanes)
    live = (byte < width)[:, None] & (run < runs)[None, :]
    here = out + ((outer % n_outer) * s_outer + (outer // n_outer) * s_beyond)
    of = ((outer * runs + run) * width)[None, :] + byte[:, None]
    packed = tl.load(codes + of, mask=live, other=0).to(tl.int32)
    for k in tl.static_range(per):
        state = (packed >> (k * (8 // per))) & ((1 << (8 // per)) - 1)
        at = of_planes(byte * per + k, inner, (n0, n1), (s0, s1, s2), dims, together)
        value = value_of(state, one, v0, v1, v2, v3, kind, out.dtype.element_ty)
        tl.store(here + (at[:, None] + (run * together)[None, :]), value, mask=live)


@lru_cache(maxsize=1024)
def _bound(value: bytes, dtype: torch.dtype) -> int:
    """The float64 pattern of a bound as the dtype holds it; both given and returned as bits, which tell -0 from 0."""
    (number,) = struct.unpack("<d", value)
    held = torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype)
    return int(held.to(torch.float64).view(torch.int64))


@lru_cache(maxsize=1024)
def _pattern(value: bytes, dtype: torch.dtype) -> int:
    """The stored pattern of a value, given as the bits of its float64."""
    held = torch.full((), struct.unpack("<d", value)[0], dtype=dtype, device="cpu")
    return int(held.view(_PATTERNS[dtype.itemsize]))


def encoding(
    x: Tensor, codes: Tensor, kind: str, lo: float = -math.inf, hi: float = math.inf, closed_lo: bool = False,
    closed_hi: bool = False, nan_inside: bool = False,
) -> Launch | None:  # fmt: skip
    """The launch that writes the codes of ``x``, of kind bits, interval or mask; None where no kernel takes it."""
    finite = math.isfinite(lo), math.isfinite(hi)
    mask = kind == "mask"
    if x.numel() == 0 or x.dtype not in (_MASKS if mask else _FLOATS) or not (mask or any(finite)):
        return None
    where = plan(x.shape, x.stride(), 4 if kind == "interval" else 8, x.itemsize)
    if where is None:
        return None
    bounds = {name: _bound(struct.pack("<d", value), x.dtype) for name, value in (("lo", lo), ("hi", hi)) if not mask}
    constants = {
        "kind": "bfloat16 mask" if mask and x.dtype == torch.bfloat16 else kind,
        "rule_lo": finite[0] * (1 + closed_lo),
        "rule_hi": finite[1] * (1 + closed_hi),
        "nan_inside": int(nan_inside),
    }
    kernel = encode_planes_kernel if where.planes else encode_bytes_kernel
    arguments = {"x": x, "codes": codes, **where.arguments, "lo": 0, "hi": 0} | bounds
    return Launch(kernel, where.grid, arguments, constants | where.constants)


def decoding(
    codes: Tensor, out: Tensor, kind: str, values: Sequence[float], one: Tensor | None = None
) -> Launch | None:
    """The launch that fills ``out`` by its codes; None where no kernel takes it.

    Args:
        codes: as :func:`encoding` writes them.
        out: what is to be filled.
        kind: bits, interval or mask.
        values: what codes 0, 1, and so on decode to.
        one: for a mask, the element that a 1 decodes to.
    """
    if out.numel() == 0 or out.itemsize not in _PATTERNS or (one is not None and one.device != codes.device):
        return None
    where = plan(out.shape, out.stride(), 4 if kind == "interval" else 8, out.itemsize)
    if where is None:
        return None
    stored = _PATTERNS[out.itemsize]
    patterns = [_pattern(struct.pack("<d", value), out.dtype) for value in values]
    kernel = decode_planes_kernel if where.planes else decode_bytes_kernel
    arguments = {
        "codes": codes.contiguous(),
        "one": codes if one is None else one.reshape(1).view(stored),
        "out": out.view(stored),
        **where.arguments,
        **{f"v{i}": value for i, value in enumerate((patterns + [0] * 4)[:4])},
    }
    return Launch(kernel, where.grid, arguments, {"kind": kind} | where.constants)


def bits_encode(x: Tensor, lo: float, hi: float, closed_lo: bool, closed_hi: bool, nan_inside: bool) -> Tensor:
    """One bit an element, 1 inside the interval: uint8 ``(ceil(elements / 8),)``."""
    codes = x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)
    launch = encoding(x, codes, "bits", lo, hi, closed_lo, closed_hi, nan_inside)
    if launch is None:
        return reference("bits_encode")(x, lo, hi, closed_lo, closed_hi, nan_inside)  # type: ignore[no-any-return]
    launch()
    return codes


def bits_decode(
    codes: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, inside: float, outside: float
) -> Tensor:
    """``inside`` where the bit is 1, ``outside`` where it is 0, with this shape, these strides and this dtype."""
    out = torch.empty_strided(size, stride, dtype=dtype, device=codes.device)
    launch = decoding(codes, out, "bits", (outside, inside))
    if launch is None:
        return reference("bits_decode")(codes, size, stride, dtype, inside, outside)  # type: ignore[no-any-return]
    launch()
    return out


def interval_encode(x: Tensor, lo: float, hi: float) -> Tensor:
    """Two bits an element, uint8 ``(ceil(elements / 4),)``: 0 outside, 1 inside, 2 at a bound, 3 NaN."""
    codes = x.new_empty(-(-x.numel() // 4), dtype=torch.uint8)
    launch = encoding(x, codes, "interval", lo, hi)
    if launch is None:
        return reference("interval_encode")(x, lo, hi)  # type: ignore[no-any-return]
    launch()
    return codes


def interval_decode(
    codes: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, values: Sequence[float]
) -> Tensor:
    """One of four values for each element, by its two bits, with this shape, these strides and this dtype."""
    out = torch.empty_strided(size, stride, dtype=dtype, device=codes.device)
    launch = decoding(codes, out, "interval", values)
    if launch is None:
        return reference("interval_decode")(codes, size, stride, dtype, values)  # type: ignore[no-any-return]
    launch()
    return out


def mask_encode(x: Tensor) -> Tensor:
    """One bit an element, 1 where it is not zero: uint8 ``(ceil(elements / 8),)``."""
    codes = x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)
    launch = encoding(x, codes, "mask")
    if launch is None:
        return reference("mask_encode")(x)  # type: ignore[no-any-return]
    launch()
    return codes


def mask_decode(codes: Tensor, value: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """``value`` (one element) where the bit is 1, zero elsewhere, in the dtype of ``value``."""
    out = torch.empty_strided(size, stride, dtype=value.dtype, device=codes.device)
    launch = decoding(codes, out, "mask", (), value)
    if launch is None:
        return reference("mask_decode")(codes, value, size, stride)  # type: ignore[no-any-return]
    launch()
    return out


def configurations() -> list[Configuration]:
    """Maps in either layout, planes that are whole bytes and planes that aren't, and a strided view."""
    map_, odd = torch.empty(32, 64, 56, 56, device="meta"), torch.empty(32, 512, 7, 7, device="meta")
    last, odd = map_.to(memory_format=torch.channels_last), odd.to(memory_format=torch.channels_last)
    heads = torch.empty(8, 128, 12, 64, device="meta").transpose(1, 2)
    codes, true = map_.new_empty(1, dtype=torch.uint8), map_.new_empty(1, dtype=torch.bool)
    found = {
        f"bits_encode {map_.shape}": encoding(map_, codes, "bits", 0.0, nan_inside=True),
        f"bits_decode {map_.shape} bfloat16": decoding(codes, map_.bfloat16(), "bits", (0.0, 1.0)),
        f"bits_encode {last.shape} channels_last bfloat16": encoding(last.bfloat16(), codes, "bits", 0.0),
        f"bits_decode {last.shape} channels_last": decoding(codes, last, "bits", (0.0, 1.0)),
        f"interval_encode {odd.shape} channels_last": encoding(odd, codes, "interval", 0.0, 6.0),
        f"interval_decode {map_.shape}": decoding(codes, map_, "interval", (-1.0, 3.0, 0.0, math.nan)),
        f"mask_encode {map_.shape} bool": encoding(map_ > 0, codes, "mask"),
        f"mask_decode {heads.shape} {heads.stride()} bool": decoding(codes, heads > 0, "mask", (), true),
    }
    return [launch.configuration(name) for name, launch in found.items() if launch is not None]
