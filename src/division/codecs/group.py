"""The group codec: affine quantisation with stochastic rounding, group by group."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.kernels.ops import call
from division.kernels.reference.dual import DTYPES
from division.kernels.reference.group import total_bytes

_encode, _decode = map(call, ("group_encode", "group_decode"))
AXES = ("tensor", "sample", "plane")


@register
@dataclass(frozen=True)
class Group(Codec):
    """Groups of ``size`` consecutive elements, each in ``bits`` bits over its own range (offset and step in bfloat16).

    Packed bytes of a tensor of R rows of E elements, width b: ``R * (ceil(E * b / 8) + 4 * ceil(E / size))``.

    Sources: ActNN (Chen et al., ICML 2021), per-group quantisation with 256 elements; "fixed quantisation" of
    DIVISION (ICML 2023), section 5.

    Args:
        bits: 1 to 16, or one width for each index of the first dim that rows don't run along: of each sample, or of each
            channel with ``axis=(0, 2, 3)`` (not with ``axis="tensor"``).
        size: elements a group; None for the whole axis.
        axis: what a row is, along which groups are cut: ``"tensor"``, ``"sample"`` (all but dim 0), ``"plane"``
            (all but dims 0 and 1), or the numbers of one dim or several (negative ones count from the end).
        span: with the number of one dim, cuts that dim into rows of so many indices first, so that no group reaches
            from one into the next: of tokens ``(samples * tokens, features)``, the tokens of a sample.
        interleaved: with ``span``, the indices of a row do not follow one another but come in turns with those of the
            other rows: tokens ``(tokens * samples, features)``.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> codec = Group(bits=4, size=256, axis="sample")
        >>> x = torch.randn(8, 1000)
        >>> packed = codec.encode(x, seed=0)
        >>> packed.nbytes, codec.packed_bytes(x.shape, x.dtype)
        (4128, 4128)
        >>> bool((codec.decode(packed) - x).abs().max() < 0.6)
        True
    """

    bits: int | tuple[int, ...] = 2
    size: int | None = 256
    axis: str | int | tuple[int, ...] = "sample"
    span: int | None = None
    interleaved: bool = False
    name: ClassVar[str] = "group"

    def __post_init__(self) -> None:
        if not self.widths or not all(isinstance(b, int) and 1 <= b <= 16 for b in self.widths):
            raise ValueError(f"got bits={self.bits!r} for group, expected integers from 1 to 16")
        if self.size is not None and (not isinstance(self.size, int) or self.size < 1):
            raise ValueError(f"got size={self.size!r}, expected an integer of at least 1, or None for the whole axis")
        if self.axis not in AXES and not (self._dims and all(isinstance(d, int) for d in self._dims)):
            raise ValueError(f"got axis={self.axis!r}, expected one of {AXES}, the number of a dim or several")
        if isinstance(self.bits, tuple) and self.axis == "tensor":
            raise ValueError("got several widths with axis='tensor', expected rows that have a width each")
        if self.span is not None and not (isinstance(self.axis, int) and isinstance(self.span, int) and self.span >= 1):
            raise ValueError(
                f"got span={self.span!r} with axis={self.axis!r}, expected None, or an integer of at least 1 with one dim"
            )
        if self.interleaved and self.span is None:
            raise ValueError("got interleaved=True without a span, expected the number of indices that a row has")

    @property
    def widths(self) -> tuple[int, ...]:
        """``bits`` as a tuple, of one width or one for each sample."""
        return self.bits if isinstance(self.bits, tuple) else (self.bits,)

    @property
    def _dims(self) -> tuple[int, ...]:
        """``axis`` as the numbers of dims; none where it is a word."""
        return () if isinstance(self.axis, str) else self.axis if isinstance(self.axis, tuple) else (self.axis,)

    @property
    def promises(self) -> frozenset[str]:
        """Everything but exactness."""
        return frozenset({"unbiased", "fixed_size", "equivariant", "bounded"})

    def why_not(self, x: Tensor) -> str | None:
        """A real floating dtype and the dims that ``axis`` names are needed."""
        if x.dtype not in DTYPES:
            return f"dtype {x.dtype}"
        need = AXES.index(self.axis) if isinstance(self.axis, str) else max(max(d + 1, -d) for d in self._dims)
        if x.dim() < need:
            return f"{x.dim()} dims, too few for axis {self.axis!r}"
        own = [d % x.dim() for d in self._dims]
        if len(set(own)) < len(own):
            return f"axis {self.axis!r} names a dim twice"
        if self.span is not None and x.shape[own[0]] % self.span:
            return f"{x.shape[own[0]]} indices in dim {self.axis}, no multiple of span {self.span}"
        if len(self.widths) > 1:
            size, _, lead = self._as_rows(x.shape, x.stride())
            if not lead or size[0] != len(self.widths):
                return f"{size[0] if lead else 'no'} rows to have a width each, and {len(self.widths)} bit widths"
        return super().why_not(x)

    def _order(self, dims: int) -> tuple[list[int], int]:
        """The dims in the op's order, and how many of them lead."""
        if isinstance(self.axis, str):
            return list(range(dims)), AXES.index(self.axis)
        own = [d % dims for d in self._dims]
        return [d for d in range(dims) if d not in own] + own, dims - len(own)

    def _as_rows(self, size: Sequence[int], stride: Sequence[int]) -> tuple[list[int], list[int], int]:
        """Sizes and strides of the dims in the op's order, and how many of them lead."""
        if self.span is not None:
            axis, (sizes, strides) = self._dims[0] % len(size), (list(size), list(stride))
            rows, step = size[axis] // self.span, stride[axis]
            sizes[axis], strides[axis] = rows, step if self.interleaved else step * self.span
            return [*sizes, self.span], [*strides, step * rows if self.interleaved else step], len(size)
        order, lead = self._order(len(size))
        return [size[d] for d in order], [stride[d] for d in order], lead

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``rows * (ceil(elements * bits / 8) + 4 * ceil(elements / size))``, by row where widths differ."""
        size, _, lead = self._as_rows(size, [0] * len(size))
        rows, elements = prod(size[:lead]), prod(size[lead:])
        return total_bytes(size, lead, self.widths) + 4 * rows * -(-elements // (self.size or max(elements, 1)))

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: codes uint8 ``[bytes]``, offset and step bf16 ``[rows, groups, 2]``."""
        size, stride, lead = self._as_rows(x.shape, x.stride())
        rows = x.as_strided(size, stride)
        return packed_like(x, _encode(rows, lead, self._size(size, lead), self.widths, seed))

    def decode(self, packed: Packed) -> Tensor:
        """step * code + offset."""
        size, stride, lead = self._as_rows(packed.size, packed.stride)
        rows = _decode(*packed.parts, size, stride, packed.dtype, lead, self._size(size, lead), self.widths)
        return rows.as_strided(packed.size, packed.stride)  # type: ignore[no-any-return]

    def _size(self, size: Sequence[int], lead: int) -> int:
        return self.size or max(prod(size[lead:]), 1)

    @classmethod
    def examples(cls) -> list[Codec]:
        """Each axis, group sizes that do and don't divide, narrow and wide codes."""
        return [
            cls(2, 256, "sample"),
            cls(4, None, "plane"),
            cls(1, 7, "tensor"),
            cls(8, None, "tensor"),
            cls(3, 5, -1),
            cls(16, 32, 0),
            cls(11, None, 1),
            cls(2, 32, (-2, -1)),
            cls(4, 3, (1, 0)),
            cls(2, 4, 0, span=2),
            cls(4, 3, 0, span=2, interleaved=True),
        ]
