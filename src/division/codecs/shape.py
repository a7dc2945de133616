"""Nothing but size, dtype and strides, for tensors of which backward reads no element."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.codecs.layout import overlaps


def _placeholder(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory nobody has written. The tests put NaN in its place."""
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


@register
@dataclass(frozen=True, slots=True)
class Shape(Codec):
    """Keeps no element: 0 bytes. Decodes to uninitialised memory of the same shape, dtype and strides.

    Takes any layout; an overlapping one comes back with its own strides, a gapped one dense.

    Example:
        >>> packed = Shape().encode(torch.ones(2, 3).t(), seed=0)
        >>> packed.nbytes, Shape().decode(packed).stride()
        (0, (1, 3))
    """

    name: ClassVar[str] = "shape"
    promises: ClassVar[frozenset[str]] = frozenset({"fixed_size"})

    def why_not(self, x: Tensor) -> str | None:
        """Refuses nothing."""
        return None

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """0."""
        return 0

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Size, strides, dtype and device; no element is read."""
        if overlaps(x):
            return Packed((), tuple(x.shape), tuple(x.stride()), x.dtype, x.device)
        return packed_like(x, ())

    def decode(self, packed: Packed) -> Tensor:
        """Memory of that shape, its elements undefined."""
        return _placeholder(packed.size, packed.stride, packed.dtype, packed.device)

    @classmethod
    def examples(cls) -> list[Codec]:
        """The one there is."""
        return [cls()]
