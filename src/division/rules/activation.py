"""Functions of one tensor: those that only ask on which side of a threshold an element is, and the smooth ones.

Smooth are those whose derivative is bounded; who divides by a tensor or takes its root or logarithm has no rule.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from division.codecs.bits import Bits
from division.codecs.interval import Interval
from division.private import signed_number
from division.rules.use import Reading, Rule, Table, Use, always


@lru_cache(maxsize=1024)
def _above(threshold: float, nan_inside: bool) -> Reading | None:
    """SIGN with the elements above the threshold inside: 1 bit."""
    step = max(1.0, abs(threshold))
    try:
        codec = Bits(threshold, nan_inside=nan_inside, inside=threshold + step, outside=threshold - step)
    except ValueError:
        return None
    return Reading(Use.SIGN, codec)


@lru_cache(maxsize=1024)
def _between(lo: float, hi: float) -> Reading | None:
    """SIGN for an interval whose bounds, or NaN, not every version, device and place in memory treats alike: 2 bits."""
    low, high = max(1.0, abs(lo)), max(1.0, abs(hi))
    if math.isfinite(lo):
        inside, outside = (lo + (hi - lo) / 2 if math.isfinite(hi) else lo + low), lo - low
    else:
        inside, outside = hi - high, hi + high
    try:
        return Reading(Use.SIGN, Interval(lo, hi, inside, outside))
    except ValueError:
        return None


def _number(value: Any) -> float:
    """A scalar setting as a float; NaN, which no interval takes, where a float can't hold it."""
    exact = isinstance(value, int | float) and float(value) == value
    return float(value) if exact else math.nan


def _threshold(node: Any) -> Reading | None:
    return _above(_number(node._saved_threshold), True)


def _interval(bounds: Callable[[Any], tuple[Any, Any]]) -> Rule:
    def rule(node: Any) -> Reading | None:
        lo, hi = bounds(node)
        return _between(_number(lo), _number(hi))

    return rule


def _clamp_bounds(node: Any) -> tuple[Any, Any]:
    lo, hi = node._saved_min, node._saved_max
    return (-math.inf if lo is None else lo), (math.inf if hi is None else hi)


_relu = always(_above(0.0, True))
_leaky_relu = always(_above(0.0, False))
_hardsigmoid = always(Reading(Use.SIGN, Bits(-3.0, 3.0, inside=0.0, outside=4.0)))
_hardtanh = _interval(lambda node: (node._saved_min_val, node._saved_max_val))
_shrink = _interval(lambda node: (-node._saved_lambd, node._saved_lambd))
_clamp = _interval(_clamp_bounds)
_clamp_min = _interval(lambda node: (node._saved_min, math.inf))
_clamp_max = _interval(lambda node: (-math.inf, node._saved_max))
_sign = always(_between(0.0, math.inf))
_smooth = always(Reading(Use.SMOOTH))


def _softmax(node: Any) -> Reading:
    dims = len(node._saved_result.shape)
    return _softmax_along(signed_number(node._saved_dim) % dims if dims else None)


@lru_cache
def _softmax_along(dim: int | None) -> Reading:
    return Reading(Use.SMOOTH, along=dim)


def _self(rule: Rule) -> dict[str, Rule]:
    return {"self": rule}


def _result(rule: Rule) -> dict[str, Rule]:
    return {"result": rule}


RULES: Table = {
    "ReluBackward0": _result(_relu),
    "LeakyReluBackward0": _self(_leaky_relu),
    "LeakyReluBackward1": _result(_leaky_relu),
    "ThresholdBackward0": _self(_threshold),
    "ThresholdBackward1": _self(_threshold),
    "HardtanhBackward0": _self(_hardtanh),
    "HardsigmoidBackward0": _self(_hardsigmoid),
    "HardshrinkBackward0": _self(_shrink),
    "SoftshrinkBackward0": _self(_shrink),
    "ClampBackward1": _self(_clamp),
    "ClampMinBackward0": _self(_clamp_min),
    "ClampMaxBackward0": _self(_clamp_max),
    "AbsBackward0": _self(_sign),
    "GeluBackward0": _self(_smooth),
    "SiluBackward0": _self(_smooth),
    "MishBackward0": _self(_smooth),
    "HardswishBackward0": _self(_smooth),
    "EluBackward0": _self(_smooth),
    "EluBackward1": _result(_smooth),
    "CeluBackward0": _self(_smooth),
    "CeluBackward1": _result(_smooth),
    "PreluKernelBackward0": _self(_smooth),
    "SoftplusBackward0": _self(_smooth),
    "LogSigmoidBackward0": _self(_smooth),
    "GluBackward0": _self(_smooth),
    "SinBackward0": _self(_smooth),
    "CosBackward0": _self(_smooth),
    "AtanBackward0": _self(_smooth),
    "AsinhBackward0": _self(_smooth),
    "ErfBackward0": _self(_smooth),
    "ErfcBackward0": _self(_smooth),
    "TanhBackward0": _result(_smooth),
    "SigmoidBackward0": _result(_smooth),
    "SoftmaxBackward0": _result(_softmax),
    "SafeSoftmaxBackward0": _result(_softmax),
}
