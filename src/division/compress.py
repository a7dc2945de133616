"""The context manager: what is saved for backward inside it is kept compressed."""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from division import methods
from division.account import EXCLUDED, WEIGHT, Record, Report
from division.methods import Method
from division.nodes import watch
from division.private import has_hooks, storage_of
from division.rules import known_nodes, rules_for
from division.rules.user import OWN
from division.saved import Codes, Saved, handle, raw_fields, record_of, why_excluded
from division.seeds import Seeds

# A context held open over a whole training would otherwise keep a record of every tensor it ever saw.
MOST_RECORDS = 100_000
Patterns = str | Sequence[str] | None


def as_method(method: object) -> Method:
    """The method that is meant: an object as it is, a name by :func:`division.methods.find`, None as ``"none"``.

    Raises:
        TypeError: neither an object of a method nor a name.
        ValueError: an unknown name.
    """
    if method is None:
        return methods.Nothing()
    if isinstance(method, str):
        return methods.find(method)
    if isinstance(method, Method):
        return method
    hint = f": make an object of it, {method.__name__}()" if isinstance(method, type) else ""
    raise TypeError(f"got {method!r} as the method, expected a division.methods.Method object or a name{hint}")


def as_patterns(patterns: Patterns, what: str, known: Collection[str]) -> tuple[str, ...]:
    """Patterns as a tuple, each checked to match something.

    Raises:
        TypeError: neither a pattern nor several.
        ValueError: a pattern that matches none of the known names, or none where nothing would be left to do.
    """
    if patterns is None:
        return ()
    found = (patterns,) if isinstance(patterns, str) else tuple(patterns) if isinstance(patterns, Iterable) else (None,)
    if not all(isinstance(pattern, str) for pattern in found):
        raise TypeError(
            f"{what}: got {patterns!r}, expected a pattern, such as {next(iter(known), '*') or '*'!r}, or several"
        )
    if not found and what != "skip":
        raise ValueError(f"{what}: got no pattern, expected at least one; leave the argument out to cover everything")
    for pattern in found:
        if not any(fnmatchcase(name, pattern) for name in known):
            shown = ", ".join(sorted(known)[:12])
            raise ValueError(
                f"{what}: pattern {pattern!r} matches nothing, expected one that matches any of: {shown}, …"
            )
    return found


def expect_state(state: Any, keys: set[str]) -> None:
    """Check that ``state`` is a mapping with exactly these keys.

    Raises:
        ValueError: it isn't.
    """
    if not isinstance(state, Mapping) or set(state) != keys:
        shown = f"keys {sorted(map(str, state))}" if isinstance(state, Mapping) else repr(state)
        raise ValueError(f"got a state with {shown}, expected a mapping with the keys {sorted(keys)}")


def method_state(method: Method) -> dict[str, Any]:
    """A method's kind and what it learned, as plain data."""
    return {"kind": type(method).__name__, "learned": method.state_dict()}


def load_method_state(method: Method, state: Any) -> None:
    """Give a method what one of its kind had learned.

    Raises:
        ValueError: not such a state, or one of a method of another kind.
    """
    expect_state(state, {"kind", "learned"})
    kind = type(method).__name__
    if state["kind"] != kind:
        raise ValueError(f"got the state of a method {state['kind']}, expected one of {kind}")
    method.load_state_dict(state["learned"])


class Scope:
    """What compressing needs to know and keeps over the steps: method, noise, codes alive, account.

    Args:
        method_of: the method for a module's name; None where nothing is to be coded.
        covers: whether a node of this name is to be handled.
        module: the qualified name of the module at work on this thread.
        state: weights and buffers of the model, as far as it is known.
    """

    def __init__(
        self,
        method_of: Callable[[str], Method | None],
        covers: Callable[[str], bool],
        module: Callable[[], str],
        state: Callable[[], Iterable[Tensor]],
        seed: int | None,
        inputs: bool,
        fakes: bool = False,
    ) -> None:
        self.report = Report()
        self.seeds = Seeds(seed)
        self._method_of, self._covers, self._module, self._state = method_of, covers, module, state
        self._state_storages: frozenset[int] | None = None
        self._inputs, self._fakes = inputs, fakes
        self._codes = Codes()
        self._inside = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        """A thread begins a forward; the first of them begins a step."""
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self.seeds.begin_step()
                self.report.begin_step()
                self._codes.begin_step()
                self._state_storages = None

    def leave(self) -> None:
        """A thread ended its forward; the last of them closes the account of the step."""
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self.report.end_forward()

    def on_node(self, node: Any) -> None:
        """Handle everything that a new node saved."""
        name, module = node.name(), self._module()
        method = self._method_of(module) if self._covers(name) else None
        rules = rules_for(name)
        for field, raw, read in raw_fields(node):
            record = self._handle(node, name, field, raw, read, method, rules.get(field), module)
            if record is not None:
                self.report.records.append(record)
        if len(self.report.records) > MOST_RECORDS:
            self._cut_step()

    def _cut_step(self) -> None:
        """Begin a new step of the account within a context that is held open over very many operations."""
        with self._lock:
            self.report.end_forward()
            self.report.begin_step()
            self._codes.begin_step()

    def _handle(
        self, node: Any, name: str, field: str | int, raw: Any, read: Callable[[], Any], method: Method | None,
        rule: Callable[[Any], Any] | None, module: str,
    ) -> Record | None:  # fmt: skip
        if has_hooks(raw):
            return Record(module, name, str(field), "", (), torch.uint8, 0, left="has saved-tensor hooks already")
        try:
            tensor = read()
        except RuntimeError:
            # Changed in place since it was saved. PyTorch says so, in full, if backward ever needs it.
            return Record(module, name, str(field), "", (), torch.uint8, 0, left="changed in place since it was saved")
        if not isinstance(tensor, Tensor):
            return None
        saved = Saved(name, field, tensor, module)
        reading = rule(node) if rule is not None else None
        is_state = self._is_state(tensor)
        if method is not None and not is_state:
            record = handle(
                saved, raw, reading, self._codes, self.seeds.next, method.codec, inputs=self._inputs, fakes=self._fakes
            )
        else:
            record = record_of(saved, reading.use.name.lower() if reading else "")
            record.left = why_excluded(saved, is_state)
        if record.left not in ("", EXCLUDED) and tensor.grad_fn is not None and record.reference is not None:
            self._codes.leave(saved)
        leaf = tensor.is_leaf and tensor.requires_grad
        if record.left == WEIGHT and leaf and not (is_state or isinstance(tensor, Parameter)):
            # Such as a batch that takes a gradient.
            record.left = "a leaf that is no Parameter: its owner still holds it"
        return record

    def _is_state(self, x: Tensor) -> bool:
        """Whether ``x`` lies in the memory of the model's weights or buffers, and no node made it."""
        if x.grad_fn is not None or x.layout is not torch.strided or x.is_nested:
            return False
        if self._state_storages is None:
            self._state_storages = frozenset(storage_of(x)[0] for x in self._state() if x.layout is torch.strided)
        return storage_of(x)[0] in self._state_storages


class compress:
    """Keep the tensors that autograd saves inside this context compressed until backward needs them.

    Use one object for all steps, or make one each step. Forward results, the global random state and the model are
    the same with and without; backward may run inside or after. Of two nested contexts the inner one wins.

    Args:
        method: a :class:`division.methods.Method` or the name of one (``division.methods.names()``).
        seed: base of the noise of stochastic rounding; None derives one from ``torch.initial_seed()``. With a seed,
            make the object once and use it for all steps: each object with that seed begins the same stream.
        inputs: also code tensors that no operation made, such as the batch itself. Their owner usually holds them
            anyway, so this saves memory only if you drop them.
        only, skip: names of autograd nodes (patterns as in ``fnmatch``: ``"Convolution*"``) to handle alone, or to
            leave. For parts of a model use :func:`division.attach`.

    Raises:
        TypeError, ValueError: an argument that can't be meant; the message says what is expected.

    Example:
        >>> import division
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
        >>> context = division.compress()
        >>> with context:
        ...     loss = model(torch.randn(4, 3, 32, 32)).square().mean()
        >>> loss.backward()
        >>> context.report.packed_bytes < context.report.raw_bytes / 2
        True
    """

    def __init__(
        self,
        method: str | Method | None = "division",
        *,
        seed: int | None = None,
        inputs: bool = False,
        only: Patterns = None,
        skip: Patterns = None,
    ) -> None:
        if isinstance(method, Mapping):
            raise TypeError("got a method for each part of a model, which needs the model: division.attach(model, …)")
        self.method = as_method(method)
        known = [*known_nodes(), *(node for node, fields in OWN.items() if fields)]
        self._only = as_patterns(only, "only", known)
        self._skip = as_patterns(skip, "skip", known)
        self._scope = Scope(lambda _: self.method, self._covers, lambda: "", tuple, seed, inputs)
        self._watches = threading.local()

    def _covers(self, node: str) -> bool:
        if self._only and not any(fnmatchcase(node, pattern) for pattern in self._only):
            return False
        return not any(fnmatchcase(node, pattern) for pattern in self._skip)

    def __enter__(self) -> "compress":
        watcher = watch(self._scope.on_node)
        watcher.__enter__()
        self._watches.__dict__.setdefault("stack", []).append(watcher)
        self._scope.enter()
        return self

    def __exit__(self, *error: object) -> None:
        self._watches.stack.pop().__exit__(*error)
        self._scope.leave()

    @property
    def report(self) -> Report:
        """What was saved, coded and left: the last step in detail, and totals."""
        return self._scope.report

    def state_dict(self) -> dict[str, Any]:
        """Where the noise stands and what the method learned, as plain data: store it with a checkpoint."""
        return {"noise": self._scope.seeds.state_dict(), "method": method_state(self.method)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the context did whose :meth:`state_dict` this is.

        Raises:
            ValueError: not such a state, or one of another method.
        """
        expect_state(state, {"noise", "method"})
        load_method_state(self.method, state["method"])
        self._scope.seeds.load_state_dict(state["noise"])


class disabled:
    """Leave everything saved inside this region alone, whatever context is around it.

    Example:
        >>> import division
        >>> with division.compress(), division.disabled():
        ...     y = torch.nn.Linear(4, 4)(torch.randn(2, 4))
    """

    def __init__(self) -> None:
        self._watch = threading.local()

    def __enter__(self) -> None:
        watcher = watch(None)
        watcher.__enter__()
        self._watch.__dict__.setdefault("stack", []).append(watcher)

    def __exit__(self, *error: object) -> None:
        self._watch.stack.pop().__exit__(*error)
