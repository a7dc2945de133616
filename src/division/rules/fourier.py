"""Transforms of real tensors, and complex tensors made of them: backward asks for no more than the size."""

from division.rules.use import Table, unread

RULES: Table = {
    "FftR2CBackward0": {"self": unread},
    "ComplexBackward0": {"real": unread, "imag": unread},
}
