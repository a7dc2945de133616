"""Checkpoint: blocks of the model are run again in backward, in the place of keeping what they save."""

from dataclasses import dataclass
from typing import ClassVar

from division.methods.around import Around
from division.methods.division import Division
from division.methods.method import Blocks, register


@register("checkpoint")
@dataclass(frozen=True)
class Checkpoint(Around):
    """Keeps what goes into a few large parts of the network, and runs them again in backward; exact.

    The parts are found in the structure of the model, which must therefore be known: :func:`division.attach`, or
    ``division.compress("checkpoint", model=model)``. Each part is run by ``torch.utils.checkpoint``; its second run
    changes no running statistics. What is saved between the parts goes to ``method``. Names: ``checkpoint``,
    ``checkpoint-division``, …

    What is kept from forward to backward is ``packed_bytes`` of the report; while the largest part is run again,
    ``recomputed_bytes`` come on top.

    Args:
        method: for what is saved between the parts.
        segments: about how many parts; None for the square root of the number of blocks in the model.
        bits: keep the inputs of the parts in codes of 8 or 4 bits, as :class:`division.recompute` does: gradients are
            then those at slightly other inputs. None keeps them as they are.

    Raises:
        TypeError: no method.
        ValueError: another ``Checkpoint`` in it; fewer than 2 segments; other bits.

    Example:
        >>> Checkpoint(segments=6)
        Checkpoint(method=Nothing(), segments=6, bits=None)
    """

    verb: ClassVar[str] = "use between blocks"
    segments: int | None = None
    bits: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.segments is not None and (type(self.segments) is not int or self.segments < 2):
            raise ValueError(f"got segments={self.segments!r}, expected a whole number from 2, or None to choose it")
        if self.bits is not None and (type(self.bits) is not int or self.bits not in (4, 8)):
            raise ValueError(
                f"got bits={self.bits!r}, expected 8 or 4 (forward is run again on what they keep), or None"
            )

    @property
    def blocks(self) -> Blocks:  # type: ignore[override]
        """That they are run again."""
        return Blocks(self.segments, None if self.bits is None else Division(bits=self.bits))
