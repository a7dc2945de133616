"""Triton bodies of the mixed codec's ops, whose widths are known on the device alone.

Two reads of the tensor: the ranges of all groups, from which the widths and the parameters follow (the same operations
of torch as for every other body); then the codes, each lane in the width of its sample. Nothing waits for the device.
"""

from collections.abc import Sequence
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from division.kernels.gpu.address import power_of_two
from division.kernels.gpu.lanes import half_of, noise_of
from division.kernels.gpu.launch import Configuration, Launch, reference
from division.kernels.gpu.noise import high_half, low_half, row_key, seed_arguments
from division.kernels.gpu.rounding import of_bits, place, to_float32, to_stored
from division.kernels.gpu.rows import RUNTIME, Rows, lanes_of, rows_of, spots, within
from division.kernels.gpu.scales import load_scale, ranges_kernel
from division.kernels.reference.mixed import allot, empty_code, empty_samples
from division.kernels.reference.quantize import parameters, to_bf16

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_CHUNK = 128  # elements that a lane takes at a time
_LOOPS = 8  # tiles of a part of a group
_INFINITY = 0x7F800000


@triton.jit
def code_in(
    x: tl.tensor, there: tl.tensor, half: tl.tensor, base: tl.tensor, scale: tl.tensor, floor: tl.tensor, levels: tl.tensor
) -> tl.tensor:  # fmt: skip
    """The codes of elements, int32, 0 where there is none: as ``rounding.code_of`` makes those of 8 bits.

    levels: the greatest code of each lane, float32 ``[lanes, 1]``, up to 255.
    """
    known = scale > 0.0
    t = place(tl.where(known, x, 0.0), tl.where(known, base, 0.0), scale, floor, levels)
    fixed = tl.ceil(t * 131072.0).to(tl.int32)
    code = (fixed + ((half ^ 0xFFFF) << 1).to(tl.int32)) >> 17
    return tl.where(there, code, 0)


@triton.jit
def octets(codes: tl.tensor, bits: tl.tensor, lanes: tl.constexpr, width: tl.constexpr) -> tl.tensor:
    """Each eight codes of a half in one word, int64 ``[lanes, width / 16]``."""
    split = tl.reshape(codes, (lanes, width // 16, 8)).to(tl.int64)
    return tl.sum(split << (tl.arange(0, 8)[None, None, :] * bits[:, None, None]), 2)


@triton.jit(do_not_specialize=RUNTIME)
def mixed_encode_kernel(
    x: tl.tensor, codes: tl.tensor, scale: tl.tensor, widths: tl.tensor, begins: tl.tensor,
    seed_low: tl.tensor, seed_high: tl.tensor, group: tl.tensor, groups: tl.tensor,
    elements: tl.tensor, block: tl.tensor, run: tl.tensor, runs: tl.tensor, rows: tl.tensor, lane_count: tl.tensor,
    steps: tl.tensor, lane_steps: tl.tensor, s_row: tl.tensor, s_run: tl.tensor,
    m0: tl.tensor, m1: tl.tensor, t0: tl.tensor, t1: tl.tensor, t2: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, n2: tl.tensor, s0: tl.tensor, s1: tl.tensor, s2: tl.tensor, s3: tl.tensor,
    mode: tl.constexpr, lead: tl.constexpr, dims: tl.constexpr, wide: tl.constexpr, grain: tl.constexpr,
    lanes: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """The codes of one block of each lane, all of it in one group, whose flagged parameters are known."""
    at, row, start, count, live, first = lanes_of(
        tl.program_id(0), elements, block, run, runs, rows, lane_count, steps, lane_steps, s_row, s_run,
        (m0, m1), (t0, t1, t2), mode, lead, grain, lanes,
    )  # fmt: skip
    sizes, strides = (n0, n1, n2), (s0, s1, s2, s3)
    e, f = half_of(0, width), half_of(1, width)
    is_before, is_after = within(e, count, live, grain), within(f, count, live, grain)
    before = to_float32(tl.load(x + spots(at, first, e, sizes, strides, mode, dims, wide), mask=is_before, other=0))
    after = to_float32(tl.load(x + spots(at, first, f, sizes, strides, mode, dims, wide), mask=is_after, other=0))
    noise = noise_of(row_key(row, seed_low, seed_high), start, width)
    bits = tl.load(widths + row, mask=live, other=1).to(tl.int32)
    levels = ((1 << bits) - 1).to(tl.float32)[:, None]
    base, inverse, floor = load_scale(scale, row * groups + start // group, live)
    base, inverse, floor = base[:, None], inverse[:, None], floor[:, None]
    before = code_in(before, is_before, low_half(noise), base, inverse, floor, levels)
    after = code_in(after, is_after, high_half(noise), base, inverse, floor, levels)
    words = tl.join(octets(before, bits, lanes, width), octets(after, bits, lanes, width))
    m = tl.arange(0, 8)
    byte = tl.reshape(words, (lanes, width // 8, 1)) >> (m * 8)[None, None, :]
    octet = tl.arange(0, width // 8)
    there = within(octet * 8, count, live, grain)[:, :, None] & (m[None, None, :] < bits[:, None, None])
    to = codes + (tl.load(begins + row, mask=live, other=0) + start // 8 * bits)
    spot = octet[None, :, None] * bits[:, None, None] + m[None, None, :]
    tl.store(to[:, None, None] + spot, byte.to(tl.uint8), mask=there)


@triton.jit(do_not_specialize=RUNTIME)
def mixed_decode_kernel(
    codes: tl.tensor, scale: tl.tensor, widths: tl.tensor, begins: tl.tensor, out: tl.tensor,
    group: tl.tensor, groups: tl.tensor,
    elements: tl.tensor, block: tl.tensor, run: tl.tensor, runs: tl.tensor, rows: tl.tensor, lane_count: tl.tensor,
    steps: tl.tensor, lane_steps: tl.tensor, s_row: tl.tensor, s_run: tl.tensor,
    m0: tl.tensor, m1: tl.tensor, t0: tl.tensor, t1: tl.tensor, t2: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, n2: tl.tensor, s0: tl.tensor, s1: tl.tensor, s2: tl.tensor, s3: tl.tensor,
    mode: tl.constexpr, lead: tl.constexpr, dims: tl.constexpr, wide: tl.constexpr, grain: tl.constexpr,
    lanes: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """One block of each lane, all of it in one group."""
    at, row, start, count, live, first = lanes_of(
        tl.program_id(0), elements, block, run, runs, rows, lane_count, steps, lane_steps, s_row, s_run,
        (m0, m1), (t0, t1, t2), mode, lead, grain, lanes,
    )  # fmt: skip
    e = tl.arange(0, width)
    there = within(e, count, live, grain)
    bits = tl.load(widths + row, mask=live, other=1).to(tl.int32)[:, None]
    pair = tl.load(scale + (row * groups + start // group), mask=live, other=0)[:, None]
    of = codes + tl.load(begins + row, mask=live, other=0)
    bit = (e % 8)[None, :] * bits
    shift = bit % 8
    spot = of[:, None] + (start[:, None] // 8 + (e // 8)[None, :]) * bits + bit // 8
    packed = tl.load(spot, mask=there, other=0).to(tl.int32)
    packed |= tl.load(spot + 1, mask=there & (shift + bits > 8), other=0).to(tl.int32) << 8
    code = (packed >> shift) & ((1 << bits) - 1)
    value = code.to(tl.float32) * of_bits(pair & -0x10000) + of_bits(pair << 16)
    to = spots(at, first, e, (n0, n1, n2), (s0, s1, s2, s3), mode, dims, wide)
    tl.store(out + to, to_stored(value, out.dtype.element_ty), mask=there)


def _way(x: Tensor, group: int) -> Rows | None:
    """The way over samples by blocks that lie in one group each, and begin where a byte does."""
    elements = prod(x.shape[1:])
    block = min(_CHUNK, group & -group) if group < elements else min(_CHUNK, max(16, power_of_two(elements)))
    return rows_of(x.shape, x.stride(), 1, block, 16 if group >= elements else block, x.itemsize)


def _ranging(x: Tensor, group: int) -> tuple[Launch, Tensor] | None:
    """The launch that finds the ranks of all groups' least and greatest elements, by parts, and where it puts them."""
    elements = prod(x.shape[1:])
    group = min(group, elements)
    groups = -(-elements // group)
    over = rows_of(x.shape, x.stride(), 1, group, group, x.itemsize, loops=True)
    if over is None:
        return None
    pieces = -(-group // over.width)
    loops = min(pieces, _LOOPS)
    parts, total = -(-pieces // loops), x.shape[0] * groups
    ranks = torch.empty((2, x.shape[0], groups, parts), dtype=torch.int32, device=x.device)
    arguments = {
        "x": x, "scale": ranks, "ranges": ranks, "group": group, "groups": groups, "total": total, "parts": parts,
        "programs": over.programs,
    }  # fmt: skip
    return over.launch(ranges_kernel, arguments, {"whole": False, "loops": loops, "bits": 1}, parts), ranks


def _ranges(ranks: Tensor) -> tuple[Tensor, Tensor]:
    """Ranks of the parts to the least and the greatest of each group, float32 ``[samples, groups]``; or NaN."""
    least, most = ranks[0].amin(-1), ranks[1].amax(-1)
    finite = (least > -_INFINITY - 1) & (most < _INFINITY)
    low, high = (torch.where(finite, rank ^ ((rank >> 31) & 0x7FFFFFFF), 0x7FC00000) for rank in (least, most))
    return low.view(torch.float32), high.view(torch.float32)


def _settled(low: Tensor, high: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
    """Offset and step of each group as they are kept, and both as one int32, flagged as ``load_scale`` reads it."""
    levels = ((1 << widths.to(torch.int32)) - 1).to(torch.float32)[:, None]
    of = parameters(low, high, torch.isfinite(low), levels)
    scale = to_bf16(torch.stack(of.stored(), -1))
    pairs = scale.view(torch.int32).squeeze(-1)
    return scale, torch.where(of.constant, pairs | -(2**31), pairs)


def _begins(widths: Tensor, elements: int) -> Tensor:
    """The byte at which the codes of each sample begin, int64."""
    wide = widths.to(torch.int64)
    return (wide.cumsum(0) - wide) * -(-elements // 8)


def encoding(
    x: Tensor, codes: Tensor, pairs: Tensor, widths: Tensor, begins: Tensor, group: int, seed: int
) -> Launch | None:
    """The launch that makes the codes; None where no kernel takes the tensor."""
    way, elements = _way(x, group), prod(x.shape[1:])
    if way is None:
        return None
    low, high = seed_arguments(seed)
    group = min(group, elements)
    arguments = {
        "x": x, "codes": codes, "scale": pairs, "widths": widths, "begins": begins, "seed_low": low, "seed_high": high,
        "group": group, "groups": -(-elements // group),
    }  # fmt: skip
    return way.launch(mixed_encode_kernel, arguments, {})


def decoding(out: Tensor, codes: Tensor, pairs: Tensor, widths: Tensor, begins: Tensor, group: int) -> Launch | None:
    """The launch that decodes; None where no kernel takes the tensor."""
    way, elements = _way(out, group), prod(out.shape[1:])
    if way is None:
        return None
    group = min(group, elements)
    arguments = {
        "codes": codes, "scale": pairs, "widths": widths, "begins": begins, "out": out, "group": group,
        "groups": -(-elements // group),
    }  # fmt: skip
    return way.launch(mixed_decode_kernel, arguments, {})


def mixed_encode(x: Tensor, group: int, total: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, (offset, step) of every group and the width of every sample."""
    ranging = _ranging(x, group) if x.dtype in _DTYPES and x.numel() else None
    if ranging is None or _way(x, group) is None:
        return reference("mixed_encode")(x, group, total, seed)  # type: ignore[no-any-return]
    codes = empty_code(x, group, total, seed)[0]
    elements = prod(x.shape[1:])
    find, ranks = ranging
    find()
    low, high = _ranges(ranks)
    widths = allot(low, high, elements, group, total)
    scale, pairs = _settled(low, high, widths)
    launch = encoding(x, codes, pairs, widths, _begins(widths, elements), group, seed)
    assert launch is not None
    launch()
    return codes, scale, widths


def mixed_decode(
    codes: Tensor, scale: Tensor, widths: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, group: int
) -> Tensor:  # fmt: skip
    """``step * code + offset`` of each element, held within the range of the dtype."""
    out = empty_samples(codes, scale, widths, size, stride, dtype, group)
    if out.numel() == 0:
        return out
    launch = None
    if dtype in _DTYPES:
        whole = scale.contiguous()
        pairs = (whole.clone() if whole.storage_offset() % 2 else whole).view(torch.int32)
        launch = decoding(out, codes.contiguous(), pairs, widths, _begins(widths, prod(size[1:])), group)
    if launch is None:
        return reference("mixed_decode")(codes, scale, widths, size, stride, dtype, group)  # type: ignore[no-any-return]
    launch()
    return out


def configurations() -> list[Configuration]:
    """Maps, contiguous and in channels_last, and tokens."""
    map_, tokens = torch.empty(32, 64, 56, 56, device="meta"), torch.empty(8, 512, 768, device="meta")
    found: dict[str, Launch] = {}
    for x in (map_, map_.bfloat16().to(memory_format=torch.channels_last), tokens.half()):
        codes, scale, widths = empty_code(x, 256, 2 * x.shape[0], 0)
        begins, pairs = torch.empty(x.shape[0], dtype=torch.int64, device="meta"), scale.view(torch.int32)
        ranging = _ranging(x, 256)
        launches = [
            ranging and ranging[0], encoding(x, codes, pairs, widths, begins, 256, 0),
            decoding(x, codes, pairs, widths, begins, 256),
        ]  # fmt: skip
        what = f"{x.dtype} {tuple(x.shape)} {x.stride()}"
        found |= {f"{launch.kernel.__name__} {what}": launch for launch in launches if launch is not None}
    return [launch.configuration(name) for name, launch in found.items()]
