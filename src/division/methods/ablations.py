"""DIVISION's ablations: the low-frequency part alone, and the high-frequency part alone."""

from dataclasses import dataclass

from division.codecs.codec import Codec
from division.codecs.dual import Dual
from division.methods.division import Division
from division.methods.method import Method, register
from division.methods.places import is_map
from division.rules import Reading, Use
from division.saved import Saved


@register("low-frequency")
@dataclass(frozen=True)
class LowFrequency(Method):
    """Keeps block means only ("DIVISION w/o HFC"): smooth maps, biased gradients. All else as in ``division``.

    Source: DIVISION (ICML 2023), section 5, ablation.

    Example:
        >>> LowFrequency(block=4)
        LowFrequency(block=4)
    """

    block: int = 8

    def __post_init__(self) -> None:
        Dual(self.block)

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """The LFC of the maps that ``division`` keeps in two parts."""
        return _part(Division(self.block), Dual(self.block, part="low"), reading, saved)

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "LowFrequency":
        """With ``block`` as given; it has no bits."""
        if bits is not None:
            raise ValueError(f"method 'low-frequency' keeps no codes: got bits={bits}, expected none")
        return cls(8 if block is None else block)


@register("high-frequency")
@dataclass(frozen=True)
class HighFrequency(Method):
    """Keeps the residual codes only ("DIVISION w/o LFC"): block means are lost. All else as in ``division``.

    Source: DIVISION (ICML 2023), section 5, ablation.

    Example:
        >>> HighFrequency()
        HighFrequency(block=8, bits=2)
    """

    block: int = 8
    bits: int = 2

    def __post_init__(self) -> None:
        Dual(self.block, self.bits)

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """The HFC of the maps that ``division`` keeps in two parts."""
        return _part(Division(self.block, self.bits), Dual(self.block, self.bits, "high"), reading, saved)

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "HighFrequency":
        """With ``block`` and ``bits`` as given, or their defaults."""
        return cls(8 if block is None else block, 2 if bits is None else bits)


def _part(whole: Division, part: Dual, reading: Reading, saved: Saved) -> Codec | None:
    codec = whole.lossy(reading, saved)
    ablated = is_map(reading, saved.tensor) and isinstance(codec, Dual) and (reading.use is Use.LINEAR or reading.norm)
    return part if ablated else codec
