"""Triton bodies of the window ops: pooling indices as offsets inside their window, packed in few bits.

An index is taken to lie in its plane and its window, as those of a pooling op do; arithmetic is 32-bit then, but
for where elements lie. Planes and outputs too large for that, and more than three pooled dims, take the reference
bodies. The shape of the window is compiled in, the size of the planes isn't. Inside the kernels sizes go from the
innermost dim to the outermost.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from division.kernels.gpu.address import address, of_bytes, of_planes, plan, tile_of_planes
from division.kernels.gpu.launch import Configuration, Launch, reference
from division.kernels.reference.index import code_count, code_dtype, window_bits

_MOST = 3  # pooled dims
_LIMIT = (1 << 31) - (1 << 16)


@triton.jit
def start_of(
    o: tl.tensor, plane: tl.tensor, count: tl.tensor, stride: tl.constexpr, padding: tl.constexpr, d: tl.constexpr
) -> tl.tensor:
    """Where the window of output ``o`` of ``count`` begins along dim ``d``, int32. No strides: adaptive pooling."""
    if len(stride) == 0:
        return ((o * plane) // count).to(tl.int32)
    else:  # noqa: RET505 (the compiler goes on behind a return)
        return o.to(tl.int32) * stride[d] - padding[d]


@triton.jit
def offset_of(
    index: tl.tensor, position: tl.tensor, planes: tl.tuple, counts: tl.tuple,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, dilation: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Flat indices as offsets inside their windows, int32.

    ``position`` is the place of each output in its plane, int32, or that and any number of whole planes.
    """
    rest = index.to(tl.uint32)
    output = position.to(tl.uint32)
    offset = tl.zeros_like(rest).to(tl.int32)
    for d in tl.static_range(len(kernel)):
        plane, count = planes[d].to(tl.uint32), counts[d].to(tl.uint32)
        place = (rest % plane).to(tl.int32) - start_of(output % count, plane, count, stride, padding, d)
        if len(stride) > 0:
            place = place // dilation[d]
        for e in tl.static_range(d):
            place = place * kernel[e]
        offset += place
        rest = rest // plane
        output = output // count
    return offset


@triton.jit
def index_of(
    code: tl.tensor, position: tl.tensor, planes: tl.tuple, counts: tl.tuple,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, dilation: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The flat indices of which :func:`offset_of` gave the offsets, int64."""
    rest = code.to(tl.uint32)
    output = position.to(tl.uint32)
    index = tl.zeros_like(rest).to(tl.int64)
    for d in tl.static_range(len(kernel)):
        plane, count = planes[d].to(tl.uint32), counts[d].to(tl.uint32)
        place = (rest % kernel[d]).to(tl.int32)
        if len(stride) > 0:
            place = place * dilation[d]
        whole = (place + start_of(output % count, plane, count, stride, padding, d)).to(tl.int64)
        for e in tl.static_range(d):
            whole = whole * planes[e]
        index += whole
        rest = rest // kernel[d]
        output = output // count
    return index


@triton.jit
def low_bits(x: tl.tensor, bits: tl.constexpr) -> tl.tensor:
    """The lowest bits of an int32."""
    if bits < 32:
        x = x & ((1 << bits) - 1)
    return x


@triton.jit
def position_of(first: tl.tensor, counts: tl.tuple, kernel: tl.constexpr) -> tl.tensor:
    """The place in its plane of an output by its number, int64; int32."""
    outputs = first * 0 + 1
    for d in tl.static_range(len(kernel)):
        outputs = outputs * counts[d]
    return (first % outputs).to(tl.int32)


@triton.jit(do_not_specialize=["count", "p0", "p1", "p2", "c0", "c1", "c2"])
def encode_bytes_kernel(
    index: tl.tensor, codes: tl.tensor, count: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, n2: tl.tensor, n3: tl.tensor,
    s0: tl.tensor, s1: tl.tensor, s2: tl.tensor, s3: tl.tensor, s4: tl.tensor,
    p0: tl.tensor, p1: tl.tensor, p2: tl.tensor, c0: tl.tensor, c1: tl.tensor, c2: tl.tensor,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, dilation: tl.constexpr,
    dims: tl.constexpr, even: tl.constexpr, wide: tl.constexpr, per: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    """Some elements of the code; the last program also takes the byte that isn't full."""
    sizes, strides = (n0, n1, n2, n3), (s0, s1, s2, s3, s4)
    planes, counts = (p0, p1, p2), (c0, c1, c2)
    first = tl.program_id(0).to(tl.int64) * block
    local = tl.arange(0, block)
    lane = tl.arange(0, per)
    byte = first + local
    full = count // per
    at = of_bytes(byte, sizes, strides, dims, even, wide, per)
    found = tl.load(index + at, mask=(byte < full)[:, None], other=0)
    position = position_of(first * per, counts, kernel) + (local * per)[:, None] + lane[None, :]
    offset = offset_of(found, position, planes, counts, kernel, stride, padding, dilation)
    packed = tl.sum(offset << (lane * (8 // per))[None, :], 1)
    tl.store(codes + byte, packed.to(codes.dtype.element_ty), mask=byte < full)
    if (tl.program_id(0) == tl.num_programs(0) - 1) & (full * per < count):
        last = full.to(tl.int64) * per
        live = last + lane < count
        rest = tl.load(index + address(last + lane, sizes, strides, dims), mask=live, other=0)
        place = position_of(last, counts, kernel) + lane
        code = tl.where(live, offset_of(rest, place, planes, counts, kernel, stride, padding, dilation), 0)
        tl.store(codes + full, tl.sum(code << (lane * (8 // per)), 0).to(codes.dtype.element_ty))


@triton.jit(do_not_specialize=["inner", "width", "n_outer", "steps", "lane_steps", "p0", "p1", "p2", "c0", "c1", "c2"])
def encode_planes_kernel(
    index: tl.tensor, codes: tl.tensor, runs: tl.tensor, inner: tl.tensor, width: tl.tensor,
    n_outer: tl.tensor, s_outer: tl.tensor, s_beyond: tl.tensor, steps: tl.tensor, lane_steps: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, s0: tl.tensor, s1: tl.tensor, s2: tl.tensor,
    p0: tl.tensor, p1: tl.tensor, p2: tl.tensor, c0: tl.tensor, c1: tl.tensor, c2: tl.tensor,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, dilation: tl.constexpr,
    dims: tl.constexpr, together: tl.constexpr, per: tl.constexpr, block: tl.constexpr, lanes: tl.constexpr,
) -> None:  # fmt: skip
    """Some elements of the code of some planes that lie side by side."""
    byte, run, outer = tile_of_planes(steps, lane_steps, block, lanes)
    live = (byte < width)[:, None] & (run < runs)[None, :]
    here = index + ((outer % n_outer) * s_outer + (outer // n_outer) * s_beyond)
    packed = tl.zeros((block, lanes), tl.int32)
    for k in tl.static_range(per):
        e = byte * per + k
        at = of_planes(e, inner, (n0, n1), (s0, s1, s2), dims, together)
        found = tl.load(here + (at[:, None] + (run * together)[None, :]), mask=live, other=0)
        offset = offset_of(found, e[:, None], (p0, p1, p2), (c0, c1, c2), kernel, stride, padding, dilation)
        packed |= offset << (k * (8 // per))
    to = ((outer * runs + run) * width)[None, :] + byte[:, None]
    tl.store(codes + to, packed.to(codes.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["count", "p0", "p1", "p2", "c0", "c1", "c2"])
def decode_bytes_kernel(
    codes: tl.tensor, index: tl.tensor, count: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, n2: tl.tensor, n3: tl.tensor,
    s0: tl.tensor, s1: tl.tensor, s2: tl.tensor, s3: tl.tensor, s4: tl.tensor,
    p0: tl.tensor, p1: tl.tensor, p2: tl.tensor, c0: tl.tensor, c1: tl.tensor, c2: tl.tensor,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, dilation: tl.constexpr, bits: tl.constexpr,
    dims: tl.constexpr, even: tl.constexpr, wide: tl.constexpr, per: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    """The indices of some elements of the code; the last program also takes the byte that isn't full."""
    sizes, strides = (n0, n1, n2, n3), (s0, s1, s2, s3, s4)
    planes, counts = (p0, p1, p2), (c0, c1, c2)
    first = tl.program_id(0).to(tl.int64) * block
    local = tl.arange(0, block)
    lane = tl.arange(0, per)
    shift = lane * (8 // per)
    byte = first + local
    full = count // per
    packed = tl.load(codes + byte, mask=byte < full, other=0).to(tl.int32)
    code = low_bits(packed[:, None] >> shift[None, :], bits)
    position = position_of(first * per, counts, kernel) + (local * per)[:, None] + lane[None, :]
    at = of_bytes(byte, sizes, strides, dims, even, wide, per)
    found = index_of(code, position, planes, counts, kernel, stride, padding, dilation)
    tl.store(index + at, found, mask=(byte < full)[:, None])
    if (tl.program_id(0) == tl.num_programs(0) - 1) & (full * per < count):
        last = full.to(tl.int64) * per
        rest = low_bits(tl.load(codes + full).to(tl.int32) >> shift, bits)
        place = position_of(last, counts, kernel) + lane
        rest_found = index_of(rest, place, planes, counts, kernel, stride, padding, dilation)
        tl.store(index + address(last + lane, sizes, strides, dims), rest_found, mask=last + lane < count)


@triton.jit(do_not_specialize=["inner", "width", "n_outer", "steps", "lane_steps", "p0", "p1", "p2", "c0", "c1", "c2"])
def decode_planes_kernel(
    codes: tl.tensor, index: tl.tensor, runs: tl.tensor, inner: tl.tensor, width: tl.tensor,
    n_outer: tl.tensor, s_outer: tl.tensor, s_beyond: tl.tensor, steps: tl.tensor, lane_steps: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, s0: tl.tensor, s1: tl.tensor, s2: tl.tensor,
    p0: tl.tensor, p1: tl.tensor, p2: tl.tensor, c0: tl.tensor, c1: tl.tensor, c2: tl.tensor,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, dilation: tl.constexpr, bits: tl.constexpr,
    dims: tl.constexpr, together: tl.constexpr, per: tl.constexpr, block: tl.constexpr, lanes: tl.constexpr,
) -> None:  # fmt: skip
    """The indices of some elements of the code of some planes that lie side by side."""
    byte, run, outer = tile_of_planes(steps, lane_steps, block, lanes)
    live = (byte < width)[:, None] & (run < runs)[None, :]
    here = index + ((outer % n_outer) * s_outer + (outer // n_outer) * s_beyond)
    of = ((outer * runs + run) * width)[None, :] + byte[:, None]
    packed = tl.load(codes + of, mask=live, other=0).to(tl.int32)
    for k in tl.static_range(per):
        e = byte * per + k
        code = low_bits(packed >> (k * (8 // per)), bits)
        found = index_of(code, e[:, None], (p0, p1, p2), (c0, c1, c2), kernel, stride, padding, dilation)
        at = of_planes(e, inner, (n0, n1), (s0, s1, s2), dims, together)
        tl.store(here + (at[:, None] + (run * together)[None, :]), found, mask=live)


def launch_of(
    decode: bool, index: Tensor, codes: Tensor, plane: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> Launch | None:  # fmt: skip
    """The launch from indices to codes or back; None where no kernel takes it."""
    pooled = len(kernel)
    counts = tuple(index.shape[index.dim() - pooled :])
    if index.numel() == 0 or pooled > _MOST or len(plane) != pooled or len(counts) != pooled:
        return None
    moves = stride or plane
    far = (prod(plane), prod(counts), prod(kernel), *(c * m for c, m in zip(counts, moves, strict=True)))
    reach = (k * d for k, d in zip(kernel, dilation or [1] * pooled, strict=True))
    if max(*far, *reach, *padding, 0) >= _LIMIT or min(plane) < 1:
        return None
    bits = window_bits(kernel)
    where = plan(index.shape, index.stride(), 8 // bits if bits < 8 else 1, index.itemsize, prod(counts))
    if where is None:
        return None
    sizes: dict[str, Any] = {}
    for letter, numbers in (("p", plane), ("c", counts)):
        sizes |= {f"{letter}{d}": n for d, n in enumerate([*reversed(numbers), 1, 1][:_MOST])}
    shape = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    constants = {name: tuple(reversed(numbers)) for name, numbers in shape.items()} | where.constants
    if decode:
        which = decode_planes_kernel if where.planes else decode_bytes_kernel
        return Launch(
            which, where.grid, {"codes": codes, "index": index, **where.arguments, **sizes}, constants | {"bits": bits}
        )
    which = encode_planes_kernel if where.planes else encode_bytes_kernel
    return Launch(which, where.grid, {"index": index, "codes": codes, **where.arguments, **sizes}, constants)


def window_encode(
    index: Tensor, plane: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:  # fmt: skip
    """Flat indices into a plane as offsets inside their windows, in row-major order of the window and of the shape."""
    bits = window_bits(kernel)
    codes = index.new_empty(code_count(index.numel(), bits), dtype=code_dtype(bits))
    launch = launch_of(False, index, codes, plane, kernel, stride, padding, dilation)
    if launch is None:
        return reference("window_encode")(index, plane, kernel, stride, padding, dilation)  # type: ignore[no-any-return]
    launch()
    return codes


def window_decode(
    codes: Tensor, size: Sequence[int], strides: Sequence[int], plane: Sequence[int], kernel: Sequence[int],
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
) -> Tensor:  # fmt: skip
    """The flat indices that :func:`window_encode` coded: int64, with this shape and these strides."""
    index = torch.empty_strided(size, strides, dtype=torch.int64, device=codes.device)
    launch = launch_of(True, index, codes.contiguous(), plane, kernel, stride, padding, dilation)
    if launch is None:
        again = reference("window_decode")
        return again(codes, size, strides, plane, kernel, stride, padding, dilation)  # type: ignore[no-any-return]
    launch()
    return index


def configurations() -> list[Configuration]:
    """ResNet's pooling and adaptive pooling, in both layouts."""
    strided, adaptive = ((112, 112), (3, 3), (2, 2), (1, 1), (1, 1)), ((112, 112), (2, 2), (), (), ())
    index = torch.empty(32, 64, 56, 56, dtype=torch.int64, device="meta")
    codes = index.new_empty(1, dtype=torch.uint8)
    last = index.to(memory_format=torch.channels_last)
    found = {
        "window_encode": launch_of(False, index, codes, *strided),
        "window_decode adaptive": launch_of(True, index, codes, *adaptive),
        "window_encode channels_last adaptive": launch_of(False, last, codes, *adaptive),
        "window_decode channels_last": launch_of(True, last, codes, *strided),
    }
    return [launch.configuration(f"{name} {index.shape}") for name, launch in found.items() if launch is not None]
