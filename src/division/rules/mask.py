"""Masks: what dropout kept, and conditions."""

from division.codecs.bits import Mask
from division.rules.use import Reading, Table, Use, always

_mask = always(Reading(Use.MASK, Mask()))

RULES: Table = {
    "NativeDropoutBackward0": {"result1": _mask},
    "WhereBackward0": {"condition": _mask},
    "MaskedFillBackward0": {"mask": _mask},
    "MaskedFillBackward1": {"mask": _mask},
}
