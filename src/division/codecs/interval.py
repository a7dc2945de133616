"""Two bits an element, exact for ops that read on which side of a threshold it is, or whether it is at it, or NaN."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from division.codecs.bits import DTYPES, check_bounds, rounded
from division.codecs.codec import Codec, Packed, packed_like, register
from division.codecs.layout import dense_stride, from_memory_order, in_memory_order
from division.kernels import ops


@register
@dataclass(frozen=True, slots=True)
class Interval(Codec):
    """Inside an interval, outside it, at one of its bounds, or NaN: 2 bits, ``ceil(elements / 4)`` bytes.

    For ops that treat a bound or NaN differently by device, version or place in memory: what is at a bound and what is
    NaN comes back as it was, in the same place, and the op decides.

    Args:
        lo: lower bound; ``-inf`` for none.
        hi: upper bound; ``inf`` for none. One of the two at least is finite.
        inside: what an element strictly inside decodes to; of no account where ``lo == hi``.
        outside: what an element below ``lo`` or above ``hi`` decodes to.

    Raises:
        ValueError: no finite bound, bounds in the wrong order, or ``inside`` or ``outside`` on the wrong side.

    Example:
        >>> relu6 = Interval(lo=0.0, hi=6.0, inside=3.0, outside=-1.0)
        >>> relu6.decode(relu6.encode(torch.tensor([-2.0, 0.0, 5.0, 7.0, float("nan")]), seed=0))
        tensor([-1.,  0.,  3., -1., nan])
    """

    lo: float = -math.inf
    hi: float = math.inf
    inside: float = 1.0
    outside: float = -1.0

    name: ClassVar[str] = "interval"
    promises: ClassVar[frozenset[str]] = frozenset({"fixed_size"})

    def __post_init__(self) -> None:
        check_bounds(self.lo, self.hi)
        if not (self.lo <= self.hi and self._splits(self.lo, self.hi, self.inside, self.outside)):
            raise ValueError(f"got {self}, expected lo <= hi, inside strictly between them and outside beyond them")

    def _splits(self, lo: float, hi: float, inside: float, outside: float) -> bool:
        return (lo < inside < hi or self.lo == self.hi) and (outside < lo or outside > hi)

    def why_not(self, x: Tensor) -> str | None:
        """Refuses other dtypes, gapped and overlapping layouts, and bounds or values that the dtype can't tell apart."""
        if dense_stride(x.shape, x.stride()) != tuple(x.stride()):
            return "gapped layout"
        return Codec.why_not(self, x) or _misfit(self, x.dtype)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``ceil(elements / 4)``."""
        return -(-math.prod(size) // 4)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Two bits an element, in the order they lie in memory; ``seed`` is not used."""
        return packed_like(x, (ops.call("interval_encode")(in_memory_order(x), self.lo, self.hi),))

    def decode(self, packed: Packed) -> Tensor:
        """``inside``, ``outside``, a bound or NaN for each element. Of two bounds the lower stands for both."""
        values = (self.outside, self.inside, self.lo if math.isfinite(self.lo) else self.hi, math.nan)
        decode, codes, dtype = ops.call("interval_decode"), packed.parts[0], packed.dtype
        return from_memory_order(
            lambda size, stride: decode(codes, size, stride, dtype, values), packed.size, packed.stride
        )  # fmt: skip

    @classmethod
    def examples(cls) -> list[Codec]:
        """Both bounds, one of them, and a single point."""
        return [
            cls(lo=0.0, hi=6.0, inside=3.0, outside=-1.0),
            cls(lo=-0.5, inside=0.5, outside=-1.5),
            cls(hi=0.5, inside=-0.5, outside=1.5),
            cls(lo=0.0, hi=0.0),
        ]


@lru_cache(maxsize=1024)
def _misfit(codec: Interval, dtype: torch.dtype) -> str | None:
    if dtype not in DTYPES:
        return f"dtype {dtype}"
    lo, hi, inside, outside = (rounded(value, dtype) for value in (codec.lo, codec.hi, codec.inside, codec.outside))
    # Half-precision elements are compared in float32 by some ops and in their own dtype by others. That matters to those
    # equal to a rounded bound, which come back as they were only where there is one bound.
    if dtype.itemsize == 2 and math.isfinite(lo) and math.isfinite(hi) and (lo, hi) != (codec.lo, codec.hi):
        return f"a bound that {dtype} can't hold"
    return None if codec._splits(lo, hi, inside, outside) else f"an interval that {dtype} can't resolve"
