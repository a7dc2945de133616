"""Swap: saved tensors as they are, or in another method's codes, kept elsewhere until backward needs them."""

from dataclasses import dataclass
from typing import ClassVar

from division.codecs.codec import Codec
from division.codecs.elsewhere import LEAST, PLACES, Elsewhere, worth_moving
from division.codecs.verbatim import Verbatim
from division.methods.around import Around
from division.methods.method import Blocks, register
from division.methods.none import Nothing
from division.methods.offload import expect_directory
from division.rules import Reading, Use
from division.saved import Saved

_VERBATIM = Verbatim()


@register("swap")
@dataclass(frozen=True)
class Swap(Around):
    """Moves saved tensors off the device until backward needs them; exact.

    From a GPU they go to pinned host memory on a stream of their own, and are brought back ahead of the nodes that need
    them; from the CPU to a file without a name in ``directory``, which goes with the process. What another ``method``
    codes goes as its code, the rest unpacked: of ``swap-division`` all is elsewhere, where ``offload-division`` leaves on
    the device what ``division`` leaves; of ``swap-checkpoint`` the inputs of the blocks are moved too. Tensors and codes below 4 KiB stay. Names: ``swap``, ``swap-division``, …

    The report's ``packed_bytes`` are about the normal ones, as in the papers' tables; ``elsewhere_bytes`` says how many of
    them are not on the device.

    Args:
        method: makes codes first, where it does; none by default.
        directory: for the file; None for the system's place for temporary files (``TMPDIR``).

    Raises:
        TypeError: no method, or no path.
        ValueError: another ``Swap`` in it, or no such directory.

    Example:
        >>> Swap()
        Swap(method=Nothing(), directory=None)
    """

    verb: ClassVar[str] = "use before swapping"
    directory: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_directory(self.directory)

    @property
    def blocks(self) -> Blocks | None:  # type: ignore[override]
        """As the other method does, from inputs that are moved too."""
        blocks = self.method.blocks
        return None if blocks is None else Blocks(blocks.segments, Swap(blocks.inputs or Nothing(), self.directory))

    def codec(self, reading: Reading, saved: Saved) -> Codec | None:
        """The other method's, or the tensor as it is; kept elsewhere where that is worth it."""
        codec, x = self.method.codec(reading, saved), saved.tensor
        if reading.use is Use.SHAPE:
            return reading.codec  # nothing is kept, and nothing to be moved
        if x.nbytes < LEAST or x.device.type not in PLACES or isinstance(codec, Elsewhere):
            return codec
        if codec is None or codec.why_not(x) is not None or codec.least_bytes(x.shape, x.dtype) >= x.nbytes:
            return Elsewhere(_VERBATIM, self.directory)
        return worth_moving(codec, x, self.directory)
