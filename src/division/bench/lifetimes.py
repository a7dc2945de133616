"""What torch allocates in a training step, told by how long each block of memory lives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, get_args

from torch.profiler import ProfilerActivity, profile, record_function

from division.bench.work import PHASES, Work

Kind = Literal["saved", "gradients", "transient"]
MOST_BLOCKS = 6
_MARK = "division.bench."
_NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True, slots=True)
class Change:
    """Memory taken (`size` above 0) or given back (below 0) at an address."""

    time: int
    address: int
    size: int
    within: str = ""  # the operation at work


@dataclass(frozen=True, slots=True)
class Block:
    """Memory from when it is taken to when it is given back, in the order of changes."""

    size: int
    kind: Kind
    taken: int  # index of the change
    given_back: int


def _blocks(changes: Sequence[Change], ends: dict[str, int]) -> list[Block]:
    found = []
    pending: dict[int, int] = {}
    for index, change in enumerate(changes):
        if change.size > 0:
            pending[change.address] = index
        elif change.address in pending:
            taken = pending.pop(change.address)
            kind = _kind(changes[taken].time, change.time, ends)
            found.append(Block(changes[taken].size, kind, taken, index))
    for taken in pending.values():
        kind = _kind(changes[taken].time, None, ends)
        found.append(Block(changes[taken].size, kind, taken, len(changes)))
    return found


@dataclass(frozen=True)
class Lifetimes:
    """A step's memory by lifetime, beside what was there before it.

    *Saved* is what forward takes and backward finds; *gradients* is what backward takes and leaves to the update;
    *transient* is the rest: what one operation needs while it works, and the tensors between operations.

    Attributes:
        saved, gradients, transient: bytes of each at the moment when they are most together.
        phase: the phase of the step that moment lies in.
        within: the operation at work at that moment, by the name that torch's profiler gives it.
        transient_blocks: bytes of the largest transient blocks at that moment.
        kept: all that is saved, at the end of forward.
        most_transient: the most transient bytes at any moment.
    """

    saved: int
    gradients: int
    transient: int
    phase: str
    within: str
    transient_blocks: tuple[int, ...]
    kept: int
    most_transient: int


def lifetimes(changes: Iterable[Change], ends: dict[str, int]) -> Lifetimes:
    """Sorts the memory of a step by lifetime.

    Args:
        changes: what was taken and given back, in order; what was there before and is given back is not counted.
        ends: the time at which each of the phases forward, backward and update ends.

    Example:
        >>> changes = [
        ...     Change(1, 0, 100),
        ...     Change(2, 8, 70),
        ...     Change(3, 8, -70),
        ...     Change(6, 8, 30),
        ...     Change(7, 0, -100),
        ... ]
        >>> found = lifetimes(changes, {"forward": 5, "backward": 9, "update": 12})
        >>> found.phase, found.saved, found.transient
        ('forward', 100, 70)
    """
    changes = [change for change in changes if change.time <= ends["update"]]
    blocks = _blocks(changes, ends)
    steps: dict[Kind, list[int]] = {kind: [0] * (len(changes) + 1) for kind in get_args(Kind)}
    for block in blocks:
        steps[block.kind][block.taken] += block.size
        steps[block.kind][block.given_back] -= block.size
    held = {kind: list(accumulate(each)) for kind, each in steps.items()}  # after each change
    at = max(range(len(changes)), key=lambda i: sum(held[kind][i] for kind in held), default=0)
    working = [b.size for b in blocks if b.kind == "transient" and b.taken <= at < b.given_back]
    return Lifetimes(
        **{kind: held[kind][at] for kind in held},
        phase=next((name for name in PHASES if changes and changes[at].time <= ends[name]), PHASES[0]),
        within=changes[at].within if changes else "",
        transient_blocks=tuple(sorted(working, reverse=True)[:MOST_BLOCKS]),
        kept=sum(block.size for block in blocks if block.kind == "saved"),
        most_transient=max(held["transient"]),
    )


def _kind(born: int, died: int | None, ends: dict[str, int]) -> Kind:
    if born <= ends["forward"]:
        return "saved" if died is None or died > ends["forward"] else "transient"
    if born <= ends["backward"]:
        return "gradients" if died is None or died > ends["backward"] else "transient"
    return "transient"


def traced(work: Work, method: str) -> Lifetimes | None:
    """One step on the CPU, its memory seen by torch's profiler; None where this torch doesn't tell.

    Memory that a library under torch takes by itself (workspaces of oneDNN) is not in it.
    """
    ends: dict[str, int] = {}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work.step(method, _phase)
    changes = []
    for event, within in _tree(seen):
        fields = event.extra_fields
        if hasattr(fields, "alloc_size") and fields.device.type == "cpu":
            changes.append(Change(event.start_time_ns, fields.ptr, fields.alloc_size, within))
        elif event.name.startswith(_MARK):
            ends[event.name.removeprefix(_MARK)] = event.end_time_ns
    if not changes or set(ends) != set(PHASES):
        return None
    return lifetimes(sorted(changes, key=lambda change: change.time), ends)


def _phase(name: str) -> record_function:
    return record_function(_MARK + name)


def _tree(seen: profile) -> Iterator[tuple[Any, str]]:
    """(event, name of the outermost operation it lies in) of all that the profiler saw, allocations included."""
    results = getattr(seen.profiler, "kineto_results", None)
    if results is None or not hasattr(results, "experimental_event_tree"):
        return
    pending = [(event, "") for event in results.experimental_event_tree()]
    while pending:
        event, within = pending.pop()
        yield event, within
        below = within or ("" if event.name.startswith(_MARK) else event.name.removeprefix(_NODE))
        pending.extend((child, below) for child in event.children)
