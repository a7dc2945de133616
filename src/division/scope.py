"""What compressing keeps over the steps, and what it does with each new autograd node."""

import contextlib
import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from division.account import EXCLUDED, RERUN, RERUN_INPUT, STATE, WEIGHT, Record, Report
from division.code import Code, Codes
from division.methods.method import Gradients, Keeping, Method
from division.private import Storage, address_of, has_hooks, plain, unwrapped
from division.rules import LOSSY, Reading, Rule, Use, rules_for
from division.saved import (
    Saved,
    choose,
    coded,
    fields_of,
    handle,
    is_weight,
    raw_fields,
    record_of,
    why_excluded,
    why_left,
    why_without_rule,
)
from division.seeds import Seeds

# A context held open over a whole training would otherwise keep a record of every tensor it ever saw.
MOST_RECORDS = 100_000
CPU = torch.device("cpu")
CHECKPOINT = "checkpoint"
_OPERAND = Reading(Use.LINEAR)


#: What has the states with these keys.
_OWNERS: dict[tuple[str, ...], str] = {
    ("method", "noise"): "division.compress",
    ("methods", "noise"): "division.attach",
}


def expect_state(state: Any, keys: set[str]) -> None:
    """Check that ``state`` is a mapping with exactly these keys.

    Raises:
        ValueError: it isn't.
    """
    if isinstance(state, Mapping) and set(state) == keys:
        return
    shown = repr(state)
    if isinstance(state, Mapping):
        own = sorted(map(str, state))
        of = _OWNERS.get(tuple(own))
        shown = f"keys {own}" + (f" (of {of}, to be loaded by the same)" if of else "")
    raise ValueError(f"got a state with {shown}, expected a mapping with the keys {sorted(keys)}")


def method_state(method: Method) -> dict[str, Any]:
    """A method's kind and what it learned, as plain data."""
    return {"kind": method.kind, "learned": method.state_dict()}


def load_method_state(method: Method, state: Any) -> None:
    """Give a method what one of its kind had learned.

    Raises:
        ValueError: not such a state, or one of a method of another kind.
    """
    expect_state(state, {"kind", "learned"})
    if state["kind"] != method.kind:
        raise ValueError(f"got the state of a method {state['kind']}, expected one of {method.kind}")
    method.load_state_dict(state["learned"])


class Scope:
    """What compressing needs to know and keeps over the steps: method, noise, codes alive, account.

    Args:
        at: for a node's name, the qualified name of the module at work on this thread, and the method there; None
            where nothing is to be coded.
        state: weights and buffers of the model, as far as it is known.
    """

    def __init__(
        self,
        at: Callable[[str], tuple[str, Method | None]],
        state: Callable[[], Iterable[Tensor]],
        seed: int | None,
        inputs: bool,
        fakes: bool = False,
    ) -> None:
        self.report = Report()
        self.seeds = Seeds(seed)
        self._at, self._state = at, state
        self._state_storages: frozenset[int] | None = None
        self._inputs, self._fakes = inputs, fakes
        self._codes = Codes()
        self._inside = 0
        self._begun: list[Method] = []
        self._stand_in: tuple[Method, Method] | None = None
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
                self._begun = []

    def leave(self) -> None:
        """A thread ended its forward; the last of them closes the account of the step."""
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self.report.end_forward()

    def take_over(self, noise: Any, learned: Sequence[tuple[Method, Any]]) -> None:
        """Go on from where the noise and methods stood; if anything is refused, nothing has changed.

        Raises:
            ValueError: not such a state, or one of other methods, or of another model.
        """
        known = {id(x): x for x in self._state()}
        Seeds().load_state_dict(noise)
        for method, state in learned:
            load_method_state(copy.deepcopy(method, dict(known)), state)
        for method, state in learned:
            load_method_state(method, state)
        self.seeds.load_state_dict(noise)

    @contextlib.contextmanager
    def instead(self, method: Method, probe: Method, seed: int) -> Iterator[None]:
        """Work for a while with another method in the place of one, with noise of its own, and off the account.

        No method learns meanwhile.
        """
        kept = self.report, self.seeds, self._codes, self._inside, self._begun
        self.report, self.seeds, self._codes, self._inside = Report(), Seeds(seed), Codes(), 0
        self._stand_in = method, probe
        try:
            yield
        finally:
            self._stand_in, self._state_storages = None, None
            self.report, self.seeds, self._codes, self._inside, self._begun = kept

    def on_node(self, node: Any) -> None:
        """Handle everything that a new node saved."""
        fields = fields_of(type(node))
        if not fields:
            return
        name = node.name()
        module, method = self._at(name)
        if self._stand_in is not None:
            original, probe = self._stand_in
            method = probe if method is original else method
        elif method is not None and method.learns and not self._fakes:
            self._begin(method)
        rules, records = rules_for(name), self.report.records
        lists: dict[str, Any] = {}
        for field, raw, attribute, index in raw_fields(node, fields):
            record = self._handle(node, name, field, raw, attribute, index, lists, rules.get(field), module, method)
            if record is not None:
                records.append(record)
        if len(records) > MOST_RECORDS:
            self._cut_step()

    def inside(self, x: Tensor, segment: str) -> Record:
        """Account for a tensor that is saved in what is run again: nothing of it is kept.

        Args:
            x: the tensor.
            segment: the name of what is run again.
        """
        record = record_of(x, self._at(CHECKPOINT)[0], CHECKPOINT, segment, "")
        record.left = self._why_there(x, record) or RERUN
        self.report.records.append(record)
        return record

    def keep(self, x: Tensor, segment: str, method: Method | None) -> tuple[Record, Code | None]:
        """Account for an input of what is run again, and code it if it should be.

        Args:
            x: the input.
            segment: the name of what is run again.
            method: whose codec for the operand of a product it takes; None leaves it as it is.

        Returns:
            the account's line, and the code; None if it is kept as it is.
        """
        record = record_of(x, self._at(CHECKPOINT)[0], CHECKPOINT, segment, "")
        record.added = True
        self.report.records.append(record)
        record.left = self._why_there(x, record) or why_left(x, self._fakes)
        if not record.left and method is None:
            record.left = RERUN_INPUT
        if not record.left and method is not None and record.reference is not None:
            saved = Saved(CHECKPOINT, "input", x, record.module)
            codec = choose(_OPERAND, saved, self._inputs, method.codec)
            record.left = codec if isinstance(codec, str) else self._codes.why_left(record.reference)
            if not isinstance(codec, str) and not record.left:
                return record, coded(x, record, codec, self._codes, self.seeds.next)
        self._note_left(x, record, x.grad_fn is not None, False)
        return record, None

    def _why_there(self, x: Tensor, record: Record) -> str:
        """That a tensor is a weight, or a module's state, and there in any case; "" for others."""
        if is_weight(x):
            return WEIGHT
        return STATE if record.reference is not None and self._is_state(record.reference) else ""

    def _begin(self, method: Method) -> None:
        """Tell a method that learns of the step, at the first node in its charge; once."""
        with self._lock:
            if any(each is method for each in self._begun):
                return
            self._begun.append(method)
        with plain(CPU):
            method.begin_step()

    def _cut_step(self) -> None:
        """Begin a new step of the account within a context that is held open over very many operations."""
        with self._lock:
            self.report.end_forward()
            self.report.begin_step()
            self._codes.begin_step()

    def _handle(
        self, node: Any, name: str, field: str | int, raw: Any, attribute: str, index: int | None, lists: dict[str, Any],
        rule: Rule | None, module: str, method: Method | None,
    ) -> Record | None:  # fmt: skip
        if has_hooks(raw):
            return Record(module, name, str(field), "", (), torch.uint8, 0, left="has saved-tensor hooks already")
        try:
            if index is None:
                tensor = getattr(node, attribute)
            else:
                # A list is read once: read again, it would decode what has been coded of it.
                tensor = (lists.get(attribute) or lists.setdefault(attribute, getattr(node, attribute)))[index]
        except RuntimeError:
            # Changed in place since it was saved. PyTorch says so, in full, if backward ever needs it.
            return Record(module, name, str(field), "", (), torch.uint8, 0, left="changed in place since it was saved")
        if not isinstance(tensor, Tensor):
            return None
        reading = None if rule is None else rule(node)
        record = record_of(tensor, module, name, str(field), "" if reading is None else reading.use.value)
        storage, made = record.reference, tensor.grad_fn is not None
        is_state = storage is not None and not made and self._is_state(storage)
        if method is None or is_state:
            record.left = why_excluded(tensor, field, is_state)
        elif left := why_left(tensor, self._fakes):
            record.left = left
        elif reading is None:
            record.left = why_without_rule(tensor, field)
        else:
            saved = Saved(name, field, tensor, module, node)
            handle(saved, record, raw, reading, self._codes, self.seeds.next, method.codec, self._inputs)
            if (
                reading.use in LOSSY
                and method.learns
                and self._stand_in is None
                and record.left != WEIGHT
                and not reading.given
            ):
                self._learn(method, reading, saved, record)
        if record.left:
            self._note_left(tensor, record, made, is_state)
        return record

    def _learn(self, method: Method, reading: Reading, saved: Saved, record: Record) -> None:
        """Show a saved tensor, and what became of it, to a method that learns."""
        device = saved.tensor.device
        if self._fakes:
            expected = None if record.least is None else method.expected_bytes(reading, saved)
            if expected is not None:
                record.expect(expected)
            return
        left = bool(record.left) or (record.coded_by is not None and record.coded_by.whole)  # moved as it is
        with plain(device):
            observer = method.observe(reading, saved, None if left else record.packed_bytes)
        if observer is None:
            return
        if isinstance(observer, Keeping):
            record.learning_bytes = observer.nbytes

        def observed(grad_inputs: Gradients, grad_outputs: Gradients) -> None:
            with plain(device):
                observer(grad_inputs, grad_outputs)

        saved.grad_fn.register_hook(observed)

    def _note_left(self, x: Tensor, record: Record, made: bool, is_state: bool) -> None:
        """What follows from a saved tensor's being left as it is."""
        if made:
            if record.left != EXCLUDED and record.reference is not None:
                self._codes.leave(x, record, record.reference)
        elif record.left == WEIGHT and x.requires_grad and not (is_state or isinstance(x, Parameter)):
            # Such as a batch that takes a gradient.
            record.left = "a leaf that is no Parameter: its owner still holds it"

    def _is_state(self, storage: Storage) -> bool:
        """Whether this is the memory of one of the model's weights or buffers."""
        if self._state_storages is None:
            state = map(unwrapped, self._state())
            self._state_storages = frozenset(address_of(x) for x in state if x.layout is torch.strided)
        return storage.address in self._state_storages
