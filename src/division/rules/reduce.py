"""Variances and Euclidean norms: their gradient is linear in the input. The result, which is divided by, has no rule."""

from collections.abc import Callable
from typing import Any

from division.rules.use import Reading, Rule, Table, Use, always

_LINEAR = Reading(Use.LINEAR)


def _norm(order: Callable[[Any], Any]) -> Rule:
    """A norm of order 2, the default; others read signs, powers or the place of the maximum."""

    def rule(node: Any) -> Reading | None:
        n = order(node)
        return _LINEAR if n is None or n == 2 else None

    return rule


_spread: dict[str, Rule] = {"self": always(_LINEAR)}
_length: dict[str, Rule] = {"self": _norm(lambda node: node._saved_p)}

RULES: Table = {
    "VarBackward0": _spread,
    "VarMeanBackward0": _spread,
    "StdBackward0": _spread,
    "StdMeanBackward0": _spread,
    "LinalgVectorNormBackward0": {"self": _norm(lambda node: node._saved_ord)},
    "NormBackward0": _length,
    "NormBackward1": _length,
    "NormBackward2": _length,
    "NormBackward3": _length,
}
