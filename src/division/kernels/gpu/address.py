"""Where the elements of a tensor lie: row-major order of the shape, whatever the strides, several codes to a byte.

A kernel of an op that packs element by element is launched in one of two ways, a :class:`Plan`:

* by bytes: consecutive bytes of the code, each with its consecutive elements; what is contiguous streams.
* by planes: for a tensor whose last dim isn't the innermost in memory, as in channels_last; a plane is what the dims
  after that innermost one span. Along one axis of a tile lie bytes of a plane's code, along the other neighbours in
  memory, so that loads, stores and codes all touch whole lines. Where a plane isn't a whole number of bytes, the
  fewest planes that are one are taken together.

Dims that lie one behind the other in memory are one; beyond five that are not there is no plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod

import triton
import triton.language as tl

MOST_DIMS = 5
_TILE = 4096  # elements a program
_NEIGHBOURS = 8  # neighbours in memory that make planes worth their while


@dataclass(frozen=True)
class Plan:
    """How a kernel goes over a tensor: which of the two ways, its grid, and what it is to be told.

    Args:
        planes: by planes, or else by bytes.
        grid: programs.
        arguments: sizes and strides by the names of the kernel's parameters.
        constants: the same for its ``tl.constexpr`` parameters.
    """

    planes: bool
    grid: tuple[int]
    arguments: dict[str, int]
    constants: dict[str, int]


def collapse(size: Sequence[int], stride: Sequence[int]) -> list[tuple[int, int]]:
    """The (size, stride) of the fewest dims with these elements in this order, outermost first; at least one.

    Example:
        >>> collapse((2, 3, 1, 5), (15, 5, 7, 1)), collapse((2, 3, 4, 5), (60, 1, 15, 3))
        ([(30, 1)], [(2, 60), (3, 1), (20, 3)])
    """
    dims: list[tuple[int, int]] = []
    for n, s in zip(size, stride, strict=True):
        if n == 1:
            continue
        if dims and dims[-1][1] == n * s:
            dims[-1] = (dims[-1][0] * n, s)
        else:
            dims.append((n, s))
    return dims or [(1, 1)]


def power_of_two(n: int) -> int:
    """The least power of two that isn't less."""
    return 1 << max(n - 1, 0).bit_length()


@lru_cache(maxsize=1024)
def plan(size: tuple[int, ...], stride: tuple[int, ...], per: int, itemsize: int, whole: int = 1) -> Plan | None:
    """The plan for a tensor that isn't empty, ``per`` codes to a byte; None if there is none.

    Args:
        size: of the tensor.
        stride: of the tensor.
        per: elements a byte; 1 also for codes wider than that.
        itemsize: bytes of an element.
        whole: planes are taken only if they are a multiple of this many elements.
    """
    dims = collapse(size, stride)
    if len(dims) > MOST_DIMS:
        return None
    at = next((d for d, (_, s) in enumerate(dims) if s == 1), len(dims) - 1)
    inner = prod(n for n, _ in dims[at + 1 :])
    together = per // gcd(inner, per)
    channels = dims[at][0]
    fits = at <= 2 and 1 <= len(dims) - at - 1 <= 3 and inner % whole == 0 and together * inner < 1 << 31
    if fits and channels % together == 0 and channels // together >= _NEIGHBOURS:
        return _by_planes(dims[:at], channels // together, dims[at + 1 :], per, together, itemsize)
    return _by_bytes(dims, per, itemsize)


def named(dims: Sequence[tuple[int, int]], most: int, names: str = "ns") -> dict[str, int]:
    """Sizes and strides, innermost first, by the names of their parameters; what isn't used is 1.

    Example:
        >>> named([(2, 60), (3, 1), (20, 3)], 4)
        {'n0': 20, 'n1': 3, 'n2': 1, 's0': 3, 's1': 1, 's2': 60, 's3': 1}
    """
    sizes = [n for n, _ in reversed(dims)][: len(dims) - 1] + [1] * (most - len(dims))
    strides = [s for _, s in reversed(dims)] + [1] * (most - len(dims))
    return {f"{names[0]}{d}": n for d, n in enumerate(sizes)} | {f"{names[1]}{d}": s for d, s in enumerate(strides)}


def _by_bytes(dims: list[tuple[int, int]], per: int, itemsize: int) -> Plan:
    count = prod(n for n, _ in dims)
    tile = _TILE if itemsize <= 4 else _TILE // 2
    constants = {
        "dims": len(dims),
        "even": int(len(dims) == 1 or dims[-1][0] % per == 0),
        "wide": int(count + tile >= 1 << 31),
        "per": per,
        "block": tile // per,
    }
    return Plan(False, (-(-count // tile),), {"count": count} | named(dims, MOST_DIMS), constants)


def _by_planes(
    outer: list[tuple[int, int]], runs: int, inner: list[tuple[int, int]], per: int, together: int, itemsize: int
) -> Plan:
    elements = prod(n for n, _ in inner)
    width = together * elements // per
    (n_beyond, s_beyond), (n_outer, s_outer) = [(1, 0), (1, 0), *outer][-2:]
    block = min(32, power_of_two(width))
    lanes = min(power_of_two(runs), max(128 // itemsize, 1024 // block))
    steps, lane_steps = -(-width // block), -(-runs // lanes)
    arguments = {
        "runs": runs, "inner": elements, "width": width, "n_outer": n_outer, "s_outer": s_outer,
        "s_beyond": s_beyond, "steps": steps, "lane_steps": lane_steps,
    }  # fmt: skip
    constants = {"dims": len(inner), "together": together, "per": per, "block": block, "lanes": lanes}
    grid = steps * lane_steps * n_outer * n_beyond
    return Plan(True, (grid,), arguments | named(inner, 3), constants)


@triton.jit
def address(e: tl.tensor, sizes: tl.tuple, strides: tl.tuple, dims: tl.constexpr) -> tl.tensor:
    """Where elements lie, int64: the index along each dim, innermost first, times its stride.

    ``sizes`` and ``strides`` go from the innermost dim to the outermost, whose size is of no account.
    """
    at = tl.zeros_like(e).to(tl.int64)
    for d in tl.static_range(dims - 1):
        at += (e % sizes[d]).to(tl.int64) * strides[d]
        e = e // sizes[d]
    return at + e.to(tl.int64) * strides[dims - 1]


@triton.jit
def of_bytes(
    byte: tl.tensor, sizes: tl.tuple, strides: tl.tuple,
    dims: tl.constexpr, even: tl.constexpr, wide: tl.constexpr, per: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Where the elements of bytes lie, int64 ``[bytes, per]``. even: no byte goes over the end of an innermost dim."""
    lane = tl.arange(0, per)
    first = byte * per
    if even:
        if dims > 1 and not wide:
            first = first.to(tl.int32)
        return address(first, sizes, strides, dims)[:, None] + (lane.to(tl.int64) * strides[0])[None, :]
    e = first[:, None] + lane[None, :]
    if not wide:
        e = e.to(tl.int32)
    return address(e, sizes, strides, dims)


@triton.jit
def of_planes(
    e: tl.tensor, inner: tl.tensor, sizes: tl.tuple, strides: tl.tuple, dims: tl.constexpr, together: tl.constexpr
) -> tl.tensor:
    """Where element ``e`` of the planes taken together lies from the first of them, int64."""
    if together == 1:
        return address(e, sizes, strides, dims)
    return (e // inner).to(tl.int64) + address(e % inner, sizes, strides, dims)


@triton.jit
def tile_of_planes(
    steps: tl.tensor, lane_steps: tl.tensor, block: tl.constexpr, lanes: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The bytes of a run, the runs (int64) and the index of the outer dims (int64) that this program takes."""
    program = tl.program_id(0)
    rest = program // steps
    byte = (program % steps) * block + tl.arange(0, block)
    run = ((rest % lane_steps) * lanes + tl.arange(0, lanes)).to(tl.int64)
    return byte, run, (rest // lane_steps).to(tl.int64)
