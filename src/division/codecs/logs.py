"""Logarithms of probabilities, kept as the probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, from_config, packed_like, register
from division.codecs.group import Group

_GROUP = Group(8, 32, -1)
_CHUNK = 1 << 20  # elements whose exponentials are made at a time


@register
@dataclass(frozen=True)
class Logs(Codec):
    """A result of log-softmax, of which backward reads the exponential alone: that is what ``inner`` codes.

    The gradient is linear in it, so the code of an unbiased codec keeps the gradient unbiased. Minus infinity is the
    logarithm of a probability of 0, which the codec ``group`` keeps exactly. Packed bytes are those of ``inner``, for each piece along dim 0 of about a million
    elements.

    Args:
        inner: the codec of the probabilities.

    Example:
        >>> x = torch.randn(4, 64).log_softmax(-1)
        >>> codec = Logs()
        >>> bool((codec.decode(codec.encode(x, seed=0)).exp() - x.exp()).abs().max() < 0.01)
        True
    """

    inner: Codec = _GROUP
    name: ClassVar[str] = "logs"
    promises: ClassVar[frozenset[str]] = frozenset({"fixed_size"})

    def __post_init__(self) -> None:
        if isinstance(self.inner, dict):
            object.__setattr__(self, "inner", from_config(self.inner))

    def config(self) -> dict[str, Any]:
        """With the config of the codec it is made of."""
        return {"codec": self.name, "inner": self.inner.config()}

    def why_not(self, x: Tensor) -> str | None:
        """What ``inner`` refuses."""
        return self.inner.why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """The sum over the pieces."""
        return sum(self.inner.packed_bytes((len(rows), *size[1:]) if size else size, dtype) for rows in _pieces(size))

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: those of each piece, one after the other."""
        parts: list[Tensor] = []
        for i, rows in enumerate(_pieces(x.shape)):
            piece = x[rows.start : rows.stop] if x.dim() else x
            parts += self.inner.encode(piece.exp(), seed + i).parts
        return packed_like(x, tuple(parts))

    def decode(self, packed: Packed) -> Tensor:
        """The logarithms of what the pieces decode to; of what that is below 0, minus infinity."""
        out = torch.empty_strided(packed.size, packed.stride, dtype=packed.dtype, device=packed.device)
        pieces = list(_pieces(packed.size))
        each = len(packed.parts) // max(len(pieces), 1)
        for i, rows in enumerate(pieces):
            piece = out[rows.start : rows.stop] if packed.size else out
            parts = packed.parts[i * each : (i + 1) * each]
            code = packed_like(piece, parts)
            piece.copy_(self.inner.decode(code).clamp_min_(0).log_())
        return out

    @classmethod
    def examples(cls) -> list[Codec]:
        """Of rows and of maps."""
        return [cls(), cls(Group(8, 32, "plane"))]


def _pieces(size: Sequence[int]) -> Iterator[range]:
    """The indices of dim 0, piece by piece; one of a tensor without dims."""
    if not size:
        yield range(1)
        return
    count = max(1, _CHUNK // max(1, prod(size[1:])))
    for first in range(0, size[0], count):
        yield range(first, min(size[0], first + count))
