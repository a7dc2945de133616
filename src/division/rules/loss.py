"""Losses whose gradient is a bounded smooth function of the prediction. Targets and weights have no rule.

A gradient that is a difference of prediction and target (squared error and its kin) has none either: a code's error is
small beside the range of each, and need not be beside their difference.
"""

from division.rules.use import Reading, Table, Use, always

_prediction = {"self": always(Reading(Use.SMOOTH))}

RULES: Table = {
    "BinaryCrossEntropyWithLogitsBackward0": _prediction,
    "SoftMarginLossBackward0": _prediction,
}
