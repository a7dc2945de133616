"""Products: the gradient of one factor is linear in the other; a divisor's in what it divides, but it has no rule."""

from typing import Any

from division.codecs.shape import Shape
from division.rules.use import Reading, Rule, Table, Use, always

_UNREAD = Reading(Use.SHAPE, Shape())
_ANY = always(Reading(Use.LINEAR))
_ROWS = always(Reading(Use.LINEAR, axes="rows"))
_SMOOTH = always(Reading(Use.SMOOTH))
_FACTOR = always(Reading(Use.LINEAR, factor=True))


def _power(node: Any) -> Reading | None:
    """``x ** n`` for a whole n >= 1: another exponent divides by x, or takes the root of what may decode below 0."""
    exponent = node._saved_exponent
    whole = isinstance(exponent, int | float) and exponent >= 1 and exponent == int(exponent)
    return Reading(Use.SMOOTH) if whole else None


def _divided(node: Any) -> Reading:
    """What ``torch.div`` divides: unread where the quotient is rounded, which has a gradient of 0."""
    return _UNREAD if node._saved_rounding_mode is not None else Reading(Use.LINEAR)


def _divisor(node: Any) -> Reading | None:
    return _UNREAD if node._saved_rounding_mode is not None else None


def _fields(rule: Rule, *fields: str) -> dict[str, Rule]:
    return dict.fromkeys(fields, rule)


RULES: Table = {
    "AddmmBackward0": _fields(_ROWS, "mat1", "mat2"),
    "MmBackward0": _fields(_ROWS, "self", "mat2"),
    "BmmBackward0": _fields(_ROWS, "self", "mat2"),
    "BaddbmmBackward0": _fields(_ROWS, "batch1", "batch2"),
    "AddbmmBackward0": _fields(_ROWS, "batch1", "batch2"),
    "AddmvBackward0": _fields(_ANY, "mat", "vec"),
    "MvBackward0": _fields(_ANY, "self", "vec"),
    "AddrBackward0": _fields(_ANY, "vec1", "vec2"),
    "DotBackward0": _fields(_ANY, "self", "tensor"),
    "MulBackward0": _fields(_FACTOR, "self", "other"),
    "AddcmulBackward0": _fields(_ANY, "tensor1", "tensor2"),
    "VdotBackward0": _fields(_ANY, "self", "other"),
    "LinalgCrossBackward0": _fields(_ANY, "self", "other"),
    "TrilinearBackward0": _fields(_ROWS, "i1", "i2", "i3"),
    "GroupedMmBackward0": _fields(_ROWS, "self", "mat2"),
    "DivBackward0": _fields(_ANY, "self"),
    "DivBackward2": {"self": _divided, "other": _divisor},
    "AddcdivBackward0": _fields(_ANY, "tensor1"),
    "PowBackward0": {"self": _power},
    "ExpBackward0": _fields(_SMOOTH, "result"),
    "Exp2Backward0": _fields(_SMOOTH, "result"),
    "Expm1Backward0": _fields(_SMOOTH, "result"),
}
