"""Convolutions, direct and transposed, in 1, 2 and 3 dims: the weight's gradient is linear in the input."""

from division.rules.use import Reading, Table, Use, always, read_for

_input = read_for(Reading(Use.LINEAR, axes="map"), 1)

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
