"""Masks: what dropout kept, conditions, and what fake quantisation did not clip."""

from division.codecs.bits import Mask
from division.rules.use import Reading, Table, Use, always, unread

_mask = always(Reading(Use.MASK, Mask()))

RULES: Table = {
    "NativeDropoutBackward0": {"result1": _mask},
    "WhereBackward0": {"condition": _mask},
    "MaskedFillBackward0": {"mask": _mask},
    "MaskedFillBackward1": {"mask": _mask},
    "MaskedSelectBackward0": {"mask": _mask, "self": unread},
    "MaskedScatterBackward0": {"mask": _mask},
    "FakeQuantizePerTensorAffineCachemaskBackward0": {"mask": _mask},
    "FakeQuantizePerTensorAffineCachemaskTensorQparamsBackward0": {"mask": _mask},
    "FakeQuantizePerChannelAffineCachemaskBackward0": {"mask": _mask},
    "FusedMovingAvgObsFqHelperBackward0": {"mask": _mask},
}
