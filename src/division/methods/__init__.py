"""Methods: which saved tensor is kept in which code. Objects, or names for them."""

from division.methods.ablations import HighFrequency, LowFrequency
from division.methods.ac_gc import AcGc
from division.methods.actnn import ActNN
from division.methods.blpa import Blpa
from division.methods.checkpoint import Checkpoint
from division.methods.comet import Comet
from division.methods.division import Division
from division.methods.fixed_bits import FixedBits
from division.methods.gact import Gact
from division.methods.jpeg_act import JpegAct
from division.methods.lossless import Lossless
from division.methods.mesa import Mesa
from division.methods.method import METHODS, OTHER, Method, register
from division.methods.none import Nothing
from division.methods.offload import Offload
from division.methods.swap import Swap
from division.rules import Reading, Use
from division.saved import Saved

__all__ = [
    "AcGc", "ActNN", "Blpa", "Checkpoint", "Comet", "Division", "FixedBits", "Gact", "HighFrequency", "JpegAct",
    "Lossless", "LowFrequency", "Mesa", "Method", "Nothing", "Offload", "Reading", "Saved", "Swap", "Use", "find",
    "names", "register",
]  # fmt: skip


def names() -> list[str]:
    """The known names.

    ``fixed-<bits>`` stands for ``fixed-1`` to ``fixed-16``; any may follow ``offload-``, ``checkpoint-`` and ``swap-``.
    """
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
        stem = name
        while "-" in stem:
            stem = stem.rpartition("-")[0]
            method, suffix = METHODS.get(stem), name[len(stem) + 1 :]
            if method is not None and method.suffix == OTHER:
                return method.around(find(suffix, block, bits))
            if method is not None and method.suffix and suffix:
                return method.build(block, bits, suffix)
    raise ValueError(f"got method {name!r}, expected one of: {', '.join(names())}")
