"""Convolutions, direct and transposed, in 1, 2 and 3 dims: the weight's gradient is linear in the input."""

from typing import Any

from division.codecs.shape import Shape
from division.rules.use import Reading, Table, Use, always, takes_no_gradient

_READ = Reading(Use.LINEAR, axes="map")
_UNREAD = Reading(Use.SHAPE, Shape(), axes="map")


def _input(node: Any) -> Reading:
    return _UNREAD if takes_no_gradient(node, 1) else _READ


RULES: Table = {
    "ConvolutionBackward0": {"input": _input},
    "ConvolutionBackward1": {"input": _input},
    "MkldnnConvolutionBackward0": {"self": _input},
    "SlowConv2DBackward0": {"self": _input},
    "SlowConv3DBackward0": {"self": _input},
    "SlowConvDilated2DBackward0": {"self": _input},
    "SlowConvDilated3DBackward0": {"self": _input},
    "SlowConvTranspose2DBackward0": {"self": _input},
    "SlowConvTranspose3DBackward0": {"self": _input},
    "ConvTbcBackward0": {"self": always(Reading(Use.LINEAR, axes="rows"))},
}
