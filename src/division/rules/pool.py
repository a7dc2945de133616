"""Pooling and padding: backward asks only for the input's size, and which element of each window won."""

import math
from typing import Any

from division.codecs.index import AdaptiveWindow, Narrow, Window
from division.rules.use import Reading, Rule, Table, Use, unread


def _plane(node: Any, dims: int) -> tuple[int, ...] | None:
    """The input's size along the pooled dims; None where it was changed in place since, and may not be read."""
    try:
        return tuple(node._saved_self.shape[-dims:])
    except RuntimeError:
        return None


def _window(dims: int) -> Rule:
    def rule(node: Any) -> Reading | None:
        def each(numbers: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(numbers) * (dims // len(numbers))

        plane = _plane(node, dims)
        if plane is None:
            return None
        kernel = each(node._saved_kernel_size)
        stride = each(node._saved_stride) if node._saved_stride else kernel
        codec = Window(plane, kernel, stride, each(node._saved_padding), each(node._saved_dilation))
        return Reading(Use.INDEX, codec)

    return rule


def _adaptive(dims: int) -> Rule:
    def rule(node: Any) -> Reading | None:
        plane = _plane(node, dims)
        return None if plane is None else Reading(Use.INDEX, AdaptiveWindow(plane))

    return rule


def _fractional(dims: int) -> Rule:
    def rule(node: Any) -> Reading | None:
        plane = _plane(node, dims)
        return None if plane is None else Reading(Use.INDEX, Narrow(max(1, math.prod(plane))))

    return rule


# The indices come before the input they need the size of.
RULES: Table = {
    "MaxPool2DWithIndicesBackward0": {"result1": _window(2), "self": unread},
    "MaxPool3DWithIndicesBackward0": {"result1": _window(3), "self": unread},
    "AdaptiveMaxPool2DBackward0": {"result1": _adaptive(2), "self": unread},
    "AdaptiveMaxPool3DBackward0": {"result1": _adaptive(3), "self": unread},
    "FractionalMaxPool2DBackward0": {"result1": _fractional(2), "self": unread},
    "FractionalMaxPool3DBackward0": {"result1": _fractional(3), "self": unread},
    "AvgPool2DBackward0": {"self": unread},
    "AvgPool3DBackward0": {"self": unread},
    "AdaptiveAvgPool2DBackward0": {"self": unread},
    "AdaptiveAvgPool3DBackward0": {"self": unread},
    "ReflectionPad1DBackward0": {"self": unread},
    "ReflectionPad2DBackward0": {"self": unread},
    "ReflectionPad3DBackward0": {"self": unread},
    "ReplicationPad1DBackward0": {"self": unread},
    "ReplicationPad2DBackward0": {"self": unread},
    "ReplicationPad3DBackward0": {"self": unread},
}
