"""Fixed quantisation: every value in the same few bits."""

from dataclasses import dataclass
from typing import ClassVar

from division.codecs.codec import Codec
from division.codecs.group import Group
from division.methods.method import Method, register
from division.rules import Reading
from division.saved import Saved

PLACES = ("plane", "sample", "tensor")


@register("fixed")
@dataclass(frozen=True)
class FixedBits(Method):
    """Affine quantisation with stochastic rounding in ``bits`` bits, nothing else ("Fixed Quant").

    Source: DIVISION (ICML 2023), section 5, ablation. Names: ``fixed-2``, ``fixed-4``, …

    Args:
        bits: 1 to 16.
        per: what shares one range: ``"plane"`` (a sample's channel; the sample where there are fewer than three
            dims), ``"sample"``, ``"tensor"``, or a number: groups of so many consecutive elements of a sample.

    Raises:
        ValueError: a setting out of range.

    Example:
        >>> FixedBits(4, per=256)
        FixedBits(bits=4, per=256)
    """

    suffix: ClassVar[str] = "<bits>"
    bits: int = 2
    per: str | int = "plane"

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 1 <= self.bits <= 16:
            raise ValueError(f"got method 'fixed' with bits={self.bits!r}, expected an integer from 1 to 16")
        if not isinstance(self.per, int) and self.per not in PLACES:
            raise ValueError(f"got per={self.per!r}, expected one of {PLACES} or a group size")
        self._group(3)

    def _group(self, dims: int) -> Group:
        if isinstance(self.per, int):
            return Group(self.bits, self.per, "sample" if dims else "tensor")
        axis = "sample" if self.per == "plane" and dims < 3 else self.per
        return Group(self.bits, None, axis if dims else "tensor")

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``group`` over whole planes, samples or tensors, or over groups of a sample."""
        return self._group(saved.tensor.dim())

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "FixedBits":
        """``fixed-<bits>``; ``fixed`` alone takes ``bits`` as given, or 2."""
        if block is not None:
            raise ValueError(f"method 'fixed' has no blocks: got block={block}, expected none")
        if suffix and bits is not None and str(bits) != suffix:
            raise ValueError(f"got method 'fixed-{suffix}' and bits={bits}, expected one of them")
        if suffix and not suffix.isdecimal():
            raise ValueError(f"got method 'fixed-{suffix}', expected 'fixed-' and a number of bits from 1 to 16")
        return cls(int(suffix) if suffix else 2 if bits is None else bits)
