"""The frequency codec on the CPU."""

from collections.abc import Sequence
from ctypes import byref, c_double, c_int64
from math import prod

import torch
from torch import Tensor

from division.kernels.cpu import library
from division.kernels.cpu.dual import geometry
from division.kernels.ops import body
from division.kernels.reference import frequency as reference

_MATRICES = reference.matrices()


def _groups(map_: object) -> int:
    """So many groups of planes the body in use works on, one after the other."""
    count = c_int64()
    groups = library.function("frequency_groups")
    assert groups is not None
    groups(map_, byref(count))
    return count.value


def _starts(counts: Tensor) -> Tensor:
    """Where each group's values begin: int64 ``[groups + 1]``, the last of them the end."""
    starts = counts.new_zeros(counts.numel() + 1)
    torch.cumsum(counts, 0, out=starts[1:])
    return starts


@body("frequency_encode", "CPU")
def frequency_encode(x: Tensor, quality: float, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    """Masks, values and peaks."""
    find_peaks, count, put = (library.function(f"frequency_{name}") for name in ("peaks", "count", "values"))
    if find_peaks is None or count is None or put is None or x.dtype not in library.TYPES or x.numel() == 0:
        return reference.frequency_encode(x, quality, slope)
    given = library.pointer(x), library.TYPES[x.dtype], geometry(x.shape, x.stride(), reference.BLOCK)
    steps = c_double(quality), c_double(slope), library.pointer(_MATRICES)
    masks = x.new_empty((x.shape[0] * x.shape[1], reference.mask_bytes(x.shape)), dtype=torch.uint8)
    peaks = x.new_empty((x.shape[1],), dtype=torch.float32)
    counts = torch.empty(_groups(given[2]), dtype=torch.int64)
    find_peaks(*given, library.pointer(peaks))
    count(*given, *steps, *map(library.pointer, (peaks, masks, counts)))
    starts = _starts(counts)
    values = x.new_empty((int(starts[-1]),), dtype=torch.int8)
    put(*given, *steps, *map(library.pointer, (peaks, masks, starts, values)))
    return masks, values, peaks


@body("frequency_decode", "CPU")
def frequency_decode(
    masks: Tensor, values: Tensor, peaks: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    quality: float, slope: float,
) -> Tensor:  # fmt: skip
    """The blocks that the values are the coefficients of, held within the range of the dtype."""
    ones, decode = library.function("frequency_ones"), library.function("frequency_decode")
    if ones is None or decode is None or dtype not in library.TYPES or prod(size) == 0:
        return reference.frequency_decode(masks, values, peaks, size, stride, dtype, quality, slope)
    map_ = geometry(size, stride, reference.BLOCK)
    masks, values, peaks = (part.contiguous() for part in (masks, values, peaks))
    counts = torch.empty(_groups(map_), dtype=torch.int64)
    ones(library.pointer(masks), map_, library.pointer(counts))
    starts = _starts(counts)
    if int(starts[-1]) != values.numel():
        raise ValueError(reference.not_of_the_masks(values))
    out = reference.empty_map(masks, values, peaks, size, stride, dtype, quality, slope)
    decode(
        *map(library.pointer, (masks, values, peaks, starts)), library.TYPES[dtype], map_,
        c_double(quality), c_double(slope), library.pointer(_MATRICES), library.pointer(out),
    )  # fmt: skip
    return out
