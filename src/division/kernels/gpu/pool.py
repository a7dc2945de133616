"""Triton bodies of the low-frequency part alone: the dual codec's first pass, and the spread of its blocks."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from division.kernels.gpu.blocks import fill_blocks, merge, own_planes, parts_launch, pass_over_blocks, settle
from division.kernels.gpu.codes import decode_tile
from division.kernels.gpu.launch import Configuration, Launch, reference
from division.kernels.gpu.maps import CASES, PART, Map, view_map
from division.kernels.reference.pool import empty_lfc, empty_map

NAN = tl.constexpr(float("nan"))


@triton.jit
def pool_kernel(
    x: tl.tensor, lfc: tl.tensor,
    inner: tl.tensor, s_outer: tl.tensor, s_inner: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr, unit: tl.constexpr,
    blocks: tl.constexpr, planes: tl.constexpr, pitch: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, by_cells: tl.constexpr, tiles: tl.constexpr,
) -> None:  # fmt: skip
    """The LFC of some planes."""
    base, plane, here = own_planes(tl.program_id(0), inner, s_outer, s_inner, planes, pitch)
    _, x_low, x_high, r_low, r_high = pass_over_blocks(
        x, base, here, lfc, plane, 0, tiles, s_z, s_y, s_x,
        d, h, w, side_z, side_y, side_x, unit, planes, rows, columns, by_cells,
    )  # fmt: skip
    special, value, r_low, r_high = settle(x_low, x_high, r_low, r_high, NAN)
    fill_blocks(lfc, plane, special & here, value, blocks)


@triton.jit
def pool_merge_kernel(
    ranges: tl.tensor, lfc: tl.tensor, count: tl.tensor,
    blocks: tl.constexpr, planes: tl.constexpr, parts: tl.constexpr,
) -> None:  # fmt: skip
    """After the first pass over parts: what becomes of special planes."""
    plane = tl.program_id(0).to(tl.int64) * planes + tl.arange(0, planes)
    here = plane < count
    x_low, x_high, r_low, r_high = merge(ranges, plane, here, count, planes, parts)
    special, value, r_low, r_high = settle(x_low, x_high, r_low, r_high, NAN)
    fill_blocks(lfc, plane, special & here, value, blocks)


@triton.jit
def spread_kernel(
    lfc: tl.tensor, out: tl.tensor,
    inner: tl.tensor, s_outer: tl.tensor, s_inner: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr, flat: tl.constexpr, unit: tl.constexpr,
    blocks: tl.constexpr, planes: tl.constexpr, pitch: tl.constexpr,
    chunks: tl.constexpr, lanes: tl.constexpr, run: tl.constexpr,
) -> None:  # fmt: skip
    """A few chunks of some planes."""
    parts: tl.constexpr = ((d * h * w + 15) // 16 + chunks - 1) // chunks
    base, plane, here = own_planes(tl.program_id(0) // parts, inner, s_outer, s_inner, planes, pitch)
    chunk = tl.program_id(0) % parts * chunks + tl.arange(0, chunks)
    row = lfc + plane * blocks
    zero = tl.zeros((planes,), tl.float32)
    decode_tile(
        out, base, here, row, row, zero, zero, chunk, s_z, s_y, s_x,
        d, h, w, side_z, side_y, side_x, flat, unit, planes, chunks, lanes, run, 0,
    )  # fmt: skip


def pool_launches(m: Map, x: Tensor, lfc: Tensor) -> tuple[Launch, ...]:
    """The launches that find the LFC of a map."""
    blocks = {"blocks": m.blocks}
    if not m.split:
        constants = m.constants | m.tile | blocks
        return (Launch(pool_kernel, (m.programs,), {"x": x, "lfc": lfc} | m.arguments, constants, m.warps),)
    ranges, first = parts_launch(m, x, lfc)
    count = m.outer * m.inner
    merging = {"planes": 4, "parts": ranges.shape[0]} | blocks
    between = {"ranges": ranges, "lfc": lfc, "count": count}
    return first, Launch(pool_merge_kernel, (-(-count // 4),), between, merging, 1)


def spread_launch(m: Map, lfc: Tensor, out: Tensor) -> Launch:
    """The launch that spreads an LFC into ``out``."""
    chunks = m.chunk_tile(PART // 2 if m.lanes == 8 else PART)
    constants = m.constants | {
        "flat": int(m.flat),
        "lanes": m.lanes,
        "run": m.run,
        "blocks": m.blocks,
        "chunks": chunks,
    }
    grid = (m.programs * -(-m.chunks // chunks),)
    return Launch(spread_kernel, grid, {"lfc": lfc, "out": out} | m.arguments, constants, 4)


def block_pool(x: Tensor, block: int) -> Tensor:
    """The LFC of every plane; NaN throughout a plane with a non-finite element."""
    m = view_map(x.shape, x.stride(), block, x.dtype)
    if m is None:
        return reference("block_pool")(x, block)  # type: ignore[no-any-return]
    lfc = empty_lfc(x, block)
    for launch in pool_launches(m, x, lfc):
        launch()
    return lfc


def block_spread(lfc: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, block: int) -> Tensor:
    """Every cell its block's value, held within the range of the dtype."""
    m = view_map(size, stride, block, dtype)
    if m is None:
        return reference("block_spread")(lfc, size, stride, dtype, block)  # type: ignore[no-any-return]
    out = empty_map(lfc, size, stride, dtype, block)
    spread_launch(m, lfc.contiguous(), out)()
    return out


def configurations() -> list[Configuration]:
    """Both as they are launched by default, once for each kernel."""
    found = []
    for case in (CASES[0], CASES[-1]):
        x = case.tensor()
        lfc = empty_lfc(x, case.block)
        m = view_map(x.shape, x.stride(), case.block, x.dtype)
        assert m is not None
        launches = (*pool_launches(m, x, lfc), spread_launch(m, lfc, x))
        found += [launch.configuration(f"{launch.kernel.__name__} {case}") for launch in launches]
    return found
