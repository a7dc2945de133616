"""Sampling a map at the points of a grid: the grid's gradient is linear in the map. The grid has no rule."""

from division.rules.use import Reading, Table, Use, read_for

_input = read_for(Reading(Use.LINEAR, axes="map"), 1)

RULES: Table = {
    "GridSampler2DBackward0": {"input": _input},
    "GridSampler2DCpuFallbackBackward0": {"input": _input},
    "GridSampler3DBackward0": {"input": _input},
}
