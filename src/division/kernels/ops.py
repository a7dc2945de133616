"""How an op comes to be: a schema, a check of its arguments, the shapes it returns, and its bodies.

Every op lives in the ``torch.library`` namespace ``division``. An op is defined once with :func:`define`; a body is
bound to a dispatch key with :func:`body`. The check runs in front of every body and of the fake, so that a wrong
argument is refused at the call, on any device.
"""

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "division"
_library = torch.library.Library(NAMESPACE, "DEF")
_checks: dict[str, Callable[..., None]] = {}
_keys: dict[str, set[str]] = {}


def define(schema: str, check: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Define an op by its schema; decorates the function that returns empty results of the right shape.

    Args:
        schema: as ``torch.library.define`` takes it, without the namespace: ``"pack(Tensor x, int bits) -> Tensor"``.
        check: called with the op's arguments before any body; raises ``ValueError`` or ``TypeError``.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    _checks[name] = check

    def decorate(shapes: Callable[..., Any]) -> Callable[..., Any]:
        def fake(*args: Any, **kwargs: Any) -> Any:
            check(*args, **kwargs)
            return shapes(*args, **kwargs)

        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
        return shapes

    return decorate


def body(name: str, key: str = "CompositeExplicitAutograd") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Bind the decorated function as the body of op ``name`` under a dispatch key (the default: every device)."""
    check = _checks[name]
    _keys.setdefault(name, set()).add(key)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, **kwargs: Any) -> Any:
            check(*args, **kwargs)
            return function(*args, **kwargs)

        _library.impl(name, checked, key)
        return function

    return decorate


def call(name: str) -> Callable[..., Any]:
    """The op as a function: ``call("pack")(x, 2)``."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default  # type: ignore[no-any-return]


def names() -> list[str]:
    """The ops, in the order they were defined."""
    return list(_checks)


def keys(name: str) -> frozenset[str]:
    """The dispatch keys that an op has a body for."""
    return frozenset(_keys.get(name, ()))
