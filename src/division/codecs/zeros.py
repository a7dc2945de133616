"""Exact zeros beside a lossy code of the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from division.codecs.bits import Bits
from division.codecs.codec import Codec, Packed, from_config, packed_like, register
from division.codecs.dual import Dual
from division.codecs.group import Group

_DUAL = Dual()
_RELU = Bits(lo=0.0, nan_inside=True, inside=1.0, outside=-1.0)


@register
@dataclass(frozen=True)
class Zeros(Codec):
    """A result of ReLU: which elements are zero, exactly, and the others in another codec.

    The ranges of ``inner`` then span the non-zero elements alone: zeros take their row's mean before encoding (a row
    is one plane of a map, one row of the last dim elsewhere). Where the sign code of ReLU is kept already, it serves
    here too. Packed bytes: those of ``inner`` and ``ceil(elements / 8)``, the latter only if no sign code is shared.

    Args:
        inner: the codec of the elements that are not zero.
        pattern: the sign code: what lies outside it decodes to 0.

    Example:
        >>> x = torch.randn(2, 3, 16, 16).relu()
        >>> codec = Zeros()
        >>> bool((codec.decode(codec.encode(x, seed=0))[x == 0] == 0).all())
        True
    """

    inner: Codec = _DUAL
    pattern: Bits = _RELU
    name: ClassVar[str] = "zeros"
    promises: ClassVar[frozenset[str]] = frozenset({"fixed_size"})

    def __post_init__(self) -> None:
        for setting in ("inner", "pattern"):
            if isinstance(getattr(self, setting), dict):
                object.__setattr__(self, setting, from_config(getattr(self, setting)))

    def companion(self, x: Tensor) -> Codec:
        """The sign code, which another saved tensor may have already."""
        return self.pattern

    def config(self) -> dict[str, Any]:
        """With the configs of the two codecs it is made of."""
        return {"codec": self.name, "inner": self.inner.config(), "pattern": self.pattern.config()}

    def why_not(self, x: Tensor) -> str | None:
        """What either of the two codecs refuses."""
        return self.inner.why_not(x) or self.pattern.why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """Both codes."""
        return self.inner.packed_bytes(size, dtype) + self.pattern.packed_bytes(size, dtype)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: the sign code's, then those of ``inner``."""
        return self.encode_beside(x, seed, self.pattern.encode(x, seed))

    def encode_beside(self, x: Tensor, seed: int, signs: Packed) -> Packed:
        """The same with a sign code that is there already."""
        inner = self.inner.encode(_filled(x, self.pattern.decode(signs) == self.pattern.inside), seed)
        return packed_like(x, signs.parts + inner.parts)

    def decode(self, packed: Packed) -> Tensor:
        """Zero outside the pattern; a row that decodes to NaN stays NaN as a whole."""
        signs, inner = (
            Packed(parts, packed.size, packed.stride, packed.dtype, packed.device)
            for parts in (packed.parts[:1], packed.parts[1:])
        )
        values = self.inner.decode(inner)
        zero = (self.pattern.decode(signs) == self.pattern.outside) & ~values.isnan()
        return values.masked_fill_(zero, 0.0)

    @classmethod
    def examples(cls) -> list[Codec]:
        """Around each of the lossy codecs."""
        return [cls(), cls(Group(4, 64, -1))]


def _filled(x: Tensor, kept: Tensor) -> Tensor:
    """``x`` with the mean of its row's kept elements where nothing is kept (0 in a row without any)."""
    dims = tuple(range(2, x.dim())) if x.dim() > 2 else (-1,)
    values = torch.where(kept, x, 0.0).to(torch.float32)
    mean = values.sum(dims, keepdim=True) / kept.sum(dims, keepdim=True).clamp_min(1)
    return torch.where(kept, x, mean.to(x.dtype))
