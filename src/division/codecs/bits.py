"""One bit an element, exact for what backward asks of it: on which side of a threshold, or kept or dropped."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.codecs.layout import from_memory_order, in_memory_order
from division.kernels import ops
from division.kernels.reference import bits as _bits  # noqa: F401  (defines the ops)
from division.private import concrete, is_fake

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PROBE = 4096  # elements looked at before a whole tensor is


@register
@dataclass(frozen=True, slots=True)
class Bits(Codec):
    """Whether each element lies inside an interval: 1 bit, ``ceil(elements / 8)`` bytes.

    The decoded tensor holds ``inside`` or ``outside`` instead of the values: all that the backward of ReLU, Hardtanh
    or clamp reads is on which side they are. Bounds are compared in the tensor's own dtype, as the ops do it.

    Args:
        lo: lower bound; ``-inf`` for none.
        hi: upper bound; ``inf`` for none. One of the two at least is finite.
        closed_lo: whether ``lo`` itself is inside.
        closed_hi: whether ``hi`` itself is inside.
        nan_inside: whether NaN is inside.
        inside: what an element inside decodes to; itself inside.
        outside: what an element outside decodes to; itself outside.

    Raises:
        ValueError: no finite bound, or ``inside`` or ``outside`` on the wrong side.

    Example:
        >>> relu = Bits(lo=0.0, nan_inside=True, inside=1.0, outside=0.0)
        >>> relu.decode(relu.encode(torch.tensor([-2.0, 0.0, 3.0, float("nan")]), seed=0))
        tensor([0., 0., 1., 1.])
    """

    lo: float = -math.inf
    hi: float = math.inf
    closed_lo: bool = False
    closed_hi: bool = False
    nan_inside: bool = False
    inside: float = 1.0
    outside: float = 0.0

    name: ClassVar[str] = "bits"
    promises: ClassVar[frozenset[str]] = frozenset({"fixed_size"})

    def __post_init__(self) -> None:
        check_bounds(self.lo, self.hi)
        if not self._splits(self.lo, self.hi, self.inside, self.outside):
            raise ValueError(f"got inside={self.inside}, outside={self.outside}, expected one of each side of {self}")

    def _splits(self, lo: float, hi: float, inside: float, outside: float) -> bool:
        return self._holds(inside, lo, hi) and not self._holds(outside, lo, hi)

    def _holds(self, value: float, lo: float, hi: float) -> bool:
        if math.isnan(value):
            return self.nan_inside
        above = lo == -math.inf or value > lo or (self.closed_lo and value == lo)
        below = hi == math.inf or value < hi or (self.closed_hi and value == hi)
        return above and below

    def why_not(self, x: Tensor) -> str | None:
        """Refuses other dtypes, overlapping layouts, and bounds or values that the dtype can't tell apart."""
        return Codec.why_not(self, x) or _misfit(self, x.dtype)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``ceil(elements / 8)``."""
        return -(-math.prod(size) // 8)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """One bit an element, in the order they lie in memory; ``seed`` is not used."""
        ordered = in_memory_order(x)
        codes = ops.call("bits_encode")(ordered, self.lo, self.hi, self.closed_lo, self.closed_hi, self.nan_inside)
        return packed_like(x, (codes,))

    def decode(self, packed: Packed) -> Tensor:
        """``inside`` or ``outside`` for each element."""
        decode, codes, dtype = ops.call("bits_decode"), packed.parts[0], packed.dtype
        return from_memory_order(
            lambda size, stride: decode(codes, size, stride, dtype, self.inside, self.outside),
            packed.size, packed.stride,
        )  # fmt: skip

    @classmethod
    def examples(cls) -> list[Codec]:
        """A half-line, open and closed intervals, with NaN on either side."""
        return [
            cls(lo=0.0, nan_inside=True),
            cls(lo=-3.0, hi=3.0, inside=0.0, outside=4.0),
            cls(lo=0.0, hi=6.0, nan_inside=True, inside=3.0, outside=-1.0),
            cls(hi=0.5, closed_hi=True, inside=-0.5, outside=1.5),
        ]


def check_bounds(lo: float, hi: float) -> None:
    """Refuse an interval without a finite bound, or with NaN for one."""
    if not (math.isfinite(lo) or math.isfinite(hi)) or math.isnan(lo + hi) or lo == math.inf or hi == -math.inf:
        raise ValueError(f"got an interval from {lo} to {hi}, expected at least one finite bound, and no NaN")


@lru_cache(maxsize=1024)
def _misfit(codec: Bits, dtype: torch.dtype) -> str | None:
    if dtype not in DTYPES:
        return f"dtype {dtype}"
    lo, hi, inside, outside = (rounded(value, dtype) for value in (codec.lo, codec.hi, codec.inside, codec.outside))
    # Half-precision elements are compared in float32 by some ops and in their own dtype by others.
    if dtype.itemsize == 2 and (lo, hi) != (codec.lo, codec.hi):
        return f"a bound that {dtype} can't hold"
    return None if codec._splits(lo, hi, inside, outside) else f"an interval that {dtype} can't resolve"


def rounded(value: float, dtype: torch.dtype) -> float:
    """``value`` as the dtype holds it; in plain Python, since torch may be making fake tensors only."""
    if dtype == torch.float64 or not math.isfinite(value):
        return value
    try:
        if dtype == torch.bfloat16:
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
            return float(struct.unpack("<f", struct.pack("<I", bits))[0])
        kind = "<e" if dtype == torch.float16 else "<f"
        return float(struct.unpack(kind, struct.pack(kind, value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


@register
@dataclass(frozen=True, slots=True)
class Mask(Codec):
    """A bool tensor, or one of two values {0, c} such as a dropout mask: 1 bit an element, exact.

    ``ceil(elements / 8)`` bytes, and one element of the dtype for c where that isn't bool.

    Example:
        >>> x = torch.tensor([0.0, 1.25, 1.25, 0.0])
        >>> packed = Mask().encode(x, seed=0)
        >>> packed.nbytes, Mask().decode(packed)
        (5, tensor([0.0000, 1.2500, 1.2500, 0.0000]))
    """

    name: ClassVar[str] = "mask"
    promises: ClassVar[frozenset[str]] = frozenset({"exact", "fixed_size"})

    def why_not(self, x: Tensor) -> str | None:
        """Refuses what is no mask: it looks at the values, see :func:`is_mask`."""
        return Codec.why_not(self, x) or (None if is_mask(x) else "not a mask, or not known to be one")

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``ceil(elements / 8)``, and the size of one element where the dtype isn't bool."""
        return -(-math.prod(size) // 8) + (0 if dtype == torch.bool else dtype.itemsize)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """One bit an element, in the order they lie in memory; ``x`` must be a mask, ``seed`` is not used."""
        codes = ops.call("mask_encode")(in_memory_order(x))
        return packed_like(x, (codes,) if x.dtype == torch.bool else (codes, _other_value(x)))

    def decode(self, packed: Packed) -> Tensor:
        """The mask, bit for bit."""
        codes, *rest = packed.parts
        value = rest[0] if rest else torch.ones(1, dtype=packed.dtype, device=codes.device)
        decode = ops.call("mask_decode")
        return from_memory_order(
            lambda size, stride: decode(codes, value, size, stride), packed.size, packed.stride
        )  # fmt: skip

    @classmethod
    def examples(cls) -> list[Codec]:
        """The one there is."""
        return [cls()]


def _other_value(x: Tensor) -> Tensor:
    """The value of a mask that isn't 0, one element; 0 if it has none."""
    if x.numel() == 0:
        return x.new_zeros(1)
    low, high = torch.aminmax(x)
    return torch.where(high != 0, high, low).view(1)


def is_mask(x: Tensor) -> bool:
    """Whether ``x`` is bool, or real with no other values than +0 and one finite c.

    The values are read on the CPU alone, since elsewhere that would wait for the device: there, a tensor that isn't
    bool is no mask. A fake tensor has no values and passes.

    Example:
        >>> is_mask(torch.tensor([0.0, 2.0, 2.0])), is_mask(torch.tensor([1.0, 2.0]))
        (True, False)
    """
    if x.dtype == torch.bool:
        return True
    if x.is_complex() or (x.is_floating_point() and x.dtype not in DTYPES):
        return False
    if is_fake(x):
        return True
    if x.device.type != "cpu":
        return False
    with concrete():
        probe = x.detach()
        while probe.dim() and probe.numel() > _PROBE:
            probe = probe[0]
        return _two_values(probe) and (probe.numel() == x.numel() or _two_values(x.detach()))


def _two_values(x: Tensor) -> bool:
    value = _other_value(x)
    if not math.isfinite(value.item()):
        return False
    zero = x == 0
    if x.is_floating_point() and bool((zero & torch.signbit(x)).any()):
        return False
    return bool((zero | (x == value)).all())
