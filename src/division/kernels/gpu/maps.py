"""A map ``(N, C, *spatial)`` as the kernels on planes see it: three spatial dims, its strides, and the shape of a tile.

A program takes ``planes`` neighbouring planes of one sample, and goes over them twice. The first pass adds up blocks, one
line or one cell of every block of a tile at a time. The second makes codes: of chunks of 16 elements, whose two halves
of 8 share their noise, it takes ``lanes`` neighbouring elements of each half at a time. It reads the planes again, but
out of the caches: what all programs at work hold fits in the second-level cache, for contiguous maps mostly in the
first. So memory is read once and written once.

How the shapes come about, for multiprocessors of 64 K registers and 256 KB of first-level cache:

* Contiguous planes (``lanes`` 8): one a program, or up to 32 small ones that make 4096 elements; a warp for 4096
  elements, at most 8. The 100 elements of a thread outweigh what is done once a plane (ranges, two divisions), its 8
  loads of 16 bytes at once keep memory busy with few warps, and at some 110 registers a thread 18 programs share a
  multiprocessor: 225 KB of planes of 56 x 56.
* Channels innermost (channels_last; ``lanes`` 1): as many channels as fill 64 bytes, the least that memory is read in,
  or up to 128 of small maps. 16 float32 planes of 56 x 56 are 200 KB, two programs of 8 warps share a multiprocessor,
  and 132 of those hold 53 MB, what the second-level cache has.
* ``split``: planes of more than ``LARGEST`` elements a program, or too few programs to fill the GPU (fewer than
  ``FEWEST``, of more than ``LARGE`` elements each). The passes are kernels of their own over parts of planes, with a small
  one between that merges what the first found. Then the map is read twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

#: Elements of a program's planes above which the passes are kernels of their own,
LARGEST = 1 << 20
#: or this, when fewer programs than FEWEST would run.
LARGE = 1 << 13
FEWEST = 512
#: Elements a program takes of maps that are split.
PART = 1 << 13
#: Elements a program, where that is free to choose.
_TILE = 1 << 12
#: The widest block whose columns are taken one by one.
_MOST_COLUMNS = 16
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: The widest block that a kernel takes: its columns are added in registers.
_WIDEST = 1 << 12
#: Elements of a plane up to which their numbers are safe in int32, with room for a tile.
_MOST = 1 << 30


def power_of_two(n: int) -> int:
    """The least power of two that isn't less than ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def common_power_of_two(*numbers: int, most: int) -> int:
    """The greatest power of two, up to ``most``, that divides all of the numbers."""
    divisor = most
    while any(n % divisor for n in numbers):
        divisor //= 2
    return divisor


@dataclass(frozen=True)
class Map:
    """How a map lies in memory, and in which tiles kernels take it.

    Args:
        outer, inner: samples and channels; one sample of all planes where their strides allow it.
        s_outer, s_inner: the strides of those.
        spatial: depth, height and width; 1 for what the map lacks.
        strides: those of ``spatial``.
        sides: of a block, along each of ``spatial``.
        itemsize: bytes of an element.
    """

    outer: int
    inner: int
    s_outer: int
    s_inner: int
    spatial: tuple[int, int, int]
    strides: tuple[int, int, int]
    sides: tuple[int, int, int]
    itemsize: int
    unit: bool = field(init=False)
    flat: bool = field(init=False)
    lanes: int = field(init=False)
    planes: int = field(init=False)

    def __post_init__(self) -> None:
        (_, h, w), (s_z, s_y, s_x) = self.spatial, self.strides
        flat = s_y == w * s_x and s_z == h * s_y
        unit = flat and s_x == 1
        lanes = 1 if self.s_inner == 1 and self.inner > 1 and not unit else 8
        planes = max(1, _TILE // (16 * power_of_two(self.chunks)))
        planes = min(planes, 32) if lanes == 8 else min(128, max(planes, 64 // self.itemsize))
        for name, value in (("flat", flat), ("unit", unit), ("lanes", lanes)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "planes", min(planes, power_of_two(self.inner)))

    @property
    def elements(self) -> int:
        """Of one plane."""
        return prod(self.spatial)

    @property
    def chunks(self) -> int:
        """Of 16 elements, in one plane."""
        return -(-self.elements // 16)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks along each of ``spatial``."""
        d, h, w = (-(-dim // side) for dim, side in zip(self.spatial, self.sides, strict=True))
        return d, h, w

    @property
    def programs(self) -> int:
        """How many it takes to cover the planes."""
        return self.outer * -(-self.inner // self.planes)

    @property
    def blocks(self) -> int:
        """Of one plane."""
        return prod(self.grid)

    @property
    def warps(self) -> int:
        """Of a program that goes over whole planes; at most 16 columns of a block a thread."""
        columns = self.planes * power_of_two(self.sides[2])
        return min(8, max(power_of_two(-(-self.planes * self.elements // _TILE)), columns // 512))

    @property
    def run(self) -> int:
        """So many elements of a plane, from a multiple of that number on, lie in one block."""
        if self.blocks == 1:
            return 8
        if self.grid[2] == 1:
            return common_power_of_two(self.spatial[2], most=8)
        return common_power_of_two(self.spatial[2], self.sides[2], most=8)

    @property
    def tile(self) -> dict[str, int]:
        """``rows``, ``columns`` and ``tiles`` of the first pass, and whether it goes cell by cell."""
        by_cells = self.lanes == 1 and self.sides[2] <= _MOST_COLUMNS
        wide, (depth, height, width) = power_of_two(self.sides[2]), self.grid
        # In blocks: 4 cells of one column a thread, or 8 of a line.
        room = max(1, 128 * self.warps // self.planes if by_cells else 256 * self.warps // (self.planes * wide))
        columns = min(power_of_two(width), room)
        rows = min(power_of_two(depth * height), max(1, room // columns))
        tiles = -(-depth * height // rows) * -(-width // columns)
        return {"rows": rows, "columns": columns, "tiles": tiles, "by_cells": int(by_cells)}

    def chunk_tile(self, elements: int) -> int:
        """Chunks of each plane in a tile of about so many elements; fewer if that wastes less of the last tile."""
        most = min(power_of_two(self.chunks), max(1, elements // (16 * self.planes)))
        return min((most, max(1, most // 2)), key=lambda tile: -(-self.chunks // tile) * tile)

    @property
    def arguments(self) -> dict[str, int]:
        """What kernels are told as they are launched."""
        z, y, x = self.strides
        return {"inner": self.inner, "s_outer": self.s_outer, "s_inner": self.s_inner, "s_z": z, "s_y": y, "s_x": x}

    @property
    def constants(self) -> dict[str, int]:
        """What all kernels are compiled for."""
        names = ("d", "h", "w", "side_z", "side_y", "side_x")
        return dict(zip(names, (*self.spatial, *self.sides), strict=True)) | {
            "unit": int(self.unit),
            "planes": self.planes,
            "pitch": common_power_of_two(self.s_outer, self.s_inner, most=16),
        }

    @property
    def split(self) -> bool:
        """Whether the passes are kernels of their own."""
        size = self.planes * self.elements
        return size > LARGEST or (size > LARGE and self.programs < FEWEST)


def view_map(size: Sequence[int], stride: Sequence[int], block: int, dtype: torch.dtype) -> Map | None:
    """The map of such a tensor; None if the kernels can't take it, as one that is empty or of float64.

    Example:
        >>> view_map((2, 3, 5, 7), (105, 35, 7, 1), 4, torch.float32).sides
        (1, 4, 4)
        >>> view_map((2, 3, 9000), (27000, 9000, 1), 5000, torch.float32) is None
        True
    """
    if 0 in size or dtype not in _DTYPES:
        return None
    spatial = (*(1,) * (5 - len(size)), *size[2:])
    strides = [0] * (5 - len(size)) + list(stride[2:])
    sides = tuple(min(block, dim) for dim in spatial)
    if prod(spatial) > _MOST or power_of_two(sides[2]) > _WIDEST:
        return None
    # A dim of one element has the stride that it would have if it followed the dims inside of it.
    reach = next((strides[d] for d in (2, 1, 0) if spatial[d] > 1), 1)
    for d in (2, 1, 0):
        if spatial[d] == 1:
            strides[d] = reach
        reach = strides[d] * spatial[d]
    outer, channels = size[0], size[1]
    s_outer, s_inner = stride[0], stride[1]
    if channels == 1:
        outer, channels, s_outer, s_inner = 1, outer, 0, s_outer
    elif outer == 1 or s_outer == channels * s_inner:
        outer, channels, s_outer = 1, outer * channels, 0
    d, h, w = spatial
    z, y, x = strides
    shape, cells = (d, h, w), (sides[0], sides[1], sides[2])
    return Map(outer, channels, s_outer, s_inner, shape, (z, y, x), cells, dtype.itemsize)


@dataclass(frozen=True)
class Case:
    """A map that kernels are compiled for ahead of time.

    Args:
        size: of the tensor.
        dtype: of its elements.
        channels_last: whether the channels are innermost in memory.
        block: side of the blocks.
        bits: widths of the codes.
    """

    size: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool = False
    block: int = 8
    bits: tuple[int, ...] = (2,)

    def tensor(self) -> Tensor:
        """Such a map, on the ``meta`` device."""
        if not self.channels_last:
            return torch.empty(self.size, dtype=self.dtype, device="meta")
        size = (self.size[0], *self.size[2:], self.size[1])
        return torch.empty(size, dtype=self.dtype, device="meta").movedim(-1, 1)

    def __str__(self) -> str:
        return f"{self.dtype} {self.size}{' channels_last' if self.channels_last else ''}"


#: The maps of networks by default, and one of each other kind.
CASES = (
    Case((256, 256, 56, 56), torch.float32),
    Case((256, 256, 56, 56), torch.bfloat16),
    Case((256, 256, 56, 56), torch.bfloat16, channels_last=True),
    Case((64, 512, 7, 7), torch.float16, bits=(1, 4)),
    Case((64, 512, 7, 7), torch.float32, channels_last=True, bits=(8,)),
    Case((1, 8, 40, 112, 112), torch.float32),
)
