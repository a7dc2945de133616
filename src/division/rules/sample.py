"""Sampling a map at the points of a grid: the grid's gradient is linear in the map. The grid has no rule."""

from typing import Any

from division.codecs.shape import Shape
from division.rules.use import Reading, Table, Use, takes_no_gradient

_READ = Reading(Use.LINEAR, axes="map")
_UNREAD = Reading(Use.SHAPE, Shape(), axes="map")


def _input(node: Any) -> Reading:
    return _UNREAD if takes_no_gradient(node, 1) else _READ


RULES: Table = {
    "GridSampler2DBackward0": {"input": _input},
    "GridSampler2DCpuFallbackBackward0": {"input": _input},
    "GridSampler3DBackward0": {"input": _input},
}
