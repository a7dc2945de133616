"""The account: what autograd saved, what was coded, what was left and why."""

from collections.abc import Iterable
from typing import Any

import torch

from division.codecs.codec import Codec
from division.private import Storage

# Why a saved tensor was left as it is. A weight or a module's state is there with or without autograd, so it counts
# neither as raw nor as packed bytes.
WEIGHT, STATE = "weight", "state"
_PERSISTENT = frozenset({WEIGHT, STATE})
# Left because the user said so: unlike other tensors that are left, these don't make codes of the same tensor pointless
# in the user's eyes.
EXCLUDED = "excluded"
NO_RULE = "no rule"
HELD = "made by no node: its owner still holds it"
# Saved inside what is run again in backward, so that nothing of it is kept; and what that is run again from.
RERUN, RERUN_INPUT = "run again in backward", "kept to run again what it went into"


class Record:
    """One saved tensor. Its text is made when it is read: most records are only counted.

    Attributes:
        module: qualified name of the module whose forward saved it; "" where no model is attached.
        node: autograd's name of the operation, e.g. ``ConvolutionBackward0``.
        field: autograd's name of the tensor within the node, e.g. ``input``.
        use: what backward does with it, in lower case; "" where no rule is known.
        shape, dtype: of the tensor.
        raw_bytes: bytes of its elements.
        packed_bytes: bytes of its code; 0 if it shares one, or was left. In a prediction the most it may take.
        least_bytes: the fewest bytes of its code; ``packed_bytes`` but in a prediction of codes whose size depends on
            the values.
        learning_bytes: what the method keeps besides, until backward, to learn from.
        coded_by: the codec; None if it was left.
        sharer: the saved tensor whose code it shares; None.
        left: why it was left as it is; "" if it was coded.
        added: whether plain PyTorch would not have kept it: an input of what is run again in backward.
        held: whether somebody else still held the original when the forward ended (None: not known yet).
        storage, storage_bytes: identity and size of the memory under it; identities are unique within a step.
        reference: a weak hold on that memory, until the forward has ended.
    """

    __slots__ = (
        "added", "coded_by", "dtype", "expected", "field", "held", "learning_bytes", "least", "left", "module", "node", "packed_bytes",
        "raw_bytes", "reference", "shape", "sharer", "storage", "storage_bytes", "use",
    )  # fmt: skip

    def __init__(
        self, module: str, node: str, field: str, use: str, shape: tuple[int, ...], dtype: torch.dtype, raw_bytes: int,
        reference: Storage | None = None, left: str = "",
    ) -> None:  # fmt: skip
        self.module, self.node, self.field, self.use = module, node, field, use
        self.shape, self.dtype, self.raw_bytes, self.packed_bytes = shape, dtype, raw_bytes, 0
        self.learning_bytes = 0
        self.least: int | None = None
        self.expected = self.added = False
        self.coded_by: Codec | None = None
        self.sharer: Record | None = None
        self.left = left
        self.held: bool | None = None
        self.reference = reference
        if reference is None:
            self.storage, self.storage_bytes = id(self), raw_bytes
        else:
            self.storage, self.storage_bytes = reference.address, reference.nbytes

    @property
    def owner(self) -> str:
        """Whose saved tensor it is, for a person to read."""
        return f"{self.module} {self.node}.{self.field}".strip()

    @property
    def codec(self) -> str:
        """The codec, as text: its name and what differs from its defaults; "" if it was left."""
        return "" if self.coded_by is None else str(self.coded_by)

    @property
    def shared(self) -> str:
        """The saved tensor whose code it shares, as "module node.field"; "" for none."""
        return "" if self.sharer is None else self.sharer.owner

    @property
    def least_bytes(self) -> int:
        """The fewest bytes of its code."""
        return self.packed_bytes if self.least is None else self.least

    def expect(self, nbytes: int) -> None:
        """Take the bytes that such a code had before for those of a code that isn't made."""
        self.packed_bytes, self.least, self.expected = min(nbytes, self.raw_bytes), None, True

    def close(self) -> None:
        """Settle whether the original is still held, and let go of the weak reference."""
        if self.reference is not None:
            self.held = not self.reference.expired()
            self.reference = None

    def to_row(self) -> dict[str, Any]:
        """The record as plain data."""
        names = (
            "module", "node", "field", "use", "raw_bytes", "packed_bytes", "learning_bytes", "codec", "shared", "left", "held",
        )  # fmt: skip
        row = {name: getattr(self, name) for name in names}
        return {**row, "shape": list(self.shape), "dtype": str(self.dtype).removeprefix("torch.")}

    def __repr__(self) -> str:
        return f"Record({self.to_row()})"


def _storages(records: Iterable[Record]) -> int:
    """Bytes of the distinct storages under the records."""
    return sum({r.storage: r.storage_bytes for r in records}.values())


class Report:
    """What a context saved: its last step record by record, and totals over all steps.

    Bytes count each storage once, however many tensors view it, and leave out weights and module state.
    A storage that one operation has coded and another has left counts whole, and its code besides. A context held
    open over more than 100,000 saved tensors is cut into several steps.

    Attributes:
        records: the saved tensors of the last step.
        steps: how many steps there were.
        recomputed_bytes: what the largest of the segments that are run again saves while its backward works, besides its
            inputs: on top of ``packed_bytes``, for that time; 0 where nothing is run again.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.steps = 0
        self.recomputed_bytes = 0
        self._raw_before = 0
        self._packed_before = 0

    def begin_step(self) -> None:
        """Start a new step; the last one goes into the totals."""
        self._raw_before, self._packed_before = self.total_raw_bytes, self.total_packed_bytes
        self.records = []
        self.recomputed_bytes = 0
        self.steps += 1

    def end_forward(self) -> None:
        """Settle for every record whether its original is still held."""
        for record in self.records:
            record.close()

    def rerun(self, inside: Iterable[Record], kept: Iterable[Record]) -> None:
        """Note what one segment saves when it is run again.

        Args:
            inside: its saved tensors.
            kept: what it is run from.
        """
        there = {r.storage for r in kept}
        found = _storages(r for r in inside if r.left == RERUN and r.storage not in there)
        self.recomputed_bytes = max(self.recomputed_bytes, found)

    def _counted(self) -> list[Record]:
        return [r for r in self.records if r.left not in _PERSISTENT]

    @property
    def raw_bytes(self) -> int:
        """What plain PyTorch would have kept for backward in the last step."""
        return _storages(r for r in self._counted() if not r.added)

    @property
    def left_bytes(self) -> int:
        """What was left as it was, in the last step."""
        return _storages(r for r in self._counted() if r.left and r.left != RERUN)

    @property
    def code_bytes(self) -> int:
        """Codes, in the last step."""
        return sum(r.packed_bytes for r in self.records)

    @property
    def elsewhere_bytes(self) -> int:
        """Those of the codes that are kept in host memory or in a file, not in the memory of the tensors' device."""
        return sum(r.packed_bytes for r in self.records if r.coded_by is not None and r.coded_by.elsewhere)

    @property
    def learning_bytes(self) -> int:
        """What the method kept besides, to learn from, in the last step."""
        return sum(r.learning_bytes for r in self.records)

    @property
    def packed_bytes(self) -> int:
        """All that is kept for backward in the last step, wherever it lies: codes, what was left, and what is learned from."""
        return self.code_bytes + self.left_bytes + self.learning_bytes

    @property
    def least_bytes(self) -> int:
        """The fewest bytes that may be kept, of a prediction; else ``packed_bytes``."""
        return sum(r.least_bytes for r in self.records) + self.left_bytes + self.learning_bytes

    @property
    def held_bytes(self) -> int:
        """Originals of coded tensors that somebody else still held when the forward ended."""
        return _storages(r for r in self.records if r.held and not r.left)

    @property
    def ratio(self) -> float:
        """``raw_bytes / packed_bytes`` of the last step; 1 if nothing was saved."""
        return self.raw_bytes / self.packed_bytes if self.packed_bytes else 1.0

    @property
    def total_raw_bytes(self) -> int:
        """Raw bytes, summed over all steps."""
        return self._raw_before + self.raw_bytes

    @property
    def total_packed_bytes(self) -> int:
        """Packed bytes, summed over all steps."""
        return self._packed_before + self.packed_bytes

    def to_rows(self) -> list[dict[str, Any]]:
        """The last step's records as plain data, in the order they were saved."""
        return [record.to_row() for record in self.records]

    def __repr__(self) -> str:
        if not self.steps:
            return "Report(no step yet)"
        sizes = f"{_human(self.raw_bytes)} kept in {_human(self.packed_bytes)}"
        return f"Report(step {self.steps}: {len(self.records)} saved tensors, {sizes}, ratio {self.ratio:.2f})"

    def __str__(self) -> str:
        return f"{self._summary()}\n{self._table(30)}" if self.records else self._summary()

    def _summary(self) -> str:
        if not self.steps:
            return "division: no step yet (the context was never entered)"
        if not self.records:
            return (
                f"division: step {self.steps} saved nothing for backward: was it under no_grad, or does nothing in it"
                " require a gradient?"
            )
        coded = sum(not r.left for r in self.records)
        parts = f"{_human(self.code_bytes)} codes, {_human(self.left_bytes)} left"
        if self.learning_bytes:
            parts += f", {_human(self.learning_bytes)} to learn from"
        lines = [
            f"division: step {self.steps}, {len(self.records)} saved tensors, {coded} coded",
            f"  raw     {_human(self.raw_bytes)}",
            f"  packed  {_human(self.packed_bytes)}  ({parts})",
            f"  ratio   {self.ratio:.2f}",
        ]
        if self.elsewhere_bytes:
            lines.append(f"  moved   {_human(self.elsewhere_bytes)} of the codes, to host memory or a file")
        persistent = [r for r in self.records if r.left in _PERSISTENT]
        if persistent:
            size = _human(_storages(persistent))
            lines.append(f"  not counted: {len(persistent)} weights and module states, {size}, there in any case")
        if self.recomputed_bytes:
            lines.append(f"  rerun   {_human(self.recomputed_bytes)} more while the largest segment is run again")
        if self.held_bytes:
            lines.append(f"  held    {_human(self.held_bytes)} of originals still held elsewhere after forward")
        return "\n".join(lines)

    def _table(self, most: int) -> str:
        ranked = sorted(self._counted(), key=lambda r: r.raw_bytes, reverse=True)
        cells: list[tuple[str, ...]] = [("module", "saved by", "use", "shape", "dtype", "raw", "packed", "as")]
        for r in ranked[:most]:
            fate = f"left: {r.left}" if r.left else (f"shared with {r.shared}" if r.shared else r.codec)
            packed = _human(r.raw_bytes if r.left and r.left != RERUN else r.packed_bytes)
            shape, kind = "x".join(map(str, r.shape)), str(r.dtype).removeprefix("torch.")
            held = ", still held elsewhere" if r.held and not r.left else ""
            cells.append(
                (r.module, f"{r.node}.{r.field}", r.use, shape, kind, _human(r.raw_bytes), packed, fate + held)
            )
        if not any(r.module for r in ranked[:most]):  # no model is attached
            cells = [row[1:] for row in cells]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        if len(ranked) > most:
            lines.append(f"and {len(ranked) - most} smaller; to_rows() has all")
        return "\n".join(lines)


def _human(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
