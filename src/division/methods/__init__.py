"""Methods: which saved tensor is kept in which code. Objects, or names for them."""

from division.methods.ablations import HighFrequency, LowFrequency
from division.methods.division import Division
from division.methods.fixed_bits import FixedBits
from division.methods.jpeg_act import JpegAct
from division.methods.lossless import Lossless
from division.methods.method import METHODS, Method, register
from division.methods.none import Nothing
from division.methods.offload import Offload
from division.rules import Reading, Use
from division.saved import Saved

__all__ = [
    "Division", "FixedBits", "HighFrequency", "JpegAct", "Lossless", "LowFrequency", "Method", "Nothing", "Offload", "Reading", "Saved", "Use",
    "find", "names", "register",
]  # fmt: skip


def names() -> list[str]:
    """The known names; ``fixed`` stands for ``fixed-1`` to ``fixed-16``, any may follow ``offload-``."""
    return sorted("fixed-<bits>" if name == FixedBits.name else name for name in METHODS)


def find(name: str, block: int | None = None, bits: int | None = None) -> Method:
    """The method of that name.

    Args:
        name: one of :func:`names`.
        block, bits: settings, for methods that have them; None for their defaults.

    Raises:
        ValueError: an unknown name (the message lists the known ones), or a setting that the method hasn't or that is
            out of range.

    Example:
        >>> find("division", bits=4)
        Division(block=8, bits=4, restore_zeros=False)
        >>> find("fixed-2")
        FixedBits(bits=2, per='plane')
    """
    if isinstance(name, str):
        if name in METHODS:
            return METHODS[name].build(block, bits, "")
        if name.startswith(f"{Offload.name}-"):
            return Offload(find(name.removeprefix(f"{Offload.name}-"), block, bits))
        stem, _, suffix = name.rpartition("-")
        if suffix and stem == FixedBits.name:
            return FixedBits.build(block, bits, suffix)
    raise ValueError(f"got method {name!r}, expected one of: {', '.join(names())}")
