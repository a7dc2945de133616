"""The error-bounded code on the CPU."""

from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from division.kernels.cpu import library
from division.kernels.cpu.strided import shape
from division.kernels.ops import body
from division.kernels.reference import error_bound as reference

_PIECE = 16  # blocks; of as many, the library keeps the bytes until their sum is known


@body("error_bound_encode", "CPU")
def error_bound_encode(x: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """The bytes of all blocks, one after the other, and how many each takes."""
    encode, gather = library.function("error_bound_encode"), library.function("error_bound_gather")
    if encode is None or gather is None or x.numel() == 0:
        return reference.error_bound_encode(x, bound)
    blocks = reference.blocks_of(x.numel())
    sizes = x.new_empty(blocks, dtype=torch.int16)
    pieces = torch.zeros(-(-blocks // _PIECE), dtype=torch.int64)
    own = c_int64(x.numel()), library.pointer(sizes), library.pointer(pieces)
    try:
        left = encode(
            library.pointer(x), library.TYPES[x.dtype], shape(x.shape, x.stride()), library.pointer(bound), *own[1:]
        )
        if left:
            raise MemoryError(f"no memory for the code of {x.numel()} elements")
        payload = x.new_empty(int(sizes.sum()), dtype=torch.uint8)
    except BaseException:
        gather(*own, c_void_p(None))
        raise
    gather(*own, library.pointer(payload))
    return payload, sizes


@body("error_bound_decode", "CPU")
def error_bound_decode(
    payload: Tensor, sizes: Tensor, bound: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """The number of steps of each element times the step, or the element as it was."""
    decode = library.function("error_bound_decode")
    if decode is None or 0 in size:
        return reference.error_bound_decode(payload, sizes, bound, size, stride, dtype)
    out = reference.empty_result(payload, sizes, bound, size, stride, dtype)
    payload, sizes = payload.contiguous(), sizes.contiguous()
    wrong = decode(
        library.pointer(payload), c_int64(payload.numel()), library.pointer(sizes), library.pointer(bound),
        library.TYPES[dtype], shape(size, stride), library.pointer(out),
    )  # fmt: skip
    if wrong:
        raise ValueError(f"got a payload of {payload.numel()} bytes, expected {int(sizes.sum())}, the sum of the sizes")
    return out
