"""No method: nothing is coded, everything is accounted for."""

from dataclasses import dataclass

from division.codecs.codec import Codec
from division.methods.method import Method, register
from division.rules import Reading
from division.saved import Saved


@register("none")
@dataclass(frozen=True)
class Nothing(Method):
    """Leaves every saved tensor as it is; its report says what plain PyTorch keeps.

    Example:
        >>> Nothing()
        Nothing()
    """

    def codec(self, reading: Reading, saved: Saved) -> None:
        """None, always."""

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """None, always."""
