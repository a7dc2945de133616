"""One call of a segment that is run again in backward: what it was given, and what its modules were at the time."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from division.code import Code, unpack
from division.private import is_fake

#: Buffers that torch's norms write to without a word, be it in a later call in another mode: a copy is always kept.
_STATISTICS = frozenset({"running_mean", "running_var", "num_batches_tracked"})


class Part:
    """A segment of a known module, and what is known of its calls.

    Attributes:
        name, start, stop: as of :class:`division.blocks.Segment`.
        known: the modes (training or not) that it was called in before.
        changed: the numbers of the inputs that it changes in place.
        stateful: the numbers of its modules, with the names of the buffers that it changes.
    """

    __slots__ = ("changed", "known", "name", "start", "stateful", "stop")

    def __init__(self, name: str, start: int | None, stop: int | None) -> None:
        self.name, self.start, self.stop = name, start, stop
        self.known: set[bool] = set()
        self.changed: set[int] = set()
        self.stateful: set[tuple[int, str]] = set()


class Kept:
    """An input of a segment between forward and backward: as it is, a copy of it, or its code."""

    __slots__ = ("code", "copy", "number", "tensor", "version")

    def __init__(self, tensor: Tensor, number: int | None, copy: Tensor | None) -> None:
        self.tensor: Tensor | None = tensor
        self.number, self.copy, self.version = number, copy, tensor._version
        self.code: Code | None = None


def unpack_input(kept: Kept) -> Tensor:
    """Autograd's unpack of an input.

    Raises:
        RuntimeError: it was changed in place after the call.
    """
    if kept.code is not None:
        return unpack(kept.code)
    x = kept.tensor
    assert x is not None
    if kept.copy is None and x._version != kept.version:
        raise RuntimeError(
            f"an input {tuple(x.shape)} of a block that is to be run again was changed in place after the block: it is at"
            f" version {x._version}, expected version {kept.version}; leave that block out by skip=, or clone the input"
        )
    return x


class Call:
    """One call of a segment.

    Args:
        part: the segment.
        numbers: of its inputs, each once, by their ids.
        state: what its modules are.

    Attributes:
        kept: the inputs, from when they are packed to when the call is over.
    """

    def __init__(self, part: Part, numbers: Mapping[int, int], state: "State") -> None:
        self.state = state
        self.kept: list[Kept] = []
        self._part, self._numbers = part, numbers

    def pack(self, x: Tensor) -> Kept:
        """Autograd's pack of what the call is given."""
        number = self._numbers.get(id(x))
        # Of a first call nobody knows whether it works in place on what it is given.
        copied = number is not None and (number in self._part.changed or not self.state.known)
        self.kept.append(Kept(x.detach(), number, x.detach().clone() if copied else None))
        return self.kept[-1]

    def settle(self) -> None:
        """Forward is over: see what the segment changed."""
        for kept in self.kept:
            if kept.number is None or kept.tensor is None:
                continue
            if kept.tensor._version == kept.version:
                kept.copy = None
            elif kept.copy is None:
                raise RuntimeError(
                    f"block {self._part.name!r}, which is to be run again in backward, changed its input"
                    f" {tuple(kept.tensor.shape)} in place, which it did not when it was first called: leave it out by skip="
                )
            else:
                self._part.changed.add(kept.number)
                kept.tensor = kept.copy
        self.state.settle()


class State:
    """What the modules of a segment are when it is called: their mode, their weights, and the buffers that it changes."""

    def __init__(self, part: Part, modules: list[nn.Module]) -> None:
        self._part = part
        self._modules = list(dict.fromkeys(m for module in modules for m in module.modules()))
        self._modes = [m.training for m in self._modules]
        self.known, self._over = any(self._modes) in part.known, False
        self._weights: list[tuple[nn.Module, str, Tensor, int]] = []
        self._buffers = [
            (number, name, x, x._version, x.detach().clone() if self._copies(number, name) else None)
            for number, m in enumerate(self._modules)
            for name, x in m._buffers.items()
            if x is not None
        ]

    def _copies(self, number: int, name: str) -> bool:
        """Whether a buffer's values may be other ones when the segment is run again."""
        return not self.known or name in _STATISTICS or (number, name) in self._part.stateful

    def settle(self) -> None:
        """Forward is over: keep the copies of what it changed, and note which weights it ran with."""
        buffers, self._buffers = self._buffers, []
        for number, name, x, version, copy in buffers:
            # Versions do not tell all: torch's batch norm writes to its statistics without a word.
            changed = x._version != version or (number, name) in self._part.stateful
            if copy is not None and not (changed or self.known or is_fake(x)):
                changed = not torch.equal(x, copy)
            if changed:
                self._part.stateful.add((number, name))
                if copy is None:
                    raise RuntimeError(
                        f"block {self._part.name!r}, which is to be run again in backward, changed its buffer {name!r}, which it"
                        " did not when it was first called: leave it out by skip="
                    )
            changed = changed or name in _STATISTICS
            self._buffers.append((number, name, x, -1 if changed else x._version, copy if changed else None))
        self._over = True
        self._part.known.add(any(self._modes))
        self._weights = [
            (m, name, p, p._version) for m in self._modules for name, p in m._parameters.items() if p is not None
        ]

    @contextlib.contextmanager
    def as_it_was(self) -> Iterator[None]:
        """The modules in the mode, with the weights and the buffers of the call; what that changes is undone."""
        undo: list[tuple[dict[str, Any], str, Any]] = []

        def swap(values: dict[str, Any], name: str, value: Any) -> None:
            if values.get(name) is not value:
                undo.append((values, name, values.get(name)))
                values[name] = value

        try:
            for module, mode in zip(self._modules, self._modes, strict=True):
                swap(vars(module), "training", mode)
            for module, name, p, version in self._weights:
                _expect_unchanged(p, version, name, self._part)
                # FSDP puts whole weights in the place of its shards, and these back, around each forward by itself.
                if _is_sharded(p) == _is_sharded(module._parameters.get(name)):
                    swap(module._parameters, name, p)
            for number, name, x, version, copy in self._buffers:
                # A forward that runs a backward of its own is not over, and nobody knows yet what it changes.
                same = self._over and version >= 0
                if same:
                    _expect_unchanged(x, version, name, self._part)
                value = x if same else (x if copy is None else copy).detach().clone()
                swap(self._modules[number]._buffers, name, value)
            yield
        finally:
            for values, name, value in reversed(undo):
                values[name] = value


def _is_sharded(x: Tensor | None) -> bool:
    sharding = sys.modules.get("torch.distributed.tensor")
    return sharding is not None and isinstance(x, sharding.DTensor)


def _expect_unchanged(x: Tensor, version: int, name: str, part: Part) -> None:
    if x._version != version:
        raise RuntimeError(
            f"{name!r} {tuple(x.shape)} in block {part.name!r}, which is run again in backward, was changed in place since"
            f" forward: it is at version {x._version}, expected version {version}; run backward before the update"
        )
