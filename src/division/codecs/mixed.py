"""The mixed codec: groups of a sample, in a width that each sample is given by its ranges."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, prod
from typing import ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.kernels.ops import call
from division.kernels.reference.dual import DTYPES
from division.kernels.reference.mixed import LARGEST, LEAST, MOST, UNIT, ranges

_encode, _decode = map(call, ("mixed_encode", "mixed_decode"))


@register
@dataclass(frozen=True)
class Mixed(Codec):
    """Groups of a sample as in ``group``, each sample in 1 to 8 bits, as many as its own ranges call for.

    The widths minimise the sum over samples of ``C / (2^b - 1)^2``, where C is the sum over the sample's groups of
    (range squared * elements): up to a factor the variance of the rounding. They add up to
    ``floor(samples * bits)``, so that the code's size is known beforehand.

    Packed bytes of N samples of E elements: ``ceil(E / 8) * T + N * (4 * ceil(E / size) + 1)``, T the sum of the widths.

    Source: ActNN (Chen et al., ICML 2021), section 4.2: per-group quantisation with 256 elements, and bits by sample.

    Args:
        bits: a width on average, 1 to 8; any fraction that the samples of a batch can make up.
        size: elements a group: a multiple of 16, up to 4096.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> codec = Mixed(bits=1.5)
        >>> x = torch.linspace(-1, 1, 1024) * torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 20])[:, None]
        >>> packed = codec.encode(x, seed=0)
        >>> packed.nbytes, codec.packed_bytes(x.shape, x.dtype)
        (1672, 1672)
        >>> packed.parts[2]
        tensor([1, 1, 1, 1, 1, 1, 1, 5], dtype=torch.uint8)
    """

    bits: float = 2.0
    size: int = 256
    name: ClassVar[str] = "mixed"
    promises: ClassVar[frozenset[str]] = frozenset({"unbiased", "fixed_size", "equivariant", "bounded"})

    def __post_init__(self) -> None:
        number = isinstance(self.bits, int | float) and not isinstance(self.bits, bool)
        if not (number and LEAST <= self.bits <= MOST):
            raise ValueError(f"got bits={self.bits!r} for mixed, expected a number from {LEAST} to {MOST}")
        if type(self.size) is not int or self.size % UNIT or not UNIT <= self.size <= LARGEST:
            raise ValueError(f"got size={self.size!r}, expected a multiple of {UNIT} up to {LARGEST}")
        object.__setattr__(self, "bits", float(self.bits))

    def why_not(self, x: Tensor) -> str | None:
        """A real floating dtype and a dim of samples are needed."""
        if x.dtype not in DTYPES:
            return f"dtype {x.dtype}"
        return super().why_not(x) if x.dim() else "0 dims, expected samples along dim 0"

    def total(self, samples: int) -> int:
        """The sum of the widths of so many samples."""
        return min(max(floor(samples * self.bits + 1e-9), LEAST * samples), MOST * samples)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``ceil(elements / 8) * total + samples * (4 * ceil(elements / size) + 1)``."""
        samples, elements = size[0], prod(size[1:])
        return -(-elements // 8) * self.total(samples) + samples * (4 * -(-elements // self.size) + 1)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: codes uint8 ``[bytes]``, offset and step bf16 ``[samples, groups, 2]``, widths uint8 ``[samples]``."""
        return packed_like(x, _encode(x, self.size, self.total(x.shape[0]), seed))

    def decode(self, packed: Packed) -> Tensor:
        """step * code + offset."""
        out: Tensor = _decode(*packed.parts, packed.size, packed.stride, packed.dtype, self.size)
        return out

    def spread(self, x: Tensor) -> Tensor:
        """Of each sample the mean squared range around its elements, float32 ``[samples]``; what isn't finite counts for 0."""
        low, high = ranges(x, self.size)
        square = (high - low).square()
        square = torch.where(torch.isfinite(square), square, 0.0)
        elements = prod(x.shape[1:])
        if square.shape[1] > 0:
            square[:, :-1] *= self.size
            square[:, -1] *= elements - (square.shape[1] - 1) * self.size
        return square.sum(1) / max(elements, 1)

    @classmethod
    def examples(cls) -> list[Codec]:
        """Averages that are and aren't whole, the least and the most, groups that do and don't divide."""
        return [cls(), cls(1.5, 16), cls(3.25, 32), cls(1, 64), cls(8, 48)]
