"""Lossless: only codes that change no gradient by a single bit."""

from dataclasses import dataclass

from division.codecs.codec import Codec
from division.methods.method import Method, register
from division.rules import Reading
from division.saved import Saved


@register("lossless")
@dataclass(frozen=True)
class Lossless(Method):
    """Signs, masks, pooling indices and unread inputs in exact codes; all values stay as they are.

    Example:
        >>> Lossless()
        Lossless()
    """

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """None: values are left."""
        return None
