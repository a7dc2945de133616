"""How the kernels of groups go over rows.

A tensor is rows (its leading dims) of elements (the others, in row-major order). A program takes one block of
consecutive elements in each of several lanes. What a lane is depends on where the elements lie, so that a tile
touches whole lines of memory:

* ``rows``: a lane is a row;
* ``runs``: a row is cut into runs of equal length that lie side by side, as channels do in channels_last, and a lane
  is a run;
* ``both``: elements of a row lie at equal distances; a run is a block, and a lane is a run of any row;
* ``any``: the same for what is neither, where each element is looked up by itself.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod
from typing import Any

import triton
import triton.language as tl

from division.kernels.gpu.address import address, collapse, named, power_of_two
from division.kernels.gpu.launch import Launch

LARGEST = 16384  # elements of a tile
_USUAL = 4096
_MOST_LEAD, _MOST_DIMS = 3, 4
#: Parameters of kernels over rows whose values compile nothing anew.
RUNTIME = [
    "first_row", "seed_low", "seed_high", "group", "groups", "total", "parts", "programs",
    "elements", "run", "runs", "rows", "steps", "lane_steps",
]  # fmt: skip
_NEIGHBOURS = 8  # rows side by side in memory that are worth a tile across them


@dataclass(frozen=True)
class Rows:
    """A way over rows.

    Args:
        programs: how many.
        lanes: of a tile, a power of two.
        width: elements of a lane that a tile has room for, a power of two.
        arguments: for :func:`lanes_of`, and where elements lie, by the names of the kernels' parameters.
        constants: the same for ``tl.constexpr`` parameters.
    """

    programs: int
    lanes: int
    width: int
    arguments: dict[str, int]
    constants: dict[str, int | str]

    @property
    def num_warps(self) -> int:
        """Warps for a tile of this size: 16 elements a thread, if it is large enough."""
        return min(max(self.width * self.lanes // 512, 1), 16)

    def launch(self, kernel: Any, arguments: dict[str, Any], constants: dict[str, Any], times: int = 1) -> Launch:
        """The launch of a kernel this way, with so many times the programs."""
        arguments, constants = arguments | self.arguments, constants | self.constants
        return Launch(kernel, (self.programs * times,), arguments, constants, self.num_warps)


@lru_cache(maxsize=1024)
def rows_of(
    size: tuple[int, ...], stride: tuple[int, ...], lead: int, block: int, unit: int, itemsize: int, loops: bool = False
) -> Rows | None:
    """The way over a tensor that isn't empty; None if its strides allow none, or a tile would be too large.

    Args:
        size: of the tensor.
        stride: of the tensor.
        lead: how many dims number the rows.
        block: consecutive elements of a row that a lane takes at a time.
        unit: a run is a multiple of so many elements.
        itemsize: bytes of an element.
        loops: whether the kernel goes through a block piece by piece, so that a tile may be narrower.
    """
    rows, dims = collapse(size[:lead], stride[:lead]), collapse(size[lead:], stride[lead:])
    elements = prod(n for n, _ in dims)
    mode, outer, lane_rows, s_row = "rows", rows[:-1], *rows[-1]
    run, runs, s_run = elements, 1, 0
    sides, s_side = dims[0]
    inner = elements // sides
    together = unit // gcd(inner, unit)
    across = s_row == 1 and lane_rows >= _NEIGHBOURS and dims[-1][1] != 1
    if elements > block and not across:
        if len(dims) == 1:
            mode, run, runs, s_run = "both", block, -(-elements // block), block * dims[0][1]
        elif sides % together == 0 and (
            sides >= _NEIGHBOURS * together if s_side == 1 else sides // together * block >= _USUAL
        ):
            mode, outer, lane_rows, s_row = "runs", rows, 1, 0
            run, runs, s_run, across = inner * together, sides // together, together * s_side, s_side == 1
        elif lane_rows * block < _USUAL:
            mode, run, runs = "any", block, -(-elements // block)
    width = min(power_of_two(block), 256 if across else _USUAL) if loops else max(power_of_two(block), 16)
    lanes = max(1, _USUAL // width)
    if across:
        lanes = max(32 // itemsize, min(128 // itemsize, 2 * lanes))
    lanes = min(lanes, power_of_two(lane_rows * runs))
    if len(outer) > _MOST_LEAD or len(dims) > _MOST_DIMS or lanes * width > LARGEST or block >= 1 << 30:
        return None
    steps, lane_steps = -(-run // block), -(-lane_rows * runs // lanes)
    whole = width == block and run % block == 0 and elements % run == 0
    constants: dict[str, int | str] = {
        "mode": mode, "lead": max(len(outer), 1), "dims": len(dims), "wide": int(elements >= 1 << 30),
        "grain": 0 if whole else gcd(block, run, elements, 16), "lanes": lanes, "width": width,
    }  # fmt: skip
    arguments = {
        "elements": elements, "block": block, "run": run, "runs": runs, "rows": lane_rows, "lane_count": lane_rows * runs,
        "steps": steps, "lane_steps": lane_steps, "s_row": s_row, "s_run": s_run,
    }  # fmt: skip
    arguments |= named(outer or [(1, 0)], _MOST_LEAD, "mt") | named(dims, _MOST_DIMS)
    programs = steps * lane_steps * prod(n for n, _ in outer)
    return Rows(programs, lanes, width, arguments, constants)


@triton.jit
def lanes_of(
    program: tl.tensor, elements: tl.tensor, block: tl.tensor, run: tl.tensor, runs: tl.tensor, rows: tl.tensor,
    lane_count: tl.tensor, steps: tl.tensor, lane_steps: tl.tensor, s_row: tl.tensor, s_run: tl.tensor,
    sizes: tl.tuple, strides: tl.tuple, mode: tl.constexpr, lead: tl.constexpr, grain: tl.constexpr,
    lanes: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """The lanes of a program.

    Returns:
        Of each lane, ``[lanes]``: where its run lies (its row, if mode is ``any``), the number of its row and the
        element of the row at which its block starts (int64); how many elements the block has (int32, of no account
        where grain is 0), and whether there is such a lane. Then the element from there at which the blocks start,
        int64, one for all or ``[lanes]``.
    """
    lane = (program % lane_steps).to(tl.int64) * lanes + tl.arange(0, lanes)
    rest = program // lane_steps
    first = (rest % steps).to(tl.int64) * block
    outer = (rest // steps).to(tl.int64)
    at = lane * s_row
    row = outer * rows + lane
    start = lane * 0 + first
    if mode == "runs":
        at = lane * s_run
        row = lane * 0 + outer
        start += lane * run
    elif mode != "rows":
        lane_row = lane // runs
        of_row = lane - lane_row * runs
        at = lane_row * s_row + of_row * s_run
        row = outer * rows + lane_row
        start += of_row * run
    count = tl.minimum(tl.minimum(elements - start, run - first), block).to(tl.int32)
    if grain > 1:
        count = tl.multiple_of(count, grain)
    from_here = first
    if mode == "any":
        from_here = start
    return at + address(outer, sizes, strides, lead), row, start, count, lane < lane_count, from_here


@triton.jit
def spots(
    at: tl.tensor, first: tl.tensor, e: tl.tensor, sizes: tl.tuple, strides: tl.tuple,
    mode: tl.constexpr, dims: tl.constexpr, wide: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Where elements ``e``, int32 ``[width]``, of the blocks lie: int64 ``[lanes, width]``."""
    if not wide and dims > 1:
        first = first.to(tl.int32)
    if mode == "any":
        first = first[:, None]
    return at[:, None] + address(first + e[None, :], sizes, strides, dims)


@triton.jit
def within(e: tl.tensor, count: tl.tensor, live: tl.tensor, grain: tl.constexpr) -> tl.tensor:
    """Which elements ``e``, int32 ``[width]``, of the blocks there are: ``[lanes, width]`` or ``[lanes, 1]``."""
    there = live[:, None]
    if grain > 0:
        there = there & (e[None, :] < count[:, None])
    return there
