"""What backward does with each saved tensor: node name and field to use. What is not here is never touched.

A field is named as in the node's attribute ``_saved_<field>``, with ``[i]`` behind it where that is a list; of a custom
``autograd.Function`` it is an index into ``ctx.saved_tensors``. Weights have no rule.
"""

from collections.abc import Mapping
from types import MappingProxyType

from division.rules import (
    activation,
    attention,
    conv,
    fourier,
    index,
    loss,
    mask,
    norm,
    pool,
    products,
    reduce,
    sample,
    user,
)
from division.rules.use import LOSSY, Axes, Reading, Rule, Use
from division.rules.user import RegisteredRule

__all__ = ["LOSSY", "Axes", "Reading", "RegisteredRule", "Rule", "Use", "known_nodes", "register_rule", "rules_for"]

_PARTS = (activation, attention, conv, fourier, index, loss, mask, norm, pool, products, reduce, sample)
_TABLE: dict[str, Mapping[str | int, Rule]] = {
    node: MappingProxyType(dict(fields)) for part in _PARTS for node, fields in part.RULES.items()
}
_NONE: Mapping[str | int, Rule] = MappingProxyType({})


def rules_for(name: str) -> Mapping[str | int, Rule]:
    """The rules for a node of this name, by field; empty for an unknown one.

    Example:
        >>> sorted(rules_for("MaxPool2DWithIndicesBackward0"))
        ['result1', 'self']
        >>> rules_for("LogcumsumexpBackward0")
        mappingproxy({})
    """
    table = _TABLE.get(name, _NONE)
    own = user.OWN.get(name)
    return {**table, **own} if own else table


def known_nodes() -> Mapping[str, Mapping[str | int, Rule]]:
    """The rules the library brings, by node name and field; those of :func:`register_rule` are not among them."""
    return MappingProxyType(_TABLE)


def register_rule(node: str, field: str | int, use: Use, *, axes: Axes = "any", norm: bool = False) -> RegisteredRule:
    """Say what backward does with a saved tensor of a node that the library doesn't know.

    Args:
        node: the node's name, as ``node.name()`` gives it: ``"MyFnBackward"`` for a custom ``autograd.Function``
            called ``MyFn``.
        field: the name after ``_saved_`` among the node's attributes, or an index into ``ctx.saved_tensors``.
        use: ``Use.LINEAR``, ``Use.SMOOTH`` or ``Use.SHAPE``. A wrong one makes wrong gradients silently.
        axes: what the dims are: ``"map"`` for (samples, channels, *spatial), ``"rows"`` for features last.
        norm: whether it is the input of a normalisation.

    Returns:
        The rule in force; its ``remove()`` undoes it. It is also a context manager.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, or a field that has a rule already.

    Example:
        >>> with register_rule("MyFnBackward", 0, Use.LINEAR, axes="rows"):
        ...     list(rules_for("MyFnBackward"))
        [0]
        >>> list(rules_for("MyFnBackward"))
        []
    """
    return user.add(node, field, use, axes, norm, field in rules_for(node) if isinstance(node, str) else False)
