"""The low-frequency part alone on the CPU."""

from collections.abc import Sequence

import torch
from torch import Tensor

from division.kernels.cpu import library
from division.kernels.cpu.dual import geometry
from division.kernels.ops import body
from division.kernels.reference import pool as reference


@body("block_pool", "CPU")
def block_pool(x: Tensor, block: int) -> Tensor:
    """The LFC of every plane."""
    pool = library.function("block_pool")
    if pool is None or x.dtype not in library.TYPES or x.numel() == 0:
        return reference.block_pool(x, block)
    lfc = reference.empty_lfc(x, block)
    numbers = geometry(x.shape, x.stride(), block)
    pool(library.pointer(x), library.TYPES[x.dtype], numbers, library.pointer(lfc))
    return lfc


@body("block_spread", "CPU")
def block_spread(lfc: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, block: int) -> Tensor:
    """Every cell its block's value, held within the range of the dtype."""
    spread = library.function("block_spread")
    if spread is None or dtype not in library.TYPES or 0 in size:
        return reference.block_spread(lfc, size, stride, dtype, block)
    out = reference.empty_map(lfc, size, stride, dtype, block)
    lfc = lfc.contiguous()
    numbers = geometry(size, stride, block)
    spread(library.pointer(lfc), library.TYPES[dtype], numbers, library.pointer(out))
    return out
