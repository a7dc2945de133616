"""Normalisations. All but batch norm in eval read their input for the input's gradient, frozen weights or not."""

from typing import Any

from division.rules.use import Reading, Rule, Table, Use, always, read_for

_MAP = Reading(Use.SMOOTH, axes="map", norm=True)
_ROWS = Reading(Use.SMOOTH, axes="rows", norm=True)
# With statistics that don't depend on the input only the weight's gradient reads it, linearly.
_fixed_statistics = read_for(Reading(Use.LINEAR, axes="map", norm=True), 1, 2)


def _batch(node: Any) -> Reading | None:
    return _MAP if node._saved_training else _fixed_statistics(node)


def _input(rule: Rule) -> dict[str, Rule]:
    return {"input": rule}


RULES: Table = {
    "NativeBatchNormBackward0": _input(_batch),
    "CudnnBatchNormBackward0": _input(_batch),
    "MiopenBatchNormBackward0": _input(_batch),
    "NativeBatchNormLegitBackward0": _input(_batch),
    "NativeBatchNormLegitBackward1": _input(_batch),
    "BatchNormWithUpdateBackward0": _input(always(_MAP)),
    "NativeBatchNormLegitNoTrainingBackward0": _input(_fixed_statistics),
    "BatchNormNoUpdateBackward0": _input(_fixed_statistics),
    "NativeGroupNormBackward0": _input(always(_MAP)),
    "NativeLayerNormBackward0": _input(always(_ROWS)),
    "FusedRmsNormBackward0": _input(always(_ROWS)),
}
