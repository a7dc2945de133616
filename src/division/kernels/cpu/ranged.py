"""The ranged codec's op on the CPU: C++ beside that of the group codec."""

from ctypes import c_uint32
from math import prod

from torch import Tensor

from division.kernels.cpu import library
from division.kernels.cpu.strided import shape
from division.kernels.noise import seed_words
from division.kernels.ops import body
from division.kernels.reference import ranged as reference


@body("ranged_encode", "CPU")
def ranged_encode(x: Tensor, scale: Tensor, lead: int, bits: int, seed: int) -> Tensor:
    """The codes of every row by its (offset, step)."""
    encode = library.function("ranged_encode")
    if encode is None or x.dtype not in library.TYPES or x.numel() == 0:
        return reference.ranged_encode(x, scale, lead, bits, seed)
    codes, scale = reference.empty_codes(x, scale, lead, bits, seed), scale.contiguous()
    elements = prod(x.shape[lead:])
    rows = library.numbers((prod(x.shape[:lead]), elements, elements, 1, bits))
    low, high = seed_words(seed)
    encode(
        library.pointer(x), library.TYPES[x.dtype], shape(x.shape, x.stride()), rows, c_uint32(low), c_uint32(high),
        library.pointer(codes), library.pointer(scale),
    )  # fmt: skip
    return codes
