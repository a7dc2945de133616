"""Transforms of real tensors, and complex tensors made of them: backward asks for no more than the size."""

from division.codecs.shape import Shape
from division.rules.use import Reading, Table, Use, always

_unread = always(Reading(Use.SHAPE, Shape()))

RULES: Table = {
    "FftR2CBackward0": {"self": _unread},
    "ComplexBackward0": {"real": _unread, "imag": _unread},
}
