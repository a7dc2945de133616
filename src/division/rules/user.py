"""Rules of the user's own, for nodes the library doesn't know."""

from dataclasses import dataclass
from typing import get_args

from division.codecs.shape import Shape
from division.rules.use import Axes, Reading, Rule, Use, always

OWN: dict[str, dict[str | int, Rule]] = {}
_USES = (Use.LINEAR, Use.SMOOTH, Use.SHAPE)


@dataclass(frozen=True, slots=True)
class RegisteredRule:
    """A rule in force, until :meth:`remove` takes it away. Also a context manager, which does so at its end."""

    node: str
    field: str | int
    rule: Rule

    def remove(self) -> None:
        """Take the rule away; nodes created from now on are left alone. A second call does nothing."""
        fields = OWN.get(self.node, {})
        if fields.get(self.field) is self.rule:
            del fields[self.field]

    def __enter__(self) -> "RegisteredRule":
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def add(node: str, field: str | int, use: Use, axes: Axes, norm: bool, known: bool) -> RegisteredRule:
    """Check the arguments of ``register_rule`` and put the rule in force; ``known``: the field has one already."""
    if not isinstance(node, str) or not node.isidentifier():
        raise ValueError(f"got node {node!r}, expected a node's name as node.name() gives it, like 'MyFnBackward'")
    if isinstance(field, bool) or not isinstance(field, str | int):
        raise TypeError(f"got field {field!r}, expected a name like 'input', or an index into ctx.saved_tensors")
    if field == "" or (isinstance(field, int) and field < 0) or str(field).startswith(("_saved_", "_raw_saved_")):
        raise ValueError(
            f"got field {field!r}, expected the name after '_saved_' of an attribute of the node, like 'input', "
            f"or an index of 0 or more into ctx.saved_tensors"
        )
    if use not in _USES:
        raise ValueError(f"got use {use!r}, expected one of {', '.join(map(str, _USES))}: the others need exact codecs")
    if axes not in get_args(Axes):
        raise ValueError(f"got axes {axes!r}, expected one of {get_args(Axes)}")
    if known:
        raise ValueError(f"field {field!r} of {node} has a rule already; remove() that one first if it is yours")
    rule = always(Reading(use, Shape() if use is Use.SHAPE else None, axes, bool(norm)))
    OWN.setdefault(node, {})[field] = rule
    return RegisteredRule(node, field, rule)
