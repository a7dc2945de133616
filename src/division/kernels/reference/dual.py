"""The dual codec's ops, in plain PyTorch: block means in bfloat16, and the rest in a few bits.

``x`` is ``[N, C, *spatial]`` with 1 to 3 spatial dims, in any layout; a row is one (sample, channel) plane. Block
sums run in float32: cells of equal column are added with the leading spatial dims ascending, then the columns of
a block by a pairwise tree over the next power of two. The mean is one IEEE division of the sum by the number of
cells that the block really has, rounded to the nearest bfloat16; the low-frequency part (LFC) is that mean, the
high-frequency part (HFC) is ``x`` minus the LFC of each cell's own block. In planes of several blocks whose elements
span less than their HFC would, the LFC is 0 instead: the HFC is then ``x`` itself, in finer steps. So it is where the
least element is 0 and they span less than ``RECTIFIED`` times that: ReLU's zeros, a third of a plane or more, are then the
lowest code's own value, which costs no noise.
"""

from collections.abc import Sequence
from itertools import product
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from division.kernels.noise import uniform
from division.kernels.ops import body, define
from division.kernels.reference.chunks import chunks, write
from division.kernels.reference.quantize import code_bytes, pack_codes, quantize, to_bf16, unpack_codes

BITS = (1, 2, 4, 8)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: How much more than its HFC a plane whose least value is 0 may span, and still have its LFC left out.
RECTIFIED = 1.25
_BF16_MAX = torch.finfo(torch.bfloat16).max


def cells(spatial: Sequence[int], block: int) -> int:
    """How many blocks a plane of this shape has: the product over its dims of ``ceil(dim / block)``."""
    return prod(-(-dim // block) for dim in spatial)


def check_map(size: Sequence[int], dtype: torch.dtype, block: int, bits: int = 2) -> None:
    """Refuse what is not a map, a dtype, a block or a width that these ops take."""
    if not 3 <= len(size) <= 5:
        raise ValueError(f"got a tensor of shape {tuple(size)}, expected (N, C, *spatial) with 1 to 3 spatial dims")
    if dtype not in DTYPES:
        raise TypeError(f"got dtype {dtype}, expected one of {', '.join(map(str, DTYPES))}")
    if block < 1:
        raise ValueError(f"got block={block}, expected at least 1")
    if bits not in BITS:
        raise ValueError(f"got bits={bits}, expected one of {BITS}")


def _check_encode(x: Tensor, block: int, bits: int, seed: int) -> None:
    check_map(x.shape, x.dtype, block, bits)


def _check_decode(
    lfc: Tensor, codes: Tensor, scale: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    block: int, bits: int,
) -> None:  # fmt: skip
    check_map(size, dtype, block, bits)
    planes, spatial = size[0] * size[1], size[2:]
    for name, part, width, kind in (
        ("lfc", lfc, cells(spatial, block), torch.bfloat16),
        ("codes", codes, code_bytes(prod(spatial), bits), torch.uint8),
        ("scale", scale, 2, torch.bfloat16),
    ):
        if tuple(part.shape) != (planes, width) or part.dtype != kind:
            expected = f"{kind} {(planes, width)}"
            raise ValueError(f"got {name} {part.dtype} {tuple(part.shape)}, expected {expected} for shape {size}")
        if part.device != lfc.device:
            raise ValueError(f"got {name} on {part.device} and lfc on {lfc.device}, expected one device")


@define("dual_encode(Tensor x, int block, int bits, int seed) -> (Tensor, Tensor, Tensor)", _check_encode)
def empty_code(x: Tensor, block: int, bits: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """lfc bf16 ``[planes, cells]``; codes uint8 ``[planes, bytes]``; (offset, step) bf16 ``[planes, 2]``."""
    planes, spatial = x.shape[0] * x.shape[1], x.shape[2:]
    return (
        x.new_empty((planes, cells(spatial, block)), dtype=torch.bfloat16),
        x.new_empty((planes, code_bytes(prod(spatial), bits)), dtype=torch.uint8),
        # Of planes without elements nobody writes them.
        (x.new_empty if x.numel() else x.new_zeros)((planes, 2), dtype=torch.bfloat16),
    )


@define(
    "dual_decode(Tensor lfc, Tensor codes, Tensor scale, int[] size, int[] stride, ScalarType dtype, int block,"
    " int bits) -> Tensor",
    _check_decode,
)
def empty_map(
    lfc: Tensor, codes: Tensor, scale: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    block: int, bits: int,
) -> Tensor:  # fmt: skip
    """An empty tensor of the given size, stride and dtype."""
    return torch.empty_strided(size, stride, dtype=dtype, device=lfc.device)


def block_mean(x: Tensor, block: int) -> Tensor:
    """float32 ``[rows, *spatial]`` to the block means ``[rows, *grid]``, float32, summed in the stated order."""
    spatial = x.shape[1:]
    sides = [min(block, dim) for dim in spatial]
    pads = [p for dim, side in zip(reversed(spatial), reversed(sides), strict=True) for p in (0, -dim % side)]
    if any(pads):
        x = F.pad(x, pads)
    counts = torch.ones((), dtype=torch.float32, device=x.device)
    for dim, side in zip(spatial, sides, strict=True):
        count = torch.full((-(-dim // side),), float(side), dtype=torch.float32, device=x.device)
        count[-1] = dim - side * (-(-dim // side) - 1)
        counts = counts[..., None] * count
    dims = len(sides)
    split = x.view(x.shape[0], *(s for d, side in zip(x.shape[1:], sides, strict=True) for s in (d // side, side)))
    # [rows, grid0, side0, ...] to [*sides but the last, rows, *grid, last side]
    order = [2 * d + 2 for d in range(dims - 1)] + [0] + [2 * d + 1 for d in range(dims)] + [2 * dims]
    split = split.permute(order)
    return _tree_sum(_ascending_sum(split, sides[:-1])) / counts


def _ascending_sum(x: Tensor, sides: Sequence[int]) -> Tensor:
    """Sum over the leading dims, of sizes ``sides``, adding their elements one by one in row-major order."""
    first, *others = product(*map(range, sides))
    total = x[first].clone()
    for index in others:
        total += x[index]
    return total


def _tree_sum(x: Tensor) -> Tensor:
    """Sum over the last dim by halves, zeros filling it up to a power of two."""
    width = 1 << (x.shape[-1] - 1).bit_length()
    if width != x.shape[-1]:
        x = F.pad(x, (0, width - x.shape[-1]))
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return x[..., 0] + 0.0


def spread(lfc: Tensor, spatial: Sequence[int], block: int) -> Tensor:
    """Block values ``[rows, *grid]`` to every cell of their block: a view or copy ``[rows, *spatial]``."""
    for d, dim in enumerate(spatial, start=1):
        side = min(block, dim)
        shape = (*lfc.shape[: d + 1], side, *lfc.shape[d + 1 :])
        lfc = lfc.unsqueeze(d + 1).expand(shape).flatten(d, d + 1).narrow(d, 0, dim)
    return lfc


def low_frequency(x: Tensor, finite: Tensor, block: int) -> Tensor:
    """The LFC of float32 rows ``[rows, *spatial]`` as float32 that holds bfloat16 values, ``[rows, *grid]``.

    The LFC of a row of one value is that value's bfloat16; of a row with a non-finite element, 0.
    """
    flat = x.flatten(1)
    low, high = torch.aminmax(flat, dim=1)
    mean = block_mean(x, block)
    shape = (-1, *(1,) * (x.dim() - 1))
    mean = torch.where((low == high).view(shape), low.view(shape), mean).clamp_(-_BF16_MAX, _BF16_MAX)
    mean = torch.where(finite.view(shape), mean, 0.0)
    return mean.to(torch.bfloat16).to(torch.float32) + 0.0


def span(rows: Tensor) -> Tensor:
    """Greatest less least element of rows ``[rows, elements]``: float32 ``[rows]``."""
    low, high = torch.aminmax(rows, dim=1)
    return high - low


def where_narrower(rows: Tensor, finite: Tensor, low: Tensor, block: int) -> Tensor:
    """The LFC ``[rows, *grid]`` of float32 rows ``[rows, *spatial]``, 0 in rows that it would not make narrower."""
    if low[0].numel() == 1:
        return low
    flat = rows.flatten(1)
    reach = span((rows - spread(low, rows.shape[1:], block)).flatten(1))
    most = torch.where(flat.amin(1) == 0, RECTIFIED * reach, reach)
    wider = finite & (span(flat) < most) & (reach < torch.inf)
    return torch.where(wider.view(-1, *(1,) * (rows.dim() - 1)), 0.0, low)


def as_rows(x: Tensor) -> Tensor:
    """A map ``[N, C, *spatial]`` as float32 planes ``[rows, *spatial]``."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]).to(torch.float32)


def all_finite(rows: Tensor) -> Tensor:
    """bool ``[rows]``: whether every element of a row is finite."""
    return torch.isfinite(rows.flatten(1)).all(1)


@body("dual_encode")
def dual_encode(x: Tensor, block: int, bits: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """LFC, codes and (offset, step) of every plane."""
    lfc, codes, scale = empty_code(x, block, bits, seed)
    if x.numel() == 0:
        return lfc, codes, scale
    for first, cut in chunks(x, 2):
        rows = as_rows(x[cut])
        finite = all_finite(rows)
        low = where_narrower(rows, finite, low_frequency(rows, finite, block), block)
        high = (rows - spread(low, rows.shape[1:], block)).flatten(1)
        noise = uniform(seed, first, high.shape[0], high.shape[1], x.device)
        coded = quantize(high, finite, bits, noise)
        here = slice(first, first + rows.shape[0])
        lfc[here] = to_bf16(low.flatten(1))
        codes[here] = pack_codes(coded.codes, bits)
        scale[here] = to_bf16(torch.stack((coded.offset, coded.step), 1))
    return lfc, codes, scale


@body("dual_decode")
def dual_decode(
    lfc: Tensor, codes: Tensor, scale: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    block: int, bits: int,
) -> Tensor:  # fmt: skip
    """``(step * code + offset) + LFC`` of each cell, held within the range of the dtype."""
    out = empty_map(lfc, codes, scale, size, stride, dtype, block, bits)
    if out.numel() == 0:
        return out
    spatial = tuple(size[2:])
    grid = tuple(-(-dim // block) for dim in spatial)
    for first, cut in chunks(out, 2):
        piece = out[cut]
        here = slice(first, first + piece.shape[0] * piece.shape[1])
        offset, step = scale[here].to(torch.float32).split(1, 1)
        values = unpack_codes(codes[here], prod(spatial), bits).to(torch.float32)
        values = values.mul_(step).add_(offset).view(-1, *spatial)
        values += spread(lfc[here].to(torch.float32).view(-1, *grid), spatial, block)
        write(piece, values)
    return out
