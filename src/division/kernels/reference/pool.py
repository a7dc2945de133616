"""The low-frequency part alone: block means out of a map, and back to a map of constant blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from division.kernels.ops import body, define
from division.kernels.reference.chunks import chunks
from division.kernels.reference.dual import all_finite, as_rows, cells, check_map, low_frequency, spread
from division.kernels.reference.quantize import to_bf16


def _check_pool(x: Tensor, block: int) -> None:
    check_map(x.shape, x.dtype, block)


def _check_spread(lfc: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, block: int) -> None:
    check_map(size, dtype, block)
    shape = (size[0] * size[1], cells(size[2:], block))
    if tuple(lfc.shape) != shape or lfc.dtype != torch.bfloat16:
        raise ValueError(f"got lfc {lfc.dtype} {tuple(lfc.shape)}, expected torch.bfloat16 {shape} for shape {size}")


@define("block_pool(Tensor x, int block) -> Tensor", _check_pool)
def empty_lfc(x: Tensor, block: int) -> Tensor:
    """lfc bf16 ``[planes, cells]``."""
    return x.new_empty((x.shape[0] * x.shape[1], cells(x.shape[2:], block)), dtype=torch.bfloat16)


@define("block_spread(Tensor lfc, int[] size, int[] stride, ScalarType dtype, int block) -> Tensor", _check_spread)
def empty_map(lfc: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, block: int) -> Tensor:
    """An empty tensor of the given size, stride and dtype."""
    return torch.empty_strided(size, stride, dtype=dtype, device=lfc.device)


@body("block_pool")
def block_pool(x: Tensor, block: int) -> Tensor:
    """The LFC of every plane, as the dual codec keeps it; NaN throughout a plane with a non-finite element."""
    lfc = empty_lfc(x, block)
    if x.numel() == 0:
        return lfc
    for first, cut in chunks(x, 2):
        rows = as_rows(x[cut])
        finite = all_finite(rows)
        low = low_frequency(rows, finite, block).flatten(1)
        low = torch.where(finite[:, None], low, torch.nan)
        lfc[first : first + rows.shape[0]] = to_bf16(low)
    return lfc


@body("block_spread")
def block_spread(lfc: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, block: int) -> Tensor:
    """Every cell its block's value, held within the range of the dtype."""
    out = empty_map(lfc, size, stride, dtype, block)
    if out.numel() == 0:
        return out
    spatial, limit = tuple(size[2:]), torch.finfo(dtype).max
    grid = tuple(-(-dim // block) for dim in spatial)
    for first, cut in chunks(out, 2):
        piece = out[cut]
        rows = lfc[first : first + piece.shape[0] * piece.shape[1]].to(torch.float32)
        if dtype != torch.float64:
            rows = rows.clamp_(-limit, limit)
        piece.copy_(spread(rows.view(-1, *grid), spatial, block).reshape(piece.shape))
    return out
