"""What backward does with a saved tensor: the words that rules are written in."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from division.codecs.codec import Codec
from division.codecs.shape import Shape

Axes = Literal["map", "rows", "any"]


class Use(enum.Enum):
    """What backward does with a saved tensor, which decides what may be kept of it."""

    LINEAR = "linear"
    """The gradient is linear in it: an unbiased lossy code keeps the gradient unbiased."""
    SMOOTH = "smooth"
    """It enters nonlinearly but smoothly: a lossy code of enough bits."""
    SIGN = "sign"
    """Only on which side of a threshold its elements are: one bit each or two, exact."""
    MASK = "mask"
    """Kept or dropped: one bit each, exact."""
    INDEX = "index"
    """Integers of a known small range, exact."""
    SHAPE = "shape"
    """Only its size, dtype and strides: nothing is kept."""


LOSSY = (Use.LINEAR, Use.SMOOTH)
"""The uses that read values, for which a method chooses; the others have an exact code of their own."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule says of one saved tensor.

    Attributes:
        use: what backward does with it.
        codec: the exact codec, for SIGN, MASK, INDEX and SHAPE; None for LINEAR and SMOOTH, where a method chooses.
        axes: ``"map"``: (samples, channels, *spatial), spatial dims may be none; ``"rows"``: the last dim holds the
            features, the others count rows; ``"any"``: unknown.
        norm: whether it is the input of a normalisation.
        factor: whether it is a product's other factor, which may be a dropout mask that no node made.
        exponent: whether backward exponentiates it, against an exact log-sum-exp: the queries and keys of attention.
        cancels: whether backward subtracts two products with it that nearly cancel: the values and results of attention.
        logs: whether it is the logarithms of probabilities, of which backward reads the exponentials alone, linearly.
        along: the dim along which it was made by one softmax after another, each of which may be NaN as a whole; or None.
        given: whether it is integers that come with the batch, such as token ids and labels: like the batch itself they
            are their owner's, who still holds them.
    """

    use: Use
    codec: Codec | None = None
    axes: Axes = "any"
    norm: bool = False
    factor: bool = False
    exponent: bool = False
    cancels: bool = False
    logs: bool = False
    along: int | None = None
    given: bool = False


Rule = Callable[[Any], Reading | None]
"""Given the autograd node, what backward does with one of its fields; None to leave that field alone."""

Table = dict[str, dict[str, Rule]]
"""Node name to field to rule."""


def always(reading: Reading | None) -> Rule:
    """The rule that says the same of every node."""
    return lambda node: reading


unread = always(Reading(Use.SHAPE, Shape()))
"""The rule for what backward needs the shape of."""


def read_for(reading: Reading, *operands: int) -> Rule:
    """The rule for what is read only if one of these operands of the op needs a gradient; else its shape is all.

    Args:
        reading: what is read of it then.
        operands: by position among the op's tensors.
    """
    otherwise = replace(reading, use=Use.SHAPE, codec=Shape())
    return lambda node: reading if any(node.next_functions[i][0] is not None for i in operands) else otherwise
