"""Triton bodies of the group codec's ops.

A group that fits is read once: a tile holds whole groups, from their range to their codes. Two reads of the tensor
are needed for groups too large for a tile (more than 16384 elements; 2048 or less where lines of memory go across
many rows or channels), and for those of a size that isn't a multiple of 16, if a row has several, since bytes and
noise then straddle them: first the parameters of all groups, by parts of 8 tiles for the large ones, whose ranges
take 8 bytes a part, then the codes. Between the two, the sign of a step marks groups of one value.

One launch takes all rows of one width; where each index of dim 0 has its own, neighbours of one width.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import gcd, prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from division.kernels.gpu.address import power_of_two
from division.kernels.gpu.lanes import encode, half_of, load_codes, noise_of, range_of, settle, store_codes
from division.kernels.gpu.launch import Configuration, Launch, reference
from division.kernels.gpu.noise import high_half, low_half, row_key, seed_arguments
from division.kernels.gpu.rounding import of_bits, to_float32, to_stored
from division.kernels.gpu.rows import RUNTIME, Rows, lanes_of, rows_of, spots, within
from division.kernels.gpu.scales import clearing, finding, load_scale, store_scale
from division.kernels.reference.group import empty_code, empty_rows
from division.kernels.reference.quantize import code_bytes

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_CHUNK = 128  # elements that a lane takes at a time where a block is no group


@triton.jit
def group_of(
    row: tl.tensor, start: tl.tensor, e: tl.tensor, group: tl.tensor, groups: tl.tensor, wide: tl.constexpr
) -> tl.tensor:
    """The number of the group in which each element of a tile lies, int64 ``[lanes, width]``."""
    if not wide:
        start = start.to(tl.int32)
    return row[:, None] * groups + (start[:, None] + e[None, :]) // group


@triton.jit(do_not_specialize=RUNTIME)
def encode_kernel(
    x: tl.tensor, codes: tl.tensor, scale: tl.tensor,
    first_row: tl.tensor, seed_low: tl.tensor, seed_high: tl.tensor,
    group: tl.tensor, groups: tl.tensor, row_bytes: tl.tensor,
    elements: tl.tensor, block: tl.tensor, run: tl.tensor, runs: tl.tensor, rows: tl.tensor, lane_count: tl.tensor,
    steps: tl.tensor, lane_steps: tl.tensor, s_row: tl.tensor, s_run: tl.tensor,
    m0: tl.tensor, m1: tl.tensor, t0: tl.tensor, t1: tl.tensor, t2: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, n2: tl.tensor, s0: tl.tensor, s1: tl.tensor, s2: tl.tensor, s3: tl.tensor,
    known: tl.constexpr, align: tl.constexpr, bits: tl.constexpr, span: tl.constexpr,
    mode: tl.constexpr, lead: tl.constexpr, dims: tl.constexpr, wide: tl.constexpr, grain: tl.constexpr,
    lanes: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """The codes of one block of each lane.

    known: 0 where a block is a group, whose range is found here; 1 where all of a block lies in one group, and 2 where
    each element's group is looked up, whose parameters are stored.
    """
    at, row, start, count, live, first = lanes_of(
        tl.program_id(0), elements, block, run, runs, rows, lane_count, steps, lane_steps, s_row, s_run,
        (m0, m1), (t0, t1, t2), mode, lead, grain, lanes,
    )  # fmt: skip
    sizes, strides = (n0, n1, n2), (s0, s1, s2, s3)
    e, f = half_of(0, width), half_of(1, width)
    is_before, is_after = within(e, count, live, grain), within(f, count, live, grain)
    before = to_float32(tl.load(x + spots(at, first, e, sizes, strides, mode, dims, wide), mask=is_before, other=0))
    after = to_float32(tl.load(x + spots(at, first, f, sizes, strides, mode, dims, wide), mask=is_after, other=0))
    noise = noise_of(row_key(row + first_row, seed_low, seed_high), start, width)
    if known == 2:
        base, inverse, floor = load_scale(scale, group_of(row, start, e, group, groups, wide), is_before)
        before = encode(before, is_before, low_half(noise), base, inverse, floor, bits)
        base, inverse, floor = load_scale(scale, group_of(row, start, f, group, groups, wide), is_after)
        after = encode(after, is_after, high_half(noise), base, inverse, floor, bits)
    else:
        number = row * groups + start // group
        if known == 1:
            base, inverse, floor = load_scale(scale, number, live)
        else:
            least, most = range_of(before, after, is_before, is_after)
            low, high, finite = settle(least, most)
            base, inverse, floor = store_scale(scale, number, live, low, high, finite, False, bits)
        base, inverse, floor = base[:, None], inverse[:, None], floor[:, None]
        before = encode(before, is_before, low_half(noise), base, inverse, floor, bits)
        after = encode(after, is_after, high_half(noise), base, inverse, floor, bits)
    to = tl.multiple_of(row * row_bytes + start * bits // 8, align)
    store_codes(codes + to, before, after, count, live, grain, bits, span, lanes, width)


@triton.jit(do_not_specialize=RUNTIME)
def decode_kernel(
    codes: tl.tensor, scale: tl.tensor, out: tl.tensor,
    group: tl.tensor, groups: tl.tensor, row_bytes: tl.tensor,
    elements: tl.tensor, block: tl.tensor, run: tl.tensor, runs: tl.tensor, rows: tl.tensor, lane_count: tl.tensor,
    steps: tl.tensor, lane_steps: tl.tensor, s_row: tl.tensor, s_run: tl.tensor,
    m0: tl.tensor, m1: tl.tensor, t0: tl.tensor, t1: tl.tensor, t2: tl.tensor,
    n0: tl.tensor, n1: tl.tensor, n2: tl.tensor, s0: tl.tensor, s1: tl.tensor, s2: tl.tensor, s3: tl.tensor,
    known: tl.constexpr, align: tl.constexpr, bits: tl.constexpr, reach: tl.constexpr,
    mode: tl.constexpr, lead: tl.constexpr, dims: tl.constexpr, wide: tl.constexpr, grain: tl.constexpr,
    lanes: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """One block of each lane. known as for encoding; reach is how many bytes the bits of a code may lie in."""
    at, row, start, count, live, first = lanes_of(
        tl.program_id(0), elements, block, run, runs, rows, lane_count, steps, lane_steps, s_row, s_run,
        (m0, m1), (t0, t1, t2), mode, lead, grain, lanes,
    )  # fmt: skip
    e = tl.arange(0, width)
    there = within(e, count, live, grain)
    if known == 2:
        pair = tl.load(scale + group_of(row, start, e, group, groups, wide), mask=there, other=0)
    else:
        pair = tl.load(scale + (row * groups + start // group), mask=live, other=0)[:, None]
    of = codes + tl.multiple_of(row * row_bytes + start * bits // 8, align)
    code = load_codes(of, count, live, grain, bits, reach, lanes, width)
    value = code.to(tl.float32) * of_bits(pair & -0x10000) + of_bits(pair << 16)
    spot = spots(at, first, e, (n0, n1, n2), (s0, s1, s2, s3), mode, dims, wide)
    tl.store(out + spot, to_stored(value, out.dtype.element_ty), mask=there)


def _pieces(x: Tensor, lead: int, bits: Sequence[int]) -> Iterator[tuple[Tensor, int, int, int]]:
    """Parts of ``x`` whose rows share a width: the part, the number of its first row, the width, its first byte."""
    if len(bits) == 1:
        yield x, 0, bits[0], 0
        return
    elements, rows = prod(x.shape[lead:]), prod(x.shape[1:lead])
    first = byte = 0
    for width, same in groupby(bits):
        count = len(list(same))
        yield x[first : first + count], first * rows, width, byte
        first += count
        byte += count * rows * code_bytes(elements, width)


def by_chunks(x: Tensor, lead: int, group: int) -> tuple[Rows | None, int]:
    """The way over rows where a block is no group, and how a block's group is known."""
    elements = prod(x.shape[lead:])
    alike = group & -group
    if group < elements and alike >= 16:
        block = min(_CHUNK, alike)
        return rows_of(x.shape, x.stride(), lead, block, block, x.itemsize), 1
    block = min(_CHUNK, max(16, power_of_two(elements)))
    return rows_of(x.shape, x.stride(), lead, block, 16, x.itemsize), 1 if group >= elements else 2


def alignment(way: Rows, width: int) -> int:
    """What the byte at which a block's codes begin is a multiple of, up to 16."""
    elements, block, run = (way.arguments[name] for name in ("elements", "block", "run"))
    starts = (block, run) if elements > block else ()
    return gcd(code_bytes(elements, width), *(start * width // 8 for start in starts), 16)


def encoding(
    x: Tensor, codes: Tensor, scale: Tensor, lead: int, group: int, width: int, seed: int, first_row: int = 0
) -> list[Launch] | None:
    """The launches that encode rows of one width; None where no kernel takes them.

    Args:
        x: not empty.
        codes: of these rows.
        scale: of these rows, a pair as int32.
        lead: as the op takes it.
        group: elements, at most a row's.
        width: bits of a code.
        seed: as the op takes it.
        first_row: the number of the first of these rows.
    """
    elements, rows = prod(x.shape[lead:]), prod(x.shape[:lead])
    groups = -(-elements // group)
    row_bytes = code_bytes(elements, width)
    low, high = seed_arguments(seed)
    arguments = {
        "x": x, "codes": codes, "scale": scale, "first_row": first_row, "seed_low": low, "seed_high": high,
        "group": group, "groups": groups, "row_bytes": row_bytes,
    }  # fmt: skip
    way, known = None, 0
    if groups == 1 or group % 16 == 0:
        way = rows_of(x.shape, x.stride(), lead, group, group, x.itemsize)
    before: list[Launch] = []
    after: list[Launch] = []
    if way is None:
        way, known = by_chunks(x, lead, group)
        over = rows_of(x.shape, x.stride(), lead, group, group, x.itemsize, loops=True)
        if way is None or over is None:
            return None
        before = finding(x, scale, over, group, groups, rows * groups, width)
        after = [clearing(scale, rows * groups)]
    constants = {"known": known, "align": alignment(way, width), "bits": width, "span": power_of_two(width)}
    return [*before, way.launch(encode_kernel, arguments, constants), *after]


def decoding(out: Tensor, codes: Tensor, scale: Tensor, lead: int, group: int, width: int) -> Launch | None:
    """The launch that decodes rows of one width; None where no kernel takes them."""
    elements = prod(out.shape[lead:])
    way, known = by_chunks(out, lead, group)
    if way is None:
        return None
    arguments = {
        "codes": codes, "scale": scale, "out": out, "group": group, "groups": -(-elements // group),
        "row_bytes": code_bytes(elements, width),
    }  # fmt: skip
    bytes_ = (8 - gcd(width, 8) + width + 7) // 8
    constants = {"known": known, "align": alignment(way, width), "bits": width, "reach": bytes_}
    return way.launch(decode_kernel, arguments, constants)


def group_encode(x: Tensor, lead: int, group: int, bits: Sequence[int], seed: int) -> tuple[Tensor, Tensor]:
    """Codes and (offset, step) of every group."""
    codes, scale = empty_code(x, lead, group, bits, seed)
    if x.numel() == 0:
        return codes, scale
    launches: list[Launch] = []
    pairs = scale.view(torch.int32)
    for piece, row, width, byte in _pieces(x, lead, bits):
        found = None
        if x.dtype in DTYPES:
            found = encoding(
                piece, codes[byte:], pairs[row:], lead, min(group, prod(x.shape[lead:])), width, seed, row
            )  # fmt: skip
        if found is None:
            return reference("group_encode")(x, lead, group, bits, seed)  # type: ignore[no-any-return]
        launches += found
    for launch in launches:
        launch()
    return codes, scale


def group_decode(
    codes: Tensor, scale: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, lead: int,
    group: int, bits: Sequence[int],
) -> Tensor:  # fmt: skip
    """``step * code + offset`` of each element, held within the range of the dtype."""
    out = empty_rows(codes, scale, size, stride, dtype, lead, group, bits)
    if out.numel() == 0:
        return out
    codes, scale = codes.contiguous(), scale.contiguous()
    pairs = (scale.clone() if scale.storage_offset() % 2 else scale).view(torch.int32)
    launches: list[Launch] = []
    for piece, row, width, byte in _pieces(out, lead, bits):
        found = None
        if dtype in DTYPES:
            found = decoding(piece, codes[byte:], pairs[row:], lead, min(group, prod(size[lead:])), width)
        if found is None:
            return reference("group_decode")(codes, scale, size, stride, dtype, lead, group, bits)  # type: ignore[no-any-return]
        launches.append(found)
    for launch in launches:
        launch()
    return out


def configurations() -> list[Configuration]:
    """Groups of 256 of samples, planes in channels_last (two reads), groups of 64 of the last dim, an odd size, a width."""
    map_, tokens = torch.empty(32, 64, 56, 56, device="meta"), torch.empty(8, 512, 768, device="meta")
    last = map_.to(memory_format=torch.channels_last)
    found: dict[str, Launch] = {}
    for x, lead, group, width in (
        (map_, 1, 256, 2),
        (last.bfloat16(), 1, 256, 2),
        (last, 2, 3136, 2),
        (tokens.bfloat16(), 2, 64, 8),
        (tokens, 2, 100, 3),
        (map_.half(), 1, 256, 11),
    ):
        codes, scale = empty_code(x, lead, group, (width,), 0)
        pairs = scale.view(torch.int32)
        launches = encoding(x, codes, pairs, lead, group, width, 0) or []
        if (decode := decoding(x, codes, pairs, lead, group, width)) is not None:
            launches.append(decode)
        what = f"{x.dtype} {tuple(x.shape)} {x.stride()} lead={lead} group={group} bits={width}"
        found |= {f"{launch.kernel.__name__} {what}": launch for launch in launches}
    return [launch.configuration(name) for name, launch in found.items()]
