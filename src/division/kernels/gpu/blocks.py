"""The blocks of planes inside a Triton kernel: where cells lie, block means, and the ranges of planes and residuals.

Tensors of a tile are ``[planes, rows of blocks, columns]`` or ``[planes, chunks, lanes]``, as ``maps.py`` says. The
order of additions is that of ``kernels/reference/dual.py``: the leading spatial dims of a block ascending, one line
after the other, then its columns by halves. Adding a zero that fills up a block changes no sum (but for the sign of
a zero, which the rounding to the LFC drops), and sums of two commute, so the order is the reference's to the bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from division.kernels.gpu.launch import Launch
from division.kernels.gpu.maps import PART, Map
from division.kernels.gpu.rounding import BF16_MAX, INFINITY, greatest, least, round_nearest, to_bf16, to_float32
from division.kernels.reference import dual as reference

RECTIFIED = tl.constexpr(reference.RECTIFIED)


@triton.jit
def cell(
    z: tl.tensor, y: tl.tensor, x: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    h: tl.constexpr, w: tl.constexpr, unit: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The offset of a cell within its plane."""
    return (z * h + y) * w + x if unit else z.to(tl.int64) * s_z + y.to(tl.int64) * s_y + x.to(tl.int64) * s_x


@triton.jit
def element(
    e: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    h: tl.constexpr, w: tl.constexpr, flat: tl.constexpr, unit: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The offset of element ``e``, in row-major order of the plane."""
    if unit:
        offset = e
    elif flat:
        offset = e.to(tl.int64) * s_x
    else:
        offset = cell(e // (h * w), e // w % h, e % w, s_z, s_y, s_x, h, w, False)
    return offset


@triton.jit
def quotient(number: tl.tensor, divisor: tl.constexpr, most: tl.constexpr) -> tl.tensor:
    """``number // divisor`` for uint32 below ``most``: by one multiplication, which the compiler wouldn't find."""
    if (divisor & (divisor - 1)) == 0:
        result = number // divisor
    elif most * divisor <= 4294967296:
        result = tl.umulhi(number, tl.full(number.shape, (4294967295 + divisor) // divisor, tl.uint32))
    else:
        result = number // divisor
    return result


@triton.jit
def block_of(
    e: tl.tensor, d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The number of the block that element ``e`` is in; anything for one beyond the plane."""
    grid_y: tl.constexpr = (h + side_y - 1) // side_y
    grid_x: tl.constexpr = (w + side_x - 1) // side_x
    e = e.to(tl.uint32, bitcast=True)
    line = quotient(e, w, d * h * w)
    block = quotient(e - line * w, side_x, w)
    if d == 1:
        block += quotient(line, side_y, h) * grid_x
    else:
        z = quotient(line, h, d * h)
        block += (quotient(line - z * h, side_y, h) + quotient(z, side_z, d) * grid_y) * grid_x
    return block.to(tl.int32, bitcast=True)


@triton.jit
def halves(x: tl.tensor, planes: tl.constexpr, lines: tl.constexpr, width: tl.constexpr) -> tl.tensor:
    """The sum over the runs of ``width`` in ``[planes, lines * width]``, by halves: ``[planes, lines]``."""
    half: tl.constexpr = width // 2
    if width > 1:
        pairs = tl.sum(tl.reshape(x, (planes, lines, 2, half)), axis=2)
        x = halves(tl.reshape(pairs, (planes, lines * half)), planes, lines, half)
    return x


@triton.jit
def count_along(block: tl.tensor, dim: tl.constexpr, side: tl.constexpr) -> tl.tensor:
    """How many cells a block has along a dim."""
    return tl.minimum(dim - block * side, side)


@triton.jit
def across_lines(
    x: tl.tensor, base: tl.tensor, here: tl.tensor, row: tl.tensor, start: tl.tensor,
    s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr, unit: tl.constexpr,
    planes: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Sum, least and greatest element of blocks, ``[planes, rows * columns]``: whole lines of a tile at a time.

    ``row`` are its rows of blocks, ``start`` is its first column of them. The least is minus infinity where an
    element isn't finite. What there is of blocks that aren't there is anything.
    """
    grid_y: tl.constexpr = (h + side_y - 1) // side_y
    wide: tl.constexpr = triton.next_power_of_2(side_x)
    column = tl.arange(0, columns * wide)
    if wide == side_x:
        place = start * side_x + column
        inside = place < w
    else:
        place = (start + column // wide) * side_x + column % wide
        inside = (column % wide < side_x) & (place < w)
    exists = here[:, None, None] & (row < (d + side_z - 1) // side_z * grid_y)[None, :, None] & inside[None, None, :]
    total = tl.zeros((planes, rows, columns * wide), tl.float32)
    low = tl.full((planes, rows, columns * wide), INFINITY, tl.float32)
    high = tl.full((planes, rows, columns * wide), -INFINITY, tl.float32)
    unroll: tl.constexpr = min(side_y, 8) if side_z == 1 else 4
    for line in tl.range(0, side_z * side_y, loop_unroll_factor=unroll):
        z = row // grid_y * side_z + line // side_y
        y = row % grid_y * side_y + line % side_y
        offset = cell(z[:, None], y[:, None], place[None, :], s_z, s_y, s_x, h, w, unit)
        spot = x + base[:, None, None] + offset[None, :, :]
        if (d % side_z == 0) and (h % side_y == 0):
            value = to_float32(tl.load(spot, mask=exists, other=0.0))
            low, high = least(low, value), greatest(high, value)
        else:
            held = exists & ((z < d) & (y < h))[None, :, None]
            value = to_float32(tl.load(spot, mask=held, other=0.0))
            low, high = least(low, tl.where(held, value, low)), greatest(high, tl.where(held, value, high))
        total += value
    finite = (low > -INFINITY) & (high < INFINITY)
    low, high = tl.where(finite, low, -INFINITY), tl.where(finite, high, INFINITY)
    if (wide != side_x) or (w % side_x != 0):  # some of a block's columns may be missing
        low, high = tl.where(exists, low, INFINITY), tl.where(exists, high, -INFINITY)
    low = tl.min(tl.reshape(low, (planes, rows * columns, wide)), axis=2)
    high = tl.max(tl.reshape(high, (planes, rows * columns, wide)), axis=2)
    total = halves(tl.reshape(total, (planes, rows * columns * wide)), planes, rows * columns, wide)
    return total, low, high


@triton.jit
def repeated(x: tl.tensor, count: tl.constexpr) -> tl.tuple:
    """A tuple of one tensor many times."""
    return (x,) if count == 1 else repeated(x, count - 1) + (x,)  # noqa: RUF005  (unpacking isn't compiled)


@triton.jit
def add_line(
    totals: tl.tuple, low: tl.tensor, high: tl.tensor, x: tl.tensor, base: tl.tensor, here: tl.tensor,
    z: tl.tensor, y: tl.tensor, left: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr, side_x: tl.constexpr, whole: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Add one line of every block to the sums of its columns, and take its elements into ``low`` and ``high``."""
    sums: tl.tuple = ()
    for column in tl.static_range(side_x):
        offset = cell(z, y, left + column, s_z, s_y, s_x, h, w, False)
        there = here[:, None] & ((z < d) & (y < h) & (left + column < w))[None, :]
        value = to_float32(tl.load(x + base[:, None] + offset[None, :], mask=there, other=0.0))
        sums = sums + (totals[column] + value,)  # noqa: RUF005  (unpacking isn't compiled)
        low = least(low, value if whole else tl.where(there, value, low))
        high = greatest(high, value if whole else tl.where(there, value, high))
    return sums, low, high


@triton.jit
def halves_of(totals: tl.tuple, first: tl.constexpr, step: tl.constexpr, count: tl.constexpr) -> tl.tensor:
    """The sum of items ``first``, ``first + step`` and so on, by halves: those of even number, plus the others."""
    total = totals[first]
    if first + step < count:
        total = halves_of(totals, first, 2 * step, count) + halves_of(totals, first + step, 2 * step, count)
    return total


@triton.jit
def across_blocks(
    x: tl.tensor, base: tl.tensor, here: tl.tensor, z: tl.tensor, y: tl.tensor, left: tl.tensor,
    s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr,
    planes: tl.constexpr, blocks: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """The same as :func:`across_lines` for planes that lie side by side: one cell of every block at a time.

    ``z``, ``y`` and ``left`` are the first cells of the blocks.
    """
    whole: tl.constexpr = (d % side_z == 0) and (h % side_y == 0) and (w % side_x == 0)
    low = tl.full((planes, blocks), INFINITY, tl.float32)
    high = tl.full((planes, blocks), -INFINITY, tl.float32)
    totals = repeated(tl.zeros((planes, blocks), tl.float32), side_x)
    for line in range(side_z * side_y):
        totals, low, high = add_line(
            totals, low, high, x, base, here, z + line // side_y, y + line % side_y, left, s_z, s_y, s_x,
            d, h, w, side_x, whole,
        )  # fmt: skip
    finite = (low > -INFINITY) & (high < INFINITY)
    total = halves_of(totals, 0, 1, side_x)
    return total, tl.where(finite, low, -INFINITY), tl.where(finite, high, INFINITY)


@triton.jit
def pass_over_blocks(
    x: tl.tensor, base: tl.tensor, here: tl.tensor, lfc: tl.tensor, plane: tl.tensor,
    first: tl.tensor, last: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr, unit: tl.constexpr,
    planes: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, by_cells: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """The first pass, over the tiles from ``first`` to ``last`` of some planes: write their LFC, and find their ranges.

    Args:
        x: the map.
        base: where each plane begins in it, int64 ``[planes]``.
        here: which of the planes there are.
        lfc: int16 that stands for bfloat16, ``[planes of the map, blocks]``.
        plane: the number of each plane, int64 ``[planes]``.

    Returns:
        The LFC of the last tile, float32 ``[planes, rows * columns]``; the least and greatest element and the least
        and greatest residual of all, each ``[planes]``: minus and plus infinity where an element isn't finite, and
        the residuals' also where a sum left float32's range. The least residual of a block is its least element less
        its mean, since rounding keeps order.
    """
    grid_y: tl.constexpr = (h + side_y - 1) // side_y
    grid_x: tl.constexpr = (w + side_x - 1) // side_x
    grid_rows: tl.constexpr = (d + side_z - 1) // side_z * grid_y
    tiles_x: tl.constexpr = (grid_x + columns - 1) // columns
    slot = tl.arange(0, rows * columns)
    x_low = tl.full((planes, rows * columns), INFINITY, tl.float32)
    x_high = tl.full((planes, rows * columns), -INFINITY, tl.float32)
    r_low, r_high = x_low, x_high
    mean = tl.zeros((planes, rows * columns), tl.float32)
    for tile in range(first, last):
        top, start = tile // tiles_x * rows, tile % tiles_x * columns
        row, column = top + slot // columns, start + slot % columns  # of each block
        block_z, block_y = row // grid_y, row % grid_y
        real = here[:, None] & ((row < grid_rows) & (column < grid_x))[None, :]
        if by_cells:
            total, low, high = across_blocks(
                x, base, here, block_z * side_z, block_y * side_y, column * side_x, s_z, s_y, s_x,
                d, h, w, side_z, side_y, side_x, planes, rows * columns,
            )  # fmt: skip
        else:
            total, low, high = across_lines(
                x, base, here, top + tl.arange(0, rows), start, s_z, s_y, s_x,
                d, h, w, side_z, side_y, side_x, unit, planes, rows, columns,
            )  # fmt: skip
        cells = count_along(block_z, d, side_z) * count_along(block_y, h, side_y) * count_along(column, w, side_x)
        mean = tl.math.div_rn(total, tl.maximum(cells, 1).to(tl.float32)[None, :])
        mean = round_nearest(least(greatest(mean, -BF16_MAX), BF16_MAX)) + 0.0
        spot = lfc + plane[:, None] * (grid_rows * grid_x) + (row * grid_x + column)[None, :]
        tl.store(spot, to_bf16(mean), mask=real)
        finite = low > -INFINITY
        known = finite & (tl.abs(mean) < INFINITY)
        x_low = tl.minimum(x_low, tl.where(real, low, INFINITY))
        x_high = tl.maximum(x_high, tl.where(real, tl.where(finite, high, INFINITY), -INFINITY))
        r_low = tl.minimum(r_low, tl.where(real, tl.where(known, low - mean, -INFINITY), INFINITY))
        r_high = tl.maximum(r_high, tl.where(real, tl.where(known, high - mean, INFINITY), -INFINITY))
    return mean, tl.min(x_low, axis=1), tl.max(x_high, axis=1), tl.min(r_low, axis=1), tl.max(r_high, axis=1)


@triton.jit
def settle(
    x_low: tl.tensor, x_high: tl.tensor, r_low: tl.tensor, r_high: tl.tensor, missing: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """What becomes of special planes: those of one value, and those with an element that isn't finite.

    Returns:
        Which planes are special, and the LFC of all their blocks: that value's, or ``missing``; then the residuals'
        range of every plane.
    """
    finite = x_low > -INFINITY
    constant = x_low == x_high
    value = round_nearest(least(greatest(x_low, -BF16_MAX), BF16_MAX)) + 0.0
    r_low = tl.where(constant, x_low - value, r_low)
    r_high = tl.where(constant, x_low - value, r_high)
    return constant | (finite == 0), tl.where(finite, value, missing), r_low, r_high


@triton.jit
def narrow(
    special: tl.tensor, value: tl.tensor, x_low: tl.tensor, x_high: tl.tensor, r_low: tl.tensor, r_high: tl.tensor,
    blocks: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """What :func:`settle` said, and with it the planes whose residuals are too wide beside their elements: LFC 0."""
    if blocks > 1:
        reach = r_high - r_low
        wider = (x_high - x_low < tl.where(x_low == 0, RECTIFIED * reach, reach)) & (reach < INFINITY)
        special, value = special | wider, tl.where(wider, 0.0, value)
        r_low, r_high = tl.where(wider, x_low, r_low), tl.where(wider, x_high, r_high)
    return special, value, r_low, r_high


@triton.jit
def fill_blocks(lfc: tl.tensor, plane: tl.tensor, special: tl.tensor, value: tl.tensor, blocks: tl.constexpr) -> None:
    """Write one value to all blocks of each special plane, after what others of the program wrote there."""
    tl.debug_barrier()
    if tl.max(special.to(tl.int32), axis=0) > 0:
        for start in range(0, blocks, 32):
            block = start + tl.arange(0, 32)
            spot = lfc + plane[:, None] * blocks + block[None, :]
            mask = special[:, None] & (block < blocks)[None, :]
            tl.store(spot, tl.broadcast_to(to_bf16(value)[:, None], mask.shape), mask=mask)
    tl.debug_barrier()


@triton.jit
def own_planes(
    program: tl.tensor, inner: tl.tensor, s_outer: tl.tensor, s_inner: tl.tensor,
    planes: tl.constexpr, pitch: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Where each plane of a program begins, a multiple of ``pitch``, and its number, int64; and whether it is there."""
    tiles = tl.cdiv(inner, planes)
    sample = (program // tiles).to(tl.int64)
    channel = (program % tiles) * planes + tl.arange(0, planes)
    base = sample * s_outer + channel.to(tl.int64) * s_inner
    if pitch > 1:
        base = tl.multiple_of(base, pitch)
    return base, sample * inner + channel, channel < inner


@triton.jit
def parts_kernel(
    x: tl.tensor, lfc: tl.tensor, ranges: tl.tensor,
    count: tl.tensor, inner: tl.tensor, s_outer: tl.tensor, s_inner: tl.tensor,
    s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr, unit: tl.constexpr,
    planes: tl.constexpr, pitch: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, by_cells: tl.constexpr,
    tiles: tl.constexpr, share: tl.constexpr,
) -> None:  # fmt: skip
    """The first pass over ``share`` of the ``tiles`` of some planes; ``ranges`` is float32 ``[parts, 4, count]``."""
    parts: tl.constexpr = (tiles + share - 1) // share
    part = tl.program_id(0) % parts
    base, plane, here = own_planes(tl.program_id(0) // parts, inner, s_outer, s_inner, planes, pitch)
    first = part * share
    _, x_low, x_high, r_low, r_high = pass_over_blocks(
        x, base, here, lfc, plane, first, tl.minimum(first + share, tiles), s_z, s_y, s_x,
        d, h, w, side_z, side_y, side_x, unit, planes, rows, columns, by_cells,
    )  # fmt: skip
    spot = ranges + part.to(tl.int64) * 4 * count + plane
    tl.store(spot, x_low, mask=here)
    tl.store(spot + count, x_high, mask=here)
    tl.store(spot + 2 * count, r_low, mask=here)
    tl.store(spot + 3 * count, r_high, mask=here)


@triton.jit
def merge(
    ranges: tl.tensor, plane: tl.tensor, here: tl.tensor, count: tl.tensor, planes: tl.constexpr, parts: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """The ranges of whole planes out of those of their parts."""
    x_low = tl.full((planes, 32), INFINITY, tl.float32)
    x_high = tl.full((planes, 32), -INFINITY, tl.float32)
    r_low, r_high = x_low, x_high
    for start in range(0, parts, 32):
        part = (start + tl.arange(0, 32)).to(tl.int64)
        spot = ranges + (part * 4 * count)[None, :] + plane[:, None]
        mask = here[:, None] & (part < parts)[None, :]
        x_low = tl.minimum(x_low, tl.load(spot, mask=mask, other=INFINITY))
        x_high = tl.maximum(x_high, tl.load(spot + count, mask=mask, other=-INFINITY))
        r_low = tl.minimum(r_low, tl.load(spot + 2 * count, mask=mask, other=INFINITY))
        r_high = tl.maximum(r_high, tl.load(spot + 3 * count, mask=mask, other=-INFINITY))
    return tl.min(x_low, axis=1), tl.max(x_high, axis=1), tl.min(r_low, axis=1), tl.max(r_high, axis=1)


def parts_launch(m: Map, x: Tensor, lfc: Tensor) -> tuple[Tensor, Launch]:
    """The first pass as a kernel of its own, and the ranges that it finds, float32 ``[parts, 4, planes]``."""
    tile = m.tile
    size = m.planes * tile["rows"] * tile["columns"] * m.sides[0] * m.sides[1] * m.sides[2]
    share = max(1, PART // size)
    parts = -(-tile["tiles"] // share)
    count = m.outer * m.inner
    ranges = x.new_empty((parts, 4, count), dtype=torch.float32)
    arguments = {"x": x, "lfc": lfc, "ranges": ranges, "count": count} | m.arguments
    return ranges, Launch(
        parts_kernel, (m.programs * parts,), arguments, m.constants | tile | {"share": share}, m.warps
    )  # fmt: skip
