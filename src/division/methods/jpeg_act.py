"""JPEG-ACT: maps compressed as images are."""

import functools
from dataclasses import dataclass, field
from typing import ClassVar

from division.codecs.codec import Codec
from division.codecs.frequency import Frequency
from division.codecs.group import Group
from division.methods.learned import Learned, Learner
from division.methods.method import Observer, register
from division.methods.places import first_smaller, is_map
from division.rules import Reading, Use
from division.saved import Saved

BITS, ROW_GROUP, MAP_GROUP = 8, 64, 256


class Sizes(Learned):
    """The sizes of codes, and nothing else."""

    numbers: ClassVar[int | None] = 0
    gathered: ClassVar[int | None] = 0


@register("jpeg-act")
@dataclass(frozen=True)
class JpegAct(Learner):
    """Image-style compression: maps in cosine coefficients without their zeros, all other values in 8 bits.

    Inputs of convolutions, of norms and of products that are maps take the codec ``frequency``; signs of ReLU, masks of
    dropout and pooling indices the rule's own exact code. Values that are no maps, and those that smooth activations
    need, take 8 bits (the paper's scaling to 8-bit numbers without the transform), here by ``group`` with unbiased
    rounding: 64 at a time along the last dim, or along that of a softmax; 256 at a time of maps too small for
    ``frequency`` to gain. It learns how many bytes its codes take, for predictions; nothing else.

    Source: JPEG-ACT (Evans, Liu and Aamodt, ISCA 2020), known from memory; ``docs/methods.md`` says what differs.

    Args:
        quality: of :class:`~division.codecs.frequency.Frequency`: steps of the lowest frequency to a channel's greatest
            magnitude. How to choose it: ``docs/methods.md``.
        slope: of the same.

    Raises:
        ValueError: a setting out of range.

    Example:
        >>> JpegAct(quality=4)
        JpegAct(quality=4, slope=0.3)
    """

    quality: float = 8.0
    slope: float = 0.3
    learned: Sizes = field(default_factory=Sizes, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Frequency(self.quality, self.slope)  # refuses what is out of range

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``frequency`` for maps that a convolution, a product or a norm reads; ``group`` in 8 bits elsewhere."""
        x = saved.tensor
        if reading.along is not None:
            return Group(BITS, ROW_GROUP, reading.along)
        if not is_map(reading, x):
            return Group(BITS, ROW_GROUP, -1)
        frequency, rows = _of_maps(self.quality, self.slope)
        if reading.logs or not (reading.use is Use.LINEAR or reading.norm):
            return rows
        return first_smaller(x, frequency, rows)

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        """The size of each code."""
        site = self.learned.sites.site(saved)
        if site is not None:
            self.learned.note_bytes(site, saved, packed_bytes)
        return None


@functools.lru_cache(typed=True)
def _of_maps(quality: float, slope: float) -> tuple[Frequency, Group]:
    return Frequency(quality, slope), Group(BITS, MAP_GROUP, "sample")
