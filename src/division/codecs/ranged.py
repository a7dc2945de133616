"""The ranged codec: quantisation over ranges shared by a batch, which may come from outside."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.kernels.ops import call
from division.kernels.reference.dual import DTYPES
from division.kernels.reference.group import total_bytes
from division.kernels.reference.quantize import spanning, to_bf16

_encode, _decode = map(call, ("ranged_encode", "group_decode"))
#: Given the least and the greatest element of each group, float32 ``[groups]``, the ends of the range of its codes.
Widen = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@register
@dataclass(frozen=True)
class Ranged(Codec):
    """Slices of one dim, such as heads or channels, each in ``bits`` bits over one range that all samples share.

    Stochastic rounding as in the codec ``group``, offset and step of a slice in bfloat16. Packed bytes of a tensor of
    E elements in G slices: ``G * (ceil(E / G * bits / 8) + 4)``: at 8 bits a byte an element, whatever the batch.

    A slice that holds a value that isn't finite decodes to NaN as a whole.

    Source: Mesa (Pan et al., 2021), head-wise quantisation.

    Args:
        bits: 1 to 16.
        axis: the dim that is cut into slices; negative ones count from the end.
        groups: how many slices, of equally many indices; None for one an index.
        interleaved: the indices of a slice do not follow one another but come in turns with those of the others: heads,
            where samples and heads are one dim ``(samples * heads, tokens, features)``.
        widen: what makes the ranges from those of the tensor, a running estimate for instance; it takes no part in
            comparisons. Elements outside take the nearest code. None for the tensor's own ranges.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> codec = Ranged(axis=1, groups=2)
        >>> x = torch.randn(8, 4, 10, 10)
        >>> packed = codec.encode(x, seed=0)
        >>> packed.nbytes, codec.packed_bytes(x.shape, x.dtype)
        (3208, 3208)
        >>> bool((codec.decode(packed) - x).abs().max() < 0.05)
        True
    """

    bits: int = 8
    axis: int = 1
    groups: int | None = None
    interleaved: bool = False
    widen: Widen | None = field(default=None, repr=False, compare=False)
    name: ClassVar[str] = "ranged"

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not 1 <= self.bits <= 16:
            raise ValueError(f"got bits={self.bits!r} for ranged, expected an integer from 1 to 16")
        if type(self.axis) is not int:
            raise ValueError(f"got axis={self.axis!r} for ranged, expected the number of a dim")
        if self.groups is not None and (type(self.groups) is not int or self.groups < 1):
            raise ValueError(f"got groups={self.groups!r}, expected an integer of at least 1, or None for one an index")
        if not isinstance(self.interleaved, bool):
            raise ValueError(f"got interleaved={self.interleaved!r} for ranged, expected True or False")

    @property
    def promises(self) -> frozenset[str]:
        """Everything but exactness, as long as the ranges cover the tensor."""
        return frozenset({"unbiased", "fixed_size", "equivariant", "bounded"})

    def config(self) -> dict[str, Any]:
        """The settings; not where the ranges come from."""
        settings = {"bits": self.bits, "axis": self.axis, "groups": self.groups, "interleaved": self.interleaved}
        return {"codec": self.name, **settings}

    def why_not(self, x: Tensor) -> str | None:
        """A real floating dtype and a dim that can be cut so are needed."""
        if x.dtype not in DTYPES:
            return f"dtype {x.dtype}"
        if x.dim() < max(self.axis + 1, -self.axis):
            return f"{x.dim()} dims, too few for axis {self.axis}"
        if x.shape[self.axis] % (self.groups or 1):
            return f"{x.shape[self.axis]} indices in dim {self.axis}, no multiple of {self.groups} groups"
        return super().why_not(x)

    def _as_rows(self, size: Sequence[int], stride: Sequence[int]) -> tuple[list[int], list[int]]:
        """Sizes and strides with the slices in front."""
        axis = self.axis % len(size)
        groups = self.groups or size[axis]
        within = size[axis] // groups if groups else 1
        outer, inner = stride[axis] * within, stride[axis]
        if self.interleaved:
            outer, inner = inner, inner * groups
        sizes = [groups, *size[:axis], within, *size[axis + 1 :]]
        strides = [outer, *stride[:axis], inner, *stride[axis + 1 :]]
        if within == 1:
            del sizes[axis + 1], strides[axis + 1]
        return sizes, strides

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``groups * (ceil(elements / groups * bits / 8) + 4)``; 0 of an empty tensor."""
        sizes, _ = self._as_rows(size, [0] * len(size))
        return total_bytes(sizes, 1, (self.bits,)) + 4 * sizes[0] * bool(prod(sizes[1:]))

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: codes uint8 ``[bytes]``, offset and step bf16 ``[groups, 1, 2]``."""
        rows = x.as_strided(*self._as_rows(x.shape, x.stride()))
        scale = self._scale(rows)
        return packed_like(x, (_encode(rows, scale, 1, self.bits, seed), scale))

    def _scale(self, rows: Tensor) -> Tensor:
        if rows.numel() == 0:
            return rows.new_empty((rows.shape[0], min(prod(rows.shape[1:]), 1), 2), dtype=torch.bfloat16)
        rows = rows[..., None]  # one dim to reduce at the least: none would be all
        dims = list(range(1, rows.dim()))
        low, high = (found.to(torch.float32) for found in (rows.amin(dims), rows.amax(dims)))
        if self.widen is not None:
            low, high = self.widen(low, high)
        return to_bf16(torch.stack(spanning(low, high, self.bits), -1))[:, None]

    def decode(self, packed: Packed) -> Tensor:
        """step * code + offset."""
        size, stride = self._as_rows(packed.size, packed.stride)
        group = max(prod(size[1:]), 1)
        rows = _decode(*packed.parts, size, stride, packed.dtype, 1, group, (self.bits,))
        return rows.as_strided(packed.size, packed.stride)  # type: ignore[no-any-return]

    @classmethod
    def examples(cls) -> list[Codec]:
        """Channels one by one and in slices, the last dim, samples and heads in one, narrow and wide codes."""
        return [cls(), cls(8, 0, 2, interleaved=True), cls(3, 1, 1), cls(16, -1)]
