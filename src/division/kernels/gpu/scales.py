"""Parameters of groups inside Triton kernels, and the pass over a tensor that finds them alone.

The offset and the step of a group, both bfloat16, are one int32 with the offset in its low half. Between the pass that
finds the parameters and the one that makes the codes, the sign of the step, which has none, says whether the floor of
the group's codes is 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from division.kernels.gpu.address import power_of_two
from division.kernels.gpu.lanes import GREATEST, LEAST, rank_of, settle
from division.kernels.gpu.launch import Launch
from division.kernels.gpu.rounding import of_bits, parameters, to_bf16, to_float32
from division.kernels.gpu.rows import RUNTIME, Rows, lanes_of, spots

_LOOPS = 8  # tiles of a part of a large group


@triton.jit
def store_scale(
    scale: tl.tensor, number: tl.tensor, live: tl.tensor, low: tl.tensor, high: tl.tensor, finite: tl.tensor,
    flag: tl.constexpr, bits: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Store the offset and the step of groups, and return what their codes are made with: base, scale and floor.

    Both are stored as one int32, the offset in its low half. flag: the sign of the step, which has none, says for the
    time being whether the floor is 1; that of a NaN too.
    """
    offset, step, base, inverse, floor = parameters(low, high, finite, 2**bits - 1)
    pair = (to_bf16(step).to(tl.int32) << 16) | (to_bf16(offset).to(tl.int32) & 0xFFFF)
    if flag:
        pair = tl.where(floor > 0.0, pair | LEAST, pair)
    tl.store(scale + number, pair, mask=live)
    return base, inverse, floor


@triton.jit
def load_scale(scale: tl.tensor, number: tl.tensor, there: tl.tensor) -> tuple[tl.tensor, ...]:
    """What codes are made with, by what :func:`store_scale` stored with flag."""
    pair = tl.load(scale + number, mask=there, other=0)
    step = of_bits(pair & 0x7FFF0000)
    known = (pair >= 0) & (step > 0.0)
    inverse = tl.where(known, tl.math.div_rn(1.0, tl.where(known, step, 1.0)), 0.0)
    return of_bits(pair << 16), inverse, tl.where(pair < 0, 1.0, 0.0)


@triton.jit(do_not_specialize=RUNTIME)
def ranges_kernel(
    x: tl.tensor, scale: tl.tensor, ranges: tl.tensor,
    group: tl.tensor, groups: tl.tensor, total: tl.tensor, parts: tl.tensor, programs: tl.tensor,
    elements: tl.tensor, block: tl.tensor, run: tl.tensor, runs: tl.tensor, rows: tl.tensor, lane_count: tl.tensor,
    steps: tl.tensor, lane_steps: tl.tensor, s_row: tl.tensor, s_run: tl.tensor,
    m0: tl.tensor, m1: tl.tensor, t0: tl.tensor, t1: tl.tensor, t2: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, n2: tl.tensor, s0: tl.tensor, s1: tl.tensor, s2: tl.tensor, s3: tl.tensor,
    whole: tl.constexpr, loops: tl.constexpr, bits: tl.constexpr,
    mode: tl.constexpr, lead: tl.constexpr, dims: tl.constexpr, wide: tl.constexpr, grain: tl.constexpr,
    lanes: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """The least and the greatest rank in one part of each lane's group: int32 ``[2, total, parts]``.

    whole: the part is the group; then its parameters are stored instead.
    """
    at, row, start, count, live, first = lanes_of(
        tl.program_id(0) % programs, elements, block, run, runs, rows, lane_count, steps, lane_steps, s_row, s_run,
        (m0, m1), (t0, t1, t2), mode, lead, grain, lanes,
    )  # fmt: skip
    part = tl.program_id(0) // programs
    least = tl.full((lanes, width), GREATEST, tl.int32)
    most = tl.full((lanes, width), LEAST, tl.int32)
    for loop in range(loops):
        e = (part * loops + loop) * width + tl.arange(0, width)
        there = live[:, None] & (e[None, :] < count[:, None])
        spot = spots(at, first, e, (n0, n1, n2), (s0, s1, s2, s3), mode, dims, wide)
        rank = rank_of(to_float32(tl.load(x + spot, mask=there, other=0)))
        least = tl.minimum(least, tl.where(there, rank, GREATEST))
        most = tl.maximum(most, tl.where(there, rank, LEAST))
    number = row * groups + start // group
    if whole:
        low, high, finite = settle(tl.min(least, 1), tl.max(most, 1))
        store_scale(scale, number, live, low, high, finite, True, bits)
    else:
        spot = number * parts + part
        tl.store(ranges + spot, tl.min(least, 1), mask=live)
        tl.store(ranges + (total.to(tl.int64) * parts + spot), tl.max(most, 1), mask=live)


@triton.jit(do_not_specialize=RUNTIME)
def merge_kernel(
    scale: tl.tensor, ranges: tl.tensor, total: tl.tensor, parts: tl.tensor,
    bits: tl.constexpr, loops: tl.constexpr, lanes: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """The parameters of some groups, from the ranges of their parts."""
    number = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    live = number < total
    least = tl.full((lanes, width), GREATEST, tl.int32)
    most = tl.full((lanes, width), LEAST, tl.int32)
    for loop in range(loops):
        part = loop * width + tl.arange(0, width)
        there = live[:, None] & (part < parts)[None, :]
        spot = number[:, None] * parts + part[None, :]
        least = tl.minimum(least, tl.load(ranges + spot, mask=there, other=GREATEST))
        most = tl.maximum(most, tl.load(ranges + (total.to(tl.int64) * parts + spot), mask=there, other=LEAST))
    low, high, finite = settle(tl.min(least, 1), tl.max(most, 1))
    store_scale(scale, number, live, low, high, finite, True, bits)


@triton.jit(do_not_specialize=["total"])
def clear_kernel(scale: tl.tensor, total: tl.tensor, block: tl.constexpr) -> None:
    """Take the sign off the steps."""
    number = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    tl.store(scale + number, tl.load(scale + number, mask=number < total, other=0) & GREATEST, mask=number < total)


def finding(
    x: Tensor, scale: Tensor, way: Rows, group: int, groups: int, total: int, width: int
) -> list[Launch]:  # fmt: skip
    """The launches that find the parameters of all groups, flagged.

    Args:
        x: not empty.
        scale: the pairs of its groups, int32.
        way: over x, whose blocks are groups.
        group: elements.
        groups: of a row.
        total: groups of all rows.
        width: bits of a code.
    """
    pieces = -(-group // way.width)
    loops = min(pieces, _LOOPS)
    parts = -(-pieces // loops)
    ranges = torch.empty((2, total, parts) if parts > 1 else (1,), dtype=torch.int32, device=x.device)
    counts = {"total": total, "parts": parts, "ranges": ranges, "scale": scale}
    arguments = {"x": x, "group": group, "groups": groups, "programs": way.programs, **counts}
    constants = {"whole": parts == 1, "loops": loops, "bits": width}
    launches = [way.launch(ranges_kernel, arguments, constants, parts)]
    if parts > 1:
        wide = min(power_of_two(parts), 1024)
        tile = {"bits": width, "loops": -(-parts // wide), "lanes": 1024 // wide, "width": wide}
        launches.append(Launch(merge_kernel, (-(-total * wide // 1024),), counts, tile))
    return launches


def clearing(scale: Tensor, total: int) -> Launch:
    """The launch that takes the flags of so many groups away."""
    return Launch(clear_kernel, (-(-total // 1024),), {"scale": scale, "total": total}, {"block": 1024})
