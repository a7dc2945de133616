"""Losses whose gradient is a bounded smooth function of the prediction, and the log-softmax of cross-entropy.

Targets and weights have no rule.

A gradient that is a difference of prediction and target (squared error and its kin) has none either: a code's error is
small beside the range of each, and need not be beside their difference.
"""

from typing import Any

from division.private import signed_number
from division.rules.use import Reading, Table, Use, always

_ROWS = Reading(Use.LINEAR, axes="rows", logs=True)
_MAP = Reading(Use.LINEAR, axes="map", logs=True)


def _log_softmax(node: Any) -> Reading:
    """Classes are the last dim, or dim 1 of a map."""
    dims = len(node._saved_result.shape)
    return _ROWS if signed_number(node._saved_dim) in (-1, dims - 1) else _MAP


_prediction = {"self": always(Reading(Use.SMOOTH))}

RULES: Table = {
    "BinaryCrossEntropyWithLogitsBackward0": _prediction,
    "LogSoftmaxBackward0": {"result": _log_softmax},
    "SoftMarginLossBackward0": _prediction,
}
