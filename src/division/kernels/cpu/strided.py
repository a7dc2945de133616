"""How a layout is handed to the C++ bodies."""

from collections.abc import Sequence
from typing import Any

from division.kernels.cpu import library


def shape(size: Sequence[int], stride: Sequence[int]) -> Any:
    """What the C++ struct ``Strided`` reads: the number of dims, their sizes, their strides."""
    return library.numbers((len(size), *size, *stride))
