"""What compressing keeps over the steps, and what it does with each new autograd node."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from division.account import EXCLUDED, WEIGHT, Record, Report
from division.code import Codes
from division.methods import Method
from division.private import has_hooks, storage_of
from division.rules import rules_for
from division.saved import Saved, handle, raw_fields, record_of, why_excluded
from division.seeds import Seeds

# A context held open over a whole training would otherwise keep a record of every tensor it ever saw.
MOST_RECORDS = 100_000


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
            self._codes.leave(tensor, saved.owner)
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
