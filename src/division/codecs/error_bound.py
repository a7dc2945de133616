"""The error-bounded codec: no element is off by more than a bound, and zeros stay zeros."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.codecs.layout import from_memory_order, in_memory_order
from division.kernels.ops import call
from division.kernels.reference.error_bound import FACTORS, blocks_of, most_bytes

_encode, _decode = map(call, ("error_bound_encode", "error_bound_decode"))


@register
@dataclass(frozen=True)
class ErrorBound(Codec):
    """Every element within ``bound`` of what it decodes to; rounded to nearest, so that ``seed`` makes no difference.

    Elements become whole numbers of steps (of twice the bound, a little less) before anything is predicted; of blocks of
    2048 elements, in the order they lie in memory, the numbers or the differences of neighbours are written as planes of
    bits: which are not 0, their low bits, and what is above those in unary. What is written depends on the values and
    takes from 2 bytes a block to 4 bytes a block more than the tensor, and 4 for the bound.

    The bound holds in the tensor's own dtype, exactly. Zeros decode to 0 (the sign of -0 may be lost), and what is
    within half a step of 0 does too. A block of which an element could not be kept so, one that is not finite or
    exceeds millions of steps, is kept bit for bit, the others are not touched by it.

    Sources: COMET (Jin et al., VLDB 2022) for what is asked of it; prequantisation as in cuSZ (Tian et al., PACT 2020).

    Args:
        bound: the most an element may be off; above 0 and finite. Less than float32 holds, it is rounded down.
        relative: it is a share of the greatest magnitude in the tensor. If that is not finite, all is kept bit for bit.

    Raises:
        ValueError: a bound out of range, or what is neither True nor False as ``relative``.

    Example:
        >>> codec = ErrorBound(0.01)
        >>> x = torch.randn(8, 1000).relu()
        >>> packed = codec.encode(x, seed=0)
        >>> y = codec.decode(packed)
        >>> bool(((y - x).abs() <= 0.01).all()), bool((y[x == 0] == 0).all())
        (True, True)
    """

    bound: float
    relative: bool = False
    name: ClassVar[str] = "error_bound"
    promises: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_bound(self.bound)
        if not isinstance(self.relative, bool):
            raise ValueError(f"got relative={self.relative!r}, expected True or False")

    def why_not(self, x: Tensor) -> str | None:
        """float32, float16 or bfloat16 is needed."""
        return f"dtype {x.dtype}" if x.dtype not in FACTORS else super().why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """The most: the elements as they are, 4 bytes a block of 2048, and 4."""
        return most_bytes(math.prod(size), dtype) + self.least_bytes(size, dtype)

    def least_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``2 * ceil(elements / 2048) + 4``, if everything decodes to 0."""
        return 2 * blocks_of(math.prod(size)) + 4

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: bytes of the blocks uint8 ``[bytes]``, how many each has int16 ``[blocks]``, the bound float32 ``[1]``.

        On a GPU the host waits once, for how many bytes there are in all.
        """
        bound = self._bound(x)
        payload, sizes = _encode(in_memory_order(x), bound)
        return packed_like(x, (payload, sizes, bound))

    def _bound(self, x: Tensor) -> Tensor:
        """float32 ``[1]``, never above what is asked for."""
        bound = torch.full((1,), rounded_down(self.bound), dtype=torch.float32, device=x.device)
        if not self.relative or x.numel() == 0:
            return bound
        low, high = torch.aminmax(x)
        most = torch.maximum(high, -low).to(torch.float32)
        least = torch.zeros_like(bound)
        share = torch.nextafter(bound * most, least)
        share = torch.where(most.isfinite(), share, 0)
        return torch.where(most == 0, 1, share)

    def decode(self, packed: Packed) -> Tensor:
        """Number of steps times step, rounded to the dtype."""
        return from_memory_order(
            lambda size, stride: _decode(*packed.parts, size, stride, packed.dtype), packed.size, packed.stride
        )

    @classmethod
    def examples(cls) -> list[Codec]:
        """Bounds that leave much, little and nothing; absolute and relative."""
        return [cls(0.01), cls(1e-3, relative=True), cls(1e-7, relative=True), cls(100.0)]


def check_bound(bound: float) -> None:
    """Refuse what is no bound."""
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < math.inf:
        raise ValueError(f"got bound={bound!r}, expected a finite number above 0")


def rounded_down(bound: float) -> float:
    """The greatest float32 that is not above."""
    near = np.float32(min(bound, float(np.finfo(np.float32).max)))
    return float(near if float(near) <= bound else np.nextafter(near, np.float32(0)))
