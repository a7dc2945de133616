"""A code whose parts are kept elsewhere: in host memory, or in a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from division.codecs.bits import Bits
from division.codecs.codec import Codec, Packed, from_config, register
from division.codecs.frequency import Frequency
from division.codecs.group import Group
from division.codecs.store import Piece, keep, stay
from division.codecs.verbatim import Verbatim
from division.private import is_fake

#: Types of devices whose codes can be kept elsewhere.
PLACES = ("cpu", "cuda")
#: Bytes of the smallest code that is worth moving.
LEAST = 1 << 12
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
        return sum(self.part_bytes)

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Bytes of each of the pieces."""
        return tuple(piece.nbytes for piece in self.pieces)

    def here(self) -> Packed:
        """With its parts brought back."""
        return Packed(self.parts, self.size, self.stride, self.dtype, self.device)

    def change(self, by: Callable[[Sequence[Tensor]], None]) -> None:
        """Let a function that is given all parts change the first of them, which is moved once more."""
        parts = [piece.peek() for piece in self.pieces]
        by(parts)
        self.pieces[0].put(parts[0])


def worth_moving(codec: Codec, x: Tensor, directory: str | None) -> Codec:
    """The codec with its codes of ``x`` elsewhere, where they take 4 KiB or more and aren't yet."""
    stays = isinstance(codec, Elsewhere) or codec.packed_bytes(x.shape, x.dtype) < LEAST
    return codec if stays else Elsewhere(codec, directory)


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

    @property
    def whole(self) -> bool:
        """Where the tensor is moved as it is."""
        return isinstance(self.inner, Verbatim)

    @property
    def draws(self) -> bool:
        """As the inner codec does."""
        return self.inner.draws

    def companion(self, x: Tensor) -> Codec | None:
        """The inner codec's, elsewhere if it is worth it."""
        found = self.inner.companion(x)
        return None if found is None else worth_moving(found, x, self.directory)

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

    def own_bytes(self, packed: Packed) -> int:
        """Those of the inner codec."""
        return self.inner.own_bytes(packed)

    def made(self, packed: Packed) -> None:
        """Tells the inner codec."""
        self.inner.made(packed)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """The inner codec's parts, moved."""
        # A file is written at once; a GPU's copy runs on, beside what may change the tensor.
        at_once = x.device.type == "cpu" and not is_fake(x)
        packed = self.inner.lend(x) if at_once and isinstance(self.inner, Verbatim) else self.inner.encode(x, seed)
        return self._moved(packed, {})

    def encode_beside(self, x: Tensor, seed: int, other: Packed) -> Packed:
        """The same; parts of the other code are where they are."""
        pieces = _pieces(other)
        parts = tuple(piece.peek() for piece in pieces)
        back = Packed(parts, other.size, other.stride, other.dtype, other.device)
        known = {id(part): piece for part, piece in zip(parts, pieces, strict=True)}
        return self._moved(self.inner.encode_beside(x, seed, back), known)

    def _moved(self, packed: Packed, known: dict[int, Piece]) -> Packed:
        pieces = tuple(known.get(id(part)) or keep(part, self.directory) for part in packed.parts)
        return Moved(pieces, packed.size, packed.stride, packed.dtype, packed.device)  # type: ignore[return-value]

    def decode(self, packed: Packed) -> Tensor:
        """What the inner codec makes of the parts, brought back."""
        kept: object = packed
        if isinstance(self.inner, Verbatim) and isinstance(kept, Moved):
            return self.inner.laid(packed.here())  # what is brought back is nobody else's
        return self.inner.decode(packed.here())

    @classmethod
    def examples(cls) -> list[Codec]:
        """Around a lossy codec, an exact one, one whose bytes depend on the values, and the tensor as it is."""
        return [cls(), cls(Bits(lo=0.0)), cls(Frequency()), cls(Verbatim())]


def _pieces(packed: Packed) -> tuple[Piece, ...]:
    """Where the parts of a code are, moved or not."""
    kept: object = packed
    return kept.pieces if isinstance(kept, Moved) else tuple(map(stay, packed.parts))
