"""The frequency codec: cosine transforms of 8x8 blocks, rounded to steps that grow with frequency, zeros left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.kernels.ops import call
from division.kernels.reference.dual import DTYPES
from division.kernels.reference.frequency import check_steps

_encode, _decode = map(call, ("frequency_encode", "frequency_decode"))


@register
@dataclass(frozen=True)
class Frequency(Codec):
    """Image-style compression of maps ``(N, C, *spatial)``: a cosine transform, steps, and no byte for what is 0.

    Each of the 1 to 3 spatial dims is cut into blocks of 8 elements, or as few less as make them even, and the blocks
    take an orthonormal DCT-II. With ``peak`` the greatest magnitude in the channel, over all samples, the coefficient
    of frequencies k in a block of n elements, of length L along each dim, is rounded to the nearest multiple of

        peak * max((1 + slope * sum(8 * k / L)) / quality, sqrt(n) / 127)

    the second being the least step that lets every coefficient fit a byte. A bit says whether it is 0; those that
    aren't take a byte. Packed bytes of a tensor of P planes of E elements, of which V are not 0:

        P * ceil(E / 8) + V + 4 * C

    The transform being orthonormal, the squared error of a block is that of its coefficients: at most the sum over
    them of step² / 4. The same input gives the same code whatever the seed; errors have no mean of 0. A plane with an
    element that isn't finite decodes to NaN as a whole; one of zeros to zeros.

    Source: JPEG-ACT (Evans, Liu and Aamodt, ISCA 2020), for its scaling by channel, DCT, table and "zero-value
    compression", known from memory. Here the steps are a formula instead of a table, fitted to no network; there is no
    rounding before the transform; and the blocks stay within their plane, where the paper cuts rows of N * C * H.

    Args:
        quality: steps of the lowest frequency to the peak; above 0. Twice the quality halves the steps.
        slope: how much coarser the next frequency is; 0 for steps alike.

    Raises:
        ValueError: a setting out of range.

    Example:
        >>> x = torch.linspace(0, 1, 56).expand(2, 3, 56, 56).clone()
        >>> codec = Frequency(quality=8)
        >>> packed = codec.encode(x, seed=0)
        >>> packed.nbytes, codec.least_bytes(x.shape, x.dtype), codec.packed_bytes(x.shape, x.dtype), x.nbytes
        (2952, 2364, 21180, 75264)
        >>> bool((codec.decode(packed) - x).abs().max() < 0.03)
        True
    """

    quality: float = 8.0
    slope: float = 0.3
    name: ClassVar[str] = "frequency"
    promises: ClassVar[frozenset[str]] = frozenset({"equivariant"})

    def __post_init__(self) -> None:
        for setting in (self.quality, self.slope):
            if not isinstance(setting, int | float) or isinstance(setting, bool):
                raise ValueError(f"got quality={self.quality!r} and slope={self.slope!r}, expected numbers")
        check_steps(self.quality, self.slope)

    def why_not(self, x: Tensor) -> str | None:
        """A map of 3 to 5 dims in a real floating dtype is needed."""
        if not 3 <= x.dim() <= 5:
            return f"{x.dim()} dims, not a map (N, C, *spatial)"
        if x.dtype not in DTYPES:
            return f"dtype {x.dtype}"
        return super().why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """The most: with no coefficient of 0, ``planes * (ceil(elements / 8) + elements) + 4 * C``."""
        return self.least_bytes(size, dtype) + prod(size)

    def least_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """With all coefficients 0: ``planes * ceil(elements / 8) + 4 * C``."""
        return size[0] * size[1] * -(-prod(size[2:]) // 8) + 4 * size[1]

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: masks uint8 ``[planes, bytes]``, values int8 ``[values]``, peaks float32 ``[C]``."""
        return packed_like(x, _encode(x, float(self.quality), float(self.slope)))

    def decode(self, packed: Packed) -> Tensor:
        """The inverse transform of values times steps."""
        place = (packed.size, packed.stride, packed.dtype)
        return _decode(*packed.parts, *place, float(self.quality), float(self.slope))  # type: ignore[no-any-return]

    @classmethod
    def examples(cls) -> list[Codec]:
        """Coarse and fine steps, flat and steep, and the finest."""
        return [cls(), cls(2.0, 0.0), cls(16.0, 1.0), cls(1e9, 0.3)]
