"""Autograd nodes as they are made: by torch's own hook where it exists (2.14), by walking where it doesn't.

A thread has a stack of watchers; each new node goes to the top one alone, so the inner of two contexts wins.
``None`` on the stack is a region that nobody watches. Nodes that are not ours to touch (see
:func:`division.private.standing_aside`) go to no watcher.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from division.private import function_mode, node_creation_hook, sequence_now, standing_aside, uncompiled

Watcher = Callable[[Any], None]
HAS_HOOK = node_creation_hook is not None
_SEEN = "division"


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[watch] = []
        self.source: Any = None


_thread = _Thread()


def current() -> Watcher | None:
    """The watcher that a node made now on this thread would go to."""
    watches = _thread.open
    return watches[-1].watcher if watches else None


def unwatched() -> bool:
    """Whether this is a region that nobody is to watch."""
    return bool(_thread.open) and current() is None


def silenced() -> bool:
    """Whether attached models are to be left alone here: nobody watches this region, or one alone does."""
    return unwatched() or (bool(_thread.open) and _thread.open[-1].alone)


@uncompiled
def _deliver(node: Any) -> None:
    watcher = current()
    if watcher is not None and not standing_aside():
        watcher(node)


class watch:
    """Context manager: every node that this thread makes inside goes to ``watcher`` (None: to nobody).

    One object may be entered again inside itself, and on several threads. Where ``torch.compile`` traces it, nothing is
    watched.

    Args:
        watcher: called with the node once its saved tensors are stored. It must make no autograd node.
        walk: find nodes by walking from the results of each torch call, even where torch has the hook. What walking
            can't see: nodes inside TorchScript, and a custom Function or a reentrant checkpoint that is the last
            call of the context.
        alone: keep attached models from opening a watch of their own inside.
    """

    def __init__(self, watcher: Watcher | None, walk: bool = not HAS_HOOK, *, alone: bool = False) -> None:
        if not (walk or HAS_HOOK):
            raise RuntimeError(f"torch {torch.__version__} has no node_creation_hook, expected 2.14 or newer")
        self.watcher = watcher
        self.alone = alone
        self._walk = walk

    @uncompiled
    def __enter__(self) -> None:
        if is_dynamo_compiling():
            return
        if self.watcher is not None and _thread.source is None:
            _thread.source = _Walk() if self._walk else node_creation_hook(_deliver)
            _thread.source.__enter__()
        if isinstance(_thread.source, _Walk):
            _thread.source.note_change()
        _thread.open.append(self)

    @uncompiled
    def __exit__(self, *error: object) -> None:
        if is_dynamo_compiling():
            return
        source = _thread.source
        if isinstance(source, _Walk):
            source.note_change()
        # The last one opened, unless an interrupted call has left its own open: then that one closes late.
        last = max(i for i, each in enumerate(_thread.open) if each is self)
        del _thread.open[last]
        if source is None or any(each.watcher is not None for each in _thread.open):
            return
        if isinstance(source, _Walk) and function_mode() is not source:
            return  # under somebody else's mode, which leaving would take off instead: it stays, and finds nothing
        _thread.source = None
        source.__exit__(*error)


class _Walk(TorchFunctionMode):
    """Finds new nodes from the results of each torch call.

    A node is new if it was made after this mode began and carries no mark of ours. Nodes made while nobody watched or
    while we stood aside lie in spans of sequence numbers that are kept as ``_aside``; they are marked and passed over.
    """

    def __init__(self) -> None:
        super().__init__()
        self._start = self._changed = sequence_now()
        self._aside: list[list[int]] = []

    def note_change(self) -> None:
        """The stack of watchers is about to change: close the span of the one on top if it watches nothing."""
        if current() is None:
            self._keep_aside(self._changed)
        self._changed = sequence_now()

    def _keep_aside(self, since: int) -> None:
        now = sequence_now()
        if since == now:
            return
        if self._aside and self._aside[-1][1] >= since:
            self._aside[-1][1] = now
        else:
            self._aside.append([since, now])

    @uncompiled
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_dynamo_compiling() or current() is None:
            return func(*args, **kwargs)
        if func in _BACKWARD or standing_aside():
            since = sequence_now()
            try:
                return func(*args, **kwargs)
            finally:
                self._keep_aside(since)
        before = _version(args)
        out = func(*args, **kwargs)
        made: list[Any] = []
        _add_nodes(out, made)
        if _version(args) != before:
            # What the call has only read is not walked: it may be the output of a node that is still being filled.
            _add_nodes(args[:1], made)
        if "out" in kwargs:
            _add_nodes(kwargs["out"], made)
        for node in self._new_nodes(made):
            _deliver(node)
        return out

    def _new_nodes(self, pending: list[Any]) -> list[Any]:
        """Nodes not seen before among these and those they stand on, in the order they were made."""
        found: list[Any] = []
        start, now = self._start, sequence_now()
        while pending:
            node = pending.pop()
            number = node._sequence_nr()
            if not start <= number < now or _SEEN in node.metadata:
                continue
            node.metadata[_SEEN] = True
            if not any(first <= number < last for first, last in self._aside):
                found.append(node)
            pending += [parent for parent, _ in node.next_functions if parent is not None]
        if len(found) > 1:
            found.sort(key=lambda node: node._sequence_nr())
        return found


_BACKWARD = frozenset({torch.autograd.grad, torch.autograd.backward, Tensor.backward})


def _version(args: tuple[Any, ...]) -> object:
    """Equal before and after a call that changed nothing in place in its first argument; never for a list of tensors."""
    if not args or not isinstance(args[0], Tensor):
        return object()
    return None if args[0].is_inference() else args[0]._version


def _add_nodes(results: object, nodes: list[Any]) -> None:
    """Append the nodes that made the tensors among the results of a call."""
    if isinstance(results, Tensor):
        if (node := results.grad_fn) is not None:
            nodes.append(node)
    elif isinstance(results, tuple | list | dict):
        for item in results.values() if isinstance(results, dict) else results:
            _add_nodes(item, nodes)
