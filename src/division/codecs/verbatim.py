"""A tensor's bytes as they are, to be kept elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.codecs.layout import in_memory_order


@register
@dataclass(frozen=True, slots=True)
class Verbatim(Codec):
    """A copy, its elements in the order in which they lie in memory; exact, and as large as the tensor.

    Of use inside :class:`division.codecs.Elsewhere` alone.

    Example:
        >>> x = torch.randn(4, 3).t()
        >>> packed = Verbatim().encode(x, seed=0)
        >>> packed.nbytes, bool(torch.equal(Verbatim().decode(packed), x))
        (48, True)
    """

    name: ClassVar[str] = "verbatim"
    promises: ClassVar[frozenset[str]] = frozenset({"exact", "fixed_size"})
    draws: ClassVar[bool] = False

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """Those of the elements."""
        return prod(size) * dtype.itemsize

    def lend(self, x: Tensor) -> Packed:
        """The code in the memory of the tensor itself, unless that has gaps, for one who copies it at once."""
        elements = in_memory_order(x.detach()).reshape(-1)
        if elements.numel() == 1:  # the one stride of which may be any
            elements = elements.as_strided((1,), (1,), elements.storage_offset())
        return packed_like(x, (elements.contiguous(),))

    def laid(self, packed: Packed) -> Tensor:
        """The tensor in the memory of its code."""
        return packed.parts[0].as_strided(packed.size, packed.stride)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """A copy."""
        (elements,) = self.lend(x).parts
        return packed_like(x, (elements.clone(),))

    def decode(self, packed: Packed) -> Tensor:
        """A copy again."""
        return packed.parts[0].clone().as_strided(packed.size, packed.stride)

    @classmethod
    def examples(cls) -> list[Codec]:
        """The one there is."""
        return [cls()]
