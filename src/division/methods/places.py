"""How a tensor's dims are read: as planes of a map, or as rows."""

from torch import Tensor

from division.codecs.codec import Codec
from division.rules import Reading


def is_map(reading: Reading, x: Tensor) -> bool:
    """Whether ``x`` is ``(N, C, *spatial)`` with 1 to 3 spatial dims, as far as the rule knows or the dims tell."""
    if reading.axes == "map":
        return 3 <= x.dim() <= 5
    return reading.axes == "any" and x.dim() in (4, 5)


def first_smaller(x: Tensor, *codecs: Codec) -> Codec:
    """The first codec that takes ``x`` and makes it smaller; the last one if none does."""
    for codec in codecs:
        if codec.why_not(x) is None and codec.packed_bytes(x.shape, x.dtype) < x.nbytes:
            return codec
    return codecs[-1]
