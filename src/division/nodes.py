"""Autograd nodes as they are made: by torch's own hook where it exists (2.14), by walking where it doesn't.

A thread has a stack of watchers; each new node goes to the top one alone, so the inner of two contexts wins.
``None`` on the stack is a region that nobody watches. Nodes that are not ours to touch (see
:func:`division.private.standing_aside`) go to no watcher.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from division.private import node_creation_hook, sequence_now, standing_aside

Watcher = Callable[[Any], None]
HAS_HOOK = node_creation_hook is not None
_SEEN = "division"


class _Thread(threading.local):
    def __init__(self) -> None:
        self.watchers: list[Watcher | None] = []
        self.source: Any = None


_thread = _Thread()


def current() -> Watcher | None:
    """The watcher that a node made now on this thread would go to."""
    return _thread.watchers[-1] if _thread.watchers else None


def _deliver(node: Any) -> None:
    watcher = current()
    if watcher is not None and not standing_aside():
        watcher(node)


class watch:
    """Context manager: every node that this thread makes inside goes to ``watcher`` (None: to nobody).

    Args:
        watcher: called with the node once its saved tensors are stored. It must make no autograd node.
        walk: find nodes by walking from the results of each torch call, even where torch has the hook. What walking
            can't see: nodes inside TorchScript, and a custom Function or a reentrant checkpoint that is the last
            call of the context.
    """

    def __init__(self, watcher: Watcher | None, walk: bool = not HAS_HOOK) -> None:
        if not (walk or HAS_HOOK):
            raise RuntimeError(f"torch {torch.__version__} has no node_creation_hook, expected 2.14 or newer")
        self._watcher = watcher
        self._walk = walk
        self._source: Any = None

    def __enter__(self) -> None:
        if self._watcher is not None and _thread.source is None:
            self._source = _Walk() if self._walk else node_creation_hook(_deliver)
            self._source.__enter__()
            _thread.source = self._source
        if isinstance(_thread.source, _Walk):
            _thread.source.note_change()
        _thread.watchers.append(self._watcher)

    def __exit__(self, *error: object) -> None:
        if isinstance(_thread.source, _Walk):
            _thread.source.note_change()
        _thread.watchers.pop()
        if self._source is not None:
            _thread.source = None
            source, self._source = self._source, None
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
        if _thread.watchers and _thread.watchers[-1] is None:
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

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if current() is None:
            return func(*args, **kwargs)
        if func in _BACKWARD or standing_aside():
            since = sequence_now()
            try:
                return func(*args, **kwargs)
            finally:
                self._keep_aside(since)
        out = func(*args, **kwargs)
        for node in self._new_nodes((out, args[:1], kwargs.get("out"))):
            _deliver(node)
        return out

    def _new_nodes(self, results: object) -> list[Any]:
        """Nodes not seen before, in the order they were made."""
        found: list[Any] = []
        pending: list[Any] = [x.grad_fn for x in _tensors(results) if x.grad_fn is not None]
        while pending:
            node = pending.pop()
            number = node._sequence_nr()
            if not self._start <= number < sequence_now() or _SEEN in node.metadata:
                continue
            node.metadata[_SEEN] = True
            if not any(first <= number < last for first, last in self._aside):
                found.append(node)
            pending.extend(parent for parent, _ in node.next_functions if parent is not None)
        return sorted(found, key=lambda node: node._sequence_nr())


_BACKWARD = frozenset({torch.autograd.grad, torch.autograd.backward, Tensor.backward})


def _tensors(results: object) -> Iterator[Tensor]:
    if isinstance(results, Tensor):
        yield results
    elif isinstance(results, dict):
        yield from _tensors(tuple(results.values()))
    elif isinstance(results, tuple | list):
        for item in results:
            yield from _tensors(item)
