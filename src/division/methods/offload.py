"""Offload: the codes of another method, kept elsewhere."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from division.codecs.codec import Codec
from division.codecs.elsewhere import PLACES, worth_moving
from division.methods.around import Around
from division.methods.division import Division
from division.methods.method import Method, register
from division.rules import Reading
from division.saved import Saved


def expect_directory(directory: str | None) -> None:
    """Check that a directory is one.

    Raises:
        TypeError: no path.
        ValueError: there is no such directory.
    """
    if directory is not None and not isinstance(directory, str | Path):
        raise TypeError(f"got directory={directory!r}, expected the path of a directory, or None for the system's")
    if directory is not None and not Path(directory).is_dir():
        raise ValueError(f"got directory={directory!r}, expected the path of a directory")


@register("offload")
@dataclass(frozen=True)
class Offload(Around):
    """Codes as another method makes them; those of 4 KiB or more leave the device until backward needs them.

    From a GPU they go to pinned host memory, on a stream of their own; from the CPU to a file without a name in
    ``directory``, which goes with the process. Only packed bytes are moved: of DIVISION's 2 bits about a fourteenth of
    what plain offloading moves. What the other method leaves stays where it is. Names: ``offload``,
    ``offload-fixed-4``, …

    Args:
        method: whose codes they are.
        directory: for the file; None for the system's place for temporary files (``TMPDIR``).

    Raises:
        TypeError: no method, or no path.
        ValueError: another ``Offload``, or no such directory.

    Example:
        >>> Offload(Division(bits=4))
        Offload(method=Division(block=8, bits=4, restore_zeros=False), directory=None)
    """

    verb: ClassVar[str] = "offload"
    method: Method = field(default_factory=Division)
    directory: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_directory(self.directory)

    def codec(self, reading: Reading, saved: Saved) -> Codec | None:
        """The other method's, kept elsewhere where it is worth it."""
        codec = self.method.codec(reading, saved)
        x = saved.tensor
        if codec is None or codec.why_not(x) is not None or x.device.type not in PLACES:
            return codec
        return worth_moving(codec, x, self.directory)

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "Offload":
        """Around ``division``, with its ``block`` and ``bits``."""
        return cls(Division.build(block, bits, suffix))
