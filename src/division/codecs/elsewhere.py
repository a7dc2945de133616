"""A code whose parts are kept elsewhere: in host memory, or in a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from division.codecs.bits import Bits
from division.codecs.codec import Codec, Packed, from_config, register
from division.codecs.frequency import Frequency
from division.codecs.group import Group
from division.codecs.store import Piece, keep
from division.codecs.verbatim import Verbatim
from division.private import is_fake

#: Types of devices whose codes can be kept elsewhere.
PLACES = ("cpu", "cuda")
_GROUP = Group()


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Moved:
    """A :class:`Packed` whose parts are brought back when they are asked for.

    Attributes:
        pieces: where the parts are.
        size, stride, dtype, device: as of :class:`Packed`.
    """

    pieces: tuple[Piece, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The parts, on their own device; fresh tensors each time."""
        return tuple(piece.get() for piece in self.pieces)

    @property
    def nbytes(self) -> int:
        """Bytes kept by the pieces."""
        return sum(piece.nbytes for piece in self.pieces)


@register
@dataclass(frozen=True)
class Elsewhere(Codec):
    """The code of another codec: made on a GPU, kept in pinned host memory; made on the CPU, kept in a file.

    What goes over the bus or to the disk are the packed bytes. They are those of ``inner``.

    Args:
        inner: the codec.
        directory: where the file lies; None for the system's place for temporary files.

    Example:
        >>> x = torch.randn(8, 1000)
        >>> codec = Elsewhere(Group(bits=4))
        >>> bool(torch.equal(codec.decode(codec.encode(x, 0)), codec.inner.decode(codec.inner.encode(x, 0))))
        True
    """

    inner: Codec = _GROUP
    directory: str | None = None
    name: ClassVar[str] = "elsewhere"

    def __post_init__(self) -> None:
        if isinstance(self.inner, dict):
            object.__setattr__(self, "inner", from_config(self.inner))

    @property
    def promises(self) -> frozenset[str]:
        """Those of the inner codec."""
        return self.inner.promises

    @property
    def elsewhere(self) -> bool:
        """They lie in host memory, or in a file."""
        return True

    def config(self) -> dict[str, Any]:
        """With the config of the inner codec."""
        return {"codec": self.name, "inner": self.inner.config(), "directory": self.directory}

    def why_not(self, x: Tensor) -> str | None:
        """What the inner codec refuses."""
        return self.inner.why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """Those of the inner codec."""
        return self.inner.packed_bytes(size, dtype)

    def least_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """Those of the inner codec."""
        return self.inner.least_bytes(size, dtype)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """The inner codec's parts, moved."""
        # A file is written at once; a GPU's copy runs on, beside what may change the tensor.
        at_once = x.device.type == "cpu" and not is_fake(x)
        packed = self.inner.lend(x) if at_once and isinstance(self.inner, Verbatim) else self.inner.encode(x, seed)
        pieces = tuple(keep(part, self.directory) for part in packed.parts)
        return Moved(pieces, packed.size, packed.stride, packed.dtype, packed.device)  # type: ignore[return-value]

    def decode(self, packed: Packed) -> Tensor:
        """What the inner codec makes of the parts, brought back."""
        back = Packed(packed.parts, packed.size, packed.stride, packed.dtype, packed.device)
        kept: object = packed
        if isinstance(self.inner, Verbatim) and isinstance(kept, Moved):
            return self.inner.laid(back)  # what is brought back is nobody else's
        return self.inner.decode(back)

    @classmethod
    def examples(cls) -> list[Codec]:
        """Around a lossy codec, an exact one, one whose bytes depend on the values, and the tensor as it is."""
        return [cls(), cls(Bits(lo=0.0)), cls(Frequency()), cls(Verbatim())]
