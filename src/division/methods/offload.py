"""Offload: the codes of another method, kept elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from division.codecs.codec import Codec
from division.codecs.elsewhere import Elsewhere
from division.methods.division import Division
from division.methods.method import OTHER, Method, Observer, Run, register
from division.rules import Reading
from division.saved import Saved

LEAST = 1 << 12


@register("offload")
@dataclass(frozen=True)
class Offload(Method):
    """Codes as another method makes them; those of 4 KiB or more leave the device until backward needs them.

    From a GPU they go to pinned host memory, on a stream of their own; from the CPU to a file without a name in
    ``directory``, which goes with the process. Only packed bytes are moved: of DIVISION's 2 bits about a fourteenth of
    what plain offloading moves. What the other method leaves stays where it is. Names: ``offload``,
    ``offload-fixed-4``, …

    Args:
        method: whose codes they are.
        directory: for the file; None for the system's place for temporary files (``TMPDIR``).

    Raises:
        TypeError: no method.
        ValueError: another ``Offload``, or no such directory.

    Example:
        >>> Offload(Division(bits=4))
        Offload(method=Division(block=8, bits=4, restore_zeros=False), directory=None)
    """

    suffix: ClassVar[str] = OTHER
    method: Method = field(default_factory=Division)
    directory: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise TypeError(f"got {self.method!r} to offload, expected a method, such as Division()")
        if isinstance(self.method, Offload):
            raise ValueError("got a method to offload that is offloaded already, expected one such as Division()")
        if self.directory is not None and not Path(self.directory).is_dir():
            raise ValueError(f"got directory={self.directory!r}, expected the path of a directory")

    def codec(self, reading: Reading, saved: Saved) -> Codec | None:
        """The other method's, kept elsewhere where it is worth it."""
        codec = self.method.codec(reading, saved)
        x = saved.tensor
        if codec is None or codec.why_not(x) is not None or codec.packed_bytes(x.shape, x.dtype) < LEAST:
            return codec
        return Elsewhere(codec, self.directory)

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """The other method's."""
        return self.method.lossy(reading, saved)

    @property
    def learns(self) -> bool:  # type: ignore[override]
        """As the other method does."""
        return self.method.learns

    def bind(self, parameters: Mapping[str, Tensor], optimizer: Optimizer | None = None) -> None:
        """Hands them to the other method."""
        self.method.bind(parameters, optimizer)

    def begin_step(self) -> None:
        """Tells the other method."""
        self.method.begin_step()

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        """The other method's."""
        return self.method.observe(reading, saved, packed_bytes)

    def wants_step(self) -> bool:
        """As the other method does."""
        return self.method.wants_step()

    def calibrate(self, run: Run) -> None:
        """Lets the other method measure; what it tries out stays on the device."""
        self.method.calibrate(run)

    def expected_bytes(self, reading: Reading, saved: Saved) -> int | None:
        """The other method's."""
        return self.method.expected_bytes(reading, saved)

    def state_dict(self) -> dict[str, Any]:
        """What the other method learned."""
        return self.method.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hands it to the other method."""
        self.method.load_state_dict(state)

    @classmethod
    def around(cls, method: Method) -> "Offload":
        """With that method's codes."""
        return cls(method)

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "Offload":
        """Around ``division``, with its ``block`` and ``bits``."""
        return cls(Division.build(block, bits, suffix))
