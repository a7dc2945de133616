"""What a codec is: a small frozen value with two verbs, ``encode`` and ``decode``."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from division.codecs.layout import dense_stride, overlaps

PROMISES = frozenset({"exact", "unbiased", "fixed_size", "equivariant", "bounded"})


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Packed:
    """A tensor in coded form: the parts a codec made of it, and what is needed to give it back.

    Attributes:
        parts: the tensors that are kept; what they hold is the codec's business.
        size: shape of the original.
        stride: strides the decoded tensor will have (the original's, gaps closed).
        dtype: dtype of the original.
        device: device of the original.
    """

    parts: tuple[Tensor, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        """Bytes kept in memory by the parts."""
        return sum(self.part_bytes)

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Bytes of each of the parts."""
        return tuple(part.nbytes for part in self.parts)

    def here(self) -> "Packed":
        """The same with its parts at hand."""
        return self

    def change(self, by: Callable[[Sequence[Tensor]], None]) -> None:
        """Let a function that is given all parts change the first of them in place."""
        by(self.parts)


def packed_like(x: Tensor, parts: tuple[Tensor, ...]) -> Packed:
    """A :class:`Packed` of ``x``, with its strides closed up."""
    return Packed(parts, tuple(x.shape), dense_stride(x.shape, x.stride()), x.dtype, x.device)


class Codec(ABC):
    """Base of all codecs; a subclass is a frozen dataclass in the file of its name, decorated with ``@register``.

    ``encode`` never writes to its input and draws no number from any global generator: all its randomness comes from
    ``seed``. ``decode`` may be called any number of times and returns a fresh tensor each time, the same bits always.
    Both expect to run under ``torch.no_grad()``.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def promises(self) -> frozenset[str]:
        """What the contract tests hold this codec to, a subset of ``PROMISES``.

        exact: decodes to the same bits. unbiased: the mean over seeds is the input. fixed_size: packed bytes depend
        on shape and dtype alone. equivariant: scaling by a power of two scales the result. bounded: no element is
        off by more than one quantisation step.
        """

    def why_not(self, x: Tensor) -> str | None:
        """Why this codec can't take ``x``, in a few words; None if it can."""
        return "overlapping layout" if overlaps(x) else None

    @abstractmethod
    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes of the coded form of a tensor of this shape and dtype: the documented formula.

        Of a codec whose codes take more or fewer bytes with what they hold, the most they may take.
        """

    def least_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """The fewest bytes that such a code may take; less than :meth:`packed_bytes` where they depend on the values."""
        return self.packed_bytes(size, dtype)

    @property
    def elsewhere(self) -> bool:
        """Whether its codes lie elsewhere than in the memory of the tensor's device: one as large as the tensor helps too."""
        return False

    @property
    def draws(self) -> bool:
        """Whether each code takes a seed of the step's: not what is only moved, so that the others' noise stays the same."""
        return True

    @property
    def whole(self) -> bool:
        """Whether its code is the tensor as it is, so that it serves whoever reads the same memory."""
        return False

    def companion(self, x: Tensor) -> "Codec | None":
        """A codec whose code of ``x`` this one can use (by ``encode_beside``), if another has made it."""
        return None

    def encode_beside(self, x: Tensor, seed: int, other: Packed) -> Packed:
        """:meth:`encode`, with the companion's code of ``x`` at hand; its parts are then shared, not made again."""
        raise NotImplementedError(f"codec {self.name!r} has no companion")

    def own_bytes(self, packed: Packed) -> int:
        """Bytes of a code's parts without those that belong to the code of another tensor."""
        return packed.nbytes

    def made(self, packed: Packed) -> None:
        """Told of a code of its own, once it is where it stays; not to be kept but weakly."""
        return

    @abstractmethod
    def encode(self, x: Tensor, seed: int) -> Packed:
        """The coded form of ``x``."""

    @abstractmethod
    def decode(self, packed: Packed) -> Tensor:
        """The tensor that ``packed`` stands for: same shape, dtype, device and (gaps closed) strides."""

    @classmethod
    @abstractmethod
    def examples(cls) -> list["Codec"]:
        """Instances that between them show every setting; the contract tests run on each."""

    def __str__(self) -> str:
        """The name and the settings that differ from their defaults: ``dual(bits=4)``."""
        shown = [f for f in fields(self) if f.compare]  # type: ignore[arg-type]
        settings = [f"{f.name}={getattr(self, f.name)}" for f in shown if getattr(self, f.name) != f.default]
        return f"{self.name}({', '.join(settings)})" if settings else self.name

    def config(self) -> dict[str, Any]:
        """The codec as plain data, for logs and JSON; :func:`from_config` reads it back."""
        return {"codec": self.name, **asdict(self)}  # type: ignore[call-overload]


CODECS: dict[str, type[Codec]] = {}
C = TypeVar("C", bound=type[Codec])


def register(codec: C) -> C:
    """Class decorator: makes a codec known by its ``name``, to :func:`from_config` and to the contract tests."""
    CODECS[codec.name] = codec
    return codec


def from_config(config: dict[str, Any]) -> Codec:
    """The codec that :meth:`Codec.config` described.

    Raises:
        ValueError: an unknown codec name; the message lists the known ones.
    """
    settings = dict(config)
    name = settings.pop("codec", None)
    if name not in CODECS:
        raise ValueError(f"got codec {name!r}, expected one of {sorted(CODECS)}")
    return CODECS[name](**{k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})
