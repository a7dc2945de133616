"""Integers with a known small range, exact: pooling indices as offsets inside their window, others narrowed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.kernels import ops
from division.kernels.reference import index as _index

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@register
@dataclass(frozen=True, slots=True)
class Window(Codec):
    """Indices of max-pooling, flat into a plane of the input, as offsets inside their pooling window.

    An offset takes the fewest of 1, 2, 4, 8, 16 or 32 bits that hold ``prod(kernel)``; 2x2 windows take 2 bits instead
    of 64. Bytes: ``ceil(elements * bits / 8)``.

    Args:
        plane: the input's size along the pooled dims, 1 to 3 of them.
        kernel: window size along each.
        stride: window stride along each.
        padding: padding along each; None for none.
        dilation: dilation along each; None for 1.

    Raises:
        ValueError: not one number a pooled dim, or one that no pooling takes.

    Example:
        >>> x = torch.tensor([[[[1.0, 2.0, 5.0, 0.0], [0.0, 3.0, 1.0, 1.0]]]])
        >>> _, index = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        >>> codec = Window(plane=(2, 4), kernel=(2, 2), stride=(2, 2))
        >>> packed = codec.encode(index, seed=0)
        >>> index.tolist() == codec.decode(packed).tolist(), packed.nbytes
        (True, 1)
    """

    plane: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | None = None
    dilation: tuple[int, ...] | None = None

    name: ClassVar[str] = "window"
    promises: ClassVar[frozenset[str]] = frozenset({"exact", "fixed_size"})

    def __post_init__(self) -> None:
        given = (self.plane, self.kernel, self.stride, self._padding(), self._dilation())
        if any(len(numbers) != len(self.plane) for numbers in given) or not 1 <= len(self.plane) <= 3:
            raise ValueError(f"got {self}, expected one number a pooled dim in each setting, for 1 to 3 dims")
        if any(n < 1 for numbers in (self.kernel, self.stride, self._dilation()) for n in numbers):
            raise ValueError(f"got {self}, expected kernel, stride and dilation of 1 or more")

    def _padding(self) -> tuple[int, ...]:
        return self.padding or (0,) * len(self.plane)

    def _dilation(self) -> tuple[int, ...]:
        return self.dilation or (1,) * len(self.plane)

    def why_not(self, x: Tensor) -> str | None:
        """Refuses what is not int64 or has fewer dims than the window; the values are taken on trust.

        Also refuses settings under which a window may miss the plane whole: pooling then invents an index.
        """
        misses = zip(self.plane, self._padding(), self._dilation(), strict=True)
        if any(padding and dilation > size for size, padding, dilation in misses):
            return "windows beside the plane"
        return Codec.why_not(self, x) or _not_indices(x, self.plane)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``ceil(elements * bits / 8)``."""
        return -(-math.prod(size) * _index.window_bits(self.kernel) // 8)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """The offset of each index inside its window; ``seed`` is not used."""
        settings = (self.plane, self.kernel, self.stride, self._padding(), self._dilation())
        return packed_like(x, (ops.call("window_encode")(x, *settings),))

    def decode(self, packed: Packed) -> Tensor:
        """The flat indices: int64."""
        settings = (self.plane, self.kernel, self.stride, self._padding(), self._dilation())
        return ops.call("window_decode")(packed.parts[0], packed.size, packed.stride, *settings)  # type: ignore[no-any-return]

    @classmethod
    def examples(cls) -> list[Codec]:
        """One, two and three dims; every number of bits up to 16."""
        return [
            cls(plane=(10,), kernel=(2,), stride=(2,)),
            cls(plane=(8, 8), kernel=(2, 2), stride=(2, 2)),
            cls(plane=(9, 11), kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
            cls(plane=(7, 9, 8), kernel=(3, 3, 2), stride=(1, 2, 2), padding=(0, 1, 1), dilation=(2, 1, 3)),
            cls(plane=(20, 20), kernel=(17, 17), stride=(1, 1)),
        ]


def _not_indices(x: Tensor, plane: Sequence[int]) -> str | None:
    if x.dtype != torch.int64:
        return f"dtype {x.dtype}"
    return f"shape {tuple(x.shape)}" if x.dim() < len(plane) else None


@register
@dataclass(frozen=True, slots=True)
class AdaptiveWindow(Codec):
    """Indices of adaptive max-pooling as offsets inside their window, packed as by :class:`Window`.

    The window of output o of O reaches from ``floor(o * size / O)`` to ``ceil((o + 1) * size / O)``. An offset takes as
    many bits as the largest window needs.

    Args:
        plane: the input's size along the pooled dims, 1 to 3 of them.

    Raises:
        ValueError: not 1 to 3 pooled dims.

    Example:
        >>> x = torch.arange(10.0).view(1, 1, 10)
        >>> _, index = torch.nn.functional.adaptive_max_pool1d(x, 3, return_indices=True)
        >>> codec = AdaptiveWindow(plane=(10,))
        >>> codec.decode(codec.encode(index, seed=0))
        tensor([[[3, 6, 9]]])
    """

    plane: tuple[int, ...]

    name: ClassVar[str] = "adaptive_window"
    promises: ClassVar[frozenset[str]] = frozenset({"exact", "fixed_size"})

    def __post_init__(self) -> None:
        if not 1 <= len(self.plane) <= 3:
            raise ValueError(f"got plane {self.plane}, expected the sizes of 1 to 3 pooled dims")

    def _kernel(self, size: Sequence[int]) -> tuple[int, ...]:
        outputs = size[len(size) - len(self.plane) :]
        return tuple(_widest(n, count) for n, count in zip(self.plane, outputs, strict=True))

    def why_not(self, x: Tensor) -> str | None:
        """Refuses what is not int64 or has fewer dims than the plane; the values are taken on trust."""
        return Codec.why_not(self, x) or _not_indices(x, self.plane)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``ceil(elements * bits / 8)``, bits being what the largest window takes."""
        return -(-math.prod(size) * _index.window_bits(self._kernel(size)) // 8)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """The offset of each index inside its window; ``seed`` is not used."""
        return packed_like(x, (ops.call("window_encode")(x, self.plane, self._kernel(x.shape), [], [], []),))

    def decode(self, packed: Packed) -> Tensor:
        """The flat indices: int64."""
        code, kernel = packed.parts[0], self._kernel(packed.size)
        return ops.call("window_decode")(code, packed.size, packed.stride, self.plane, kernel, [], [], [])  # type: ignore[no-any-return]

    @classmethod
    def examples(cls) -> list[Codec]:
        """One, two and three dims."""
        return [cls(plane=(10,)), cls(plane=(7, 5)), cls(plane=(4, 6, 5))]


def _widest(size: int, outputs: int) -> int:
    return max((-(-(o + 1) * size // outputs) - o * size // outputs for o in range(outputs)), default=1) or 1


@register
@dataclass(frozen=True, slots=True)
class Narrow(Codec):
    """Whole numbers of a known range in the narrowest of uint8 or int8, int16 and int32 that holds them, exact.

    Args:
        limit: every value is below it; at least 1.
        signed: whether values may be negative, down to ``-limit``; otherwise 0 is the least.

    Raises:
        ValueError: a limit below 1, or above ``2**31``.

    Example:
        >>> index = torch.tensor([5, 0, 199])
        >>> packed = Narrow(limit=200).encode(index, seed=0)
        >>> packed.nbytes, Narrow(limit=200).decode(packed)
        (3, tensor([  5,   0, 199]))
    """

    limit: int
    signed: bool = False

    name: ClassVar[str] = "narrow"
    promises: ClassVar[frozenset[str]] = frozenset({"exact", "fixed_size"})

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= 1 << 31:
            raise ValueError(f"got limit {self.limit}, expected 1 to {1 << 31}")

    def _dtype(self) -> torch.dtype:
        byte, most = (torch.int8, 1 << 7) if self.signed else (torch.uint8, 1 << 8)
        return byte if self.limit <= most else torch.int16 if self.limit <= 1 << 15 else torch.int32

    def why_not(self, x: Tensor) -> str | None:
        """Refuses other than integers, and overlapping layouts; the values are taken on trust."""
        return Codec.why_not(self, x) or (None if x.dtype in _INTEGERS else f"dtype {x.dtype}")

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """1, 2 or 4 an element."""
        return math.prod(size) * self._dtype().itemsize

    def encode(self, x: Tensor, seed: int) -> Packed:
        """The values in the narrow dtype, in row-major order; ``seed`` is not used."""
        codes = torch.empty(x.shape, dtype=self._dtype(), device=x.device).copy_(x)
        return packed_like(x, (codes,))

    def decode(self, packed: Packed) -> Tensor:
        """The values in their own dtype."""
        x = torch.empty_strided(packed.size, packed.stride, dtype=packed.dtype, device=packed.device)
        return x.copy_(packed.parts[0])

    @classmethod
    def examples(cls) -> list[Codec]:
        """All three widths, without a sign and with one."""
        return [cls(limit, signed) for limit in (100, 200, 1000, 1 << 20) for signed in (False, True)]
