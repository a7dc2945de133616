"""Codecs: frozen values that encode a tensor and decode it again, one file each."""

from division.codecs.bits import Bits, Mask
from division.codecs.codec import CODECS, Codec, Packed, from_config
from division.codecs.dual import Dual
from division.codecs.elsewhere import Elsewhere
from division.codecs.frequency import Frequency
from division.codecs.group import Group
from division.codecs.index import AdaptiveWindow, Narrow, Window
from division.codecs.interval import Interval
from division.codecs.logs import Logs
from division.codecs.shape import Shape
from division.codecs.zeros import Zeros

__all__ = [
    "CODECS", "AdaptiveWindow", "Bits", "Codec", "Dual", "Elsewhere", "Frequency", "Group", "Interval", "Logs", "Mask", "Narrow", "Packed",
    "Shape", "Window", "Zeros", "from_config",
]  # fmt: skip
