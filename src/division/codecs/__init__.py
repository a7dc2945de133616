"""Codecs: frozen values that encode a tensor and decode it again, one file each."""

from division.codecs.bits import Bits, Mask
from division.codecs.codec import CODECS, Codec, Packed, from_config
from division.codecs.dual import Dual
from division.codecs.elsewhere import Elsewhere
from division.codecs.error_bound import ErrorBound
from division.codecs.fixed import Fixed, Positive
from division.codecs.frequency import Frequency
from division.codecs.group import Group
from division.codecs.index import AdaptiveWindow, Narrow, Window
from division.codecs.interval import Interval
from division.codecs.logs import Logs
from division.codecs.mixed import Mixed
from division.codecs.ranged import Ranged
from division.codecs.shape import Shape
from division.codecs.sz3 import Sz3
from division.codecs.verbatim import Verbatim
from division.codecs.zeros import Zeros

__all__ = [
    "CODECS", "AdaptiveWindow", "Bits", "Codec", "Dual", "Elsewhere", "ErrorBound", "Fixed", "Frequency", "Group",
    "Interval", "Logs", "Mask", "Mixed", "Narrow", "Packed", "Positive", "Ranged", "Shape", "Sz3", "Verbatim",
    "Window", "Zeros", "from_config",
]  # fmt: skip
