"""Blocks of a model that are run again in backward, in the place of keeping what they save."""

import contextlib
import copy
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, is_grad_enabled, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.compiler import is_dynamo_compiling
from torch.utils.checkpoint import CheckpointError, checkpoint

from division.account import Record
from division.blocks import Segment, choose, members_of
from division.call import Call, Kept, Part, State, unpack_input
from division.methods import Method
from division.methods.method import Blocks
from division.nodes import Watcher, current, watch
from division.private import (
    default_hooks,
    has_default_hooks,
    is_fake,
    standing_aside,
    tree_flatten,
    tree_unflatten,
)
from division.scope import Scope

_lock = threading.Lock()  # of who makes modules run their parts again
Function = Callable[..., Any]


class Rerun:
    """Makes segments of a model run again in backward, for calls that a watcher sees.

    While a thread is inside (:meth:`enter`), the modules of the segments have an attribute ``forward`` of their own.
    Where gradients are off, inside other hooks of saved tensors, and where :class:`division.disabled` says so, they do
    as ever.

    Args:
        segments: what is run again.
        watcher: of the nodes of those calls.
        scope: keeps the account.
        method: codes the inputs of the segments; None keeps them as they are.
    """

    def __init__(self, segments: Iterable[Segment], watcher: Watcher, scope: Scope, method: Method | None) -> None:
        self._watcher, self._scope, self._method = watcher, scope, method
        self._parts: WeakKeyDictionary[nn.Module, list[Part]] = WeakKeyDictionary()
        for segment in segments:
            part = Part(segment.name, segment.start, segment.stop)
            self._parts.setdefault(segment.module, []).append(part)
        self._inside = 0
        self._modules: list[nn.Module] = []

    def enter(self) -> None:
        """A thread begins a forward: what it calls is run again in backward."""
        with _lock:
            self._inside += 1
            if self._inside == 1:
                self._modules = list(self._parts)
                for module in self._modules:
                    _take(module, self)

    def leave(self) -> None:
        """A thread ended its forward; with the last of them the modules are as they were."""
        with _lock:
            self._inside -= 1
            if self._inside == 0:
                for module in self._modules:
                    _give_back(module, self)
                self._modules = []

    def hold(self, module: nn.Module) -> None:
        """Let a module that is called from outside do so always: its ``forward`` is read before anyone is told of the call."""
        if module in self._parts:
            with _lock:
                _take(module, self)

    def release(self, module: nn.Module) -> None:
        """Undo :meth:`hold`."""
        if module in self._parts:
            with _lock:
                _give_back(module, self)

    def sees(self, watcher: Watcher | None) -> bool:
        """Whether calls under this watcher are meant."""
        return watcher == self._watcher

    def call(self, module: nn.Module, forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a module's forward, its segments so that they are run again in backward."""
        parts = self._parts[module]
        if parts[0].start is None:
            return self._segment(parts[0], [module], forward, args, kwargs)
        if len(args) != 1 or kwargs:
            return forward(*args, **kwargs)
        members, at, (x,) = [member for _, member in members_of(module)], 0, args
        del args
        for part in parts:
            x = _chain(members[at : part.start], x)
            inside = members[part.start : part.stop]
            x = self._segment(part, inside, partial(_chain, inside), (x,), {})
            at = part.stop or at
        return _chain(members[at:], x)

    def _segment(
        self, part: Part, modules: list[nn.Module], forward: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        inputs = list({id(leaves[place]): leaves[place] for place in places}.values())
        aside = not is_grad_enabled() or standing_aside() or has_default_hooks()
        if aside or any(x.is_inference() for x in inputs):
            return forward(*args, **kwargs)
        numbers = {id(x): number for number, x in enumerate(inputs)}
        for place in places:
            leaves[place] = _Input(numbers[id(leaves[place])])
        call, given = Call(part, numbers, State(part, modules)), [(args, kwargs)]
        del args, kwargs
        records: list[Record] = []

        def run(*tensors: Tensor) -> Any:
            if given:  # the objects themselves, which the block may change
                positional, named = given.pop()
                with _noted(lambda x: records.append(self._scope.inside(x, part.name)), part.name):
                    return forward(*positional, **named)
            fresh = [x.clone() if number in part.changed else x for number, x in enumerate(tensors)]
            found = [fresh[leaf.number] if isinstance(leaf, _Input) else leaf for leaf in leaves]
            positional, named = tree_unflatten(found, spec)
            with watch(None), call.state.as_it_was():
                return forward(*positional, **named)

        random = not any(map(is_fake, inputs))
        with watch(None), saved_tensors_hooks(call.pack, unpack_input):
            result = checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=random)
        call.settle()
        if records:
            kept = [self._keep(each, inputs[each.number], part) for each in call.kept if each.number is not None]
            self._scope.report.rerun(records, kept)
            records.clear()
        call.kept.clear()
        return result

    def _keep(self, kept: Kept, x: Tensor, part: Part) -> Record:
        if kept.copy is None:
            record, kept.code = self._scope.keep(x, part.name, self._method)
        else:
            record, kept.code = self._scope.keep(kept.copy, part.name, None)
        if kept.code is not None:
            kept.tensor = None
        return record


class _Input(NamedTuple):
    """The place of an input among the arguments of a segment."""

    number: int


def rerun_of(
    method: Method, model: nn.Module, watcher: Watcher, scope: Scope, covered: Callable[[str], bool] = lambda name: True
) -> Rerun:
    """What runs the blocks of a model again, for a method that wants it.

    Args:
        method: one with :attr:`division.methods.Method.blocks`.
        model: whose blocks.
        watcher, scope: as of :class:`Rerun`.
        covered: whether the method is that of a module of this name.

    Raises:
        ValueError: no blocks are found.
    """
    segments, inputs = method.blocks or Blocks()
    return Rerun(choose(model, segments, covered), watcher, scope, inputs)


class _Forward:
    """The ``forward`` of a module whose calls may be run again, in its place: it looks like the module's own one.

    A shallow copy of the module, such as a replica of ``nn.DataParallel``, takes it along: a call of the copy then runs
    the copy, as ever. A deep copy has one made for it; what is pickled has the module's own forward.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        before = vars(module).get("forward")
        self.before: Function | None = before.before if isinstance(before, _Forward) else before
        self.reruns: list[Rerun] = []

    def of(self, module: nn.Module) -> bool:
        """Whether it was made for this module."""
        return self._module() is module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            module = self._module()
            assert module is not None
            return (self.before or types.MethodType(type(module).forward, module))(*args, **kwargs)
        return self._call(sys._getframe(1), args, kwargs)

    def _call(self, caller: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = caller.f_locals.get("self")  # in torch's call of a module
        if not isinstance(module, nn.Module) or vars(module).get("forward") is not self:
            module = self._own()
        forward, watcher = self._forward_of(module), current()
        if watcher is not None and self.of(module):
            for rerun in tuple(self.reruns):
                if rerun.sees(watcher):
                    return rerun.call(module, forward, args, kwargs)
        return forward(*args, **kwargs)

    def _own(self) -> nn.Module:
        module = self._module()
        if module is None:
            raise RuntimeError(
                "got a forward of a copy, expected a call of the copy itself: copy(x), not copy.forward(x)"
            )
        return module

    def _forward_of(self, module: nn.Module) -> Function:
        return self.before or types.MethodType(type(module).forward, module)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What ``inspect``, which ``torch.jit.script`` asks, takes it for."""
        return types.MethodType

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forward_of(self._own()), name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Forward":
        copied = _Forward(memo.get(id(self._module()), nn.Module()))
        copied.before = copy.deepcopy(self.before, memo)
        return copied

    def __reduce__(self) -> tuple[Function, tuple[Any, ...]]:
        if self.before is not None:
            return _same, (self.before,)
        return getattr, (self._own(), "forward")  # of one that has no attributes yet


def _same(forward: Function) -> Function:
    return forward


def _take(module: nn.Module, rerun: Rerun) -> None:
    forward = vars(module).get("forward")
    if not isinstance(forward, _Forward) or not forward.of(module):
        forward = vars(module)["forward"] = _Forward(module)
    forward.reruns.append(rerun)


def _give_back(module: nn.Module, rerun: Rerun) -> None:
    forward = vars(module).get("forward")
    if not isinstance(forward, _Forward) or not forward.of(module):
        return
    forward.reruns.remove(rerun)
    if forward.reruns:
        return
    if forward.before is None:
        del vars(module)["forward"]
    else:
        vars(module)["forward"] = forward.before


def _chain(members: Iterable[nn.Module], x: Any) -> Any:
    for member in members:
        x = member(x)
    return x


@contextlib.contextmanager
def _noted(note: Callable[[Tensor], object], block: str) -> Iterator[None]:
    """Tell of each tensor that is saved inside a block, and do with it as the hooks in force do."""
    hooks = default_hooks()
    if hooks is None:
        yield
        return
    pack, unpack = hooks

    def noted(x: Tensor) -> Any:
        note(x)
        return pack(x)

    def named(packed: Any) -> Tensor:
        try:
            return unpack(packed)
        except CheckpointError as error:
            raise CheckpointError(
                f"block {block!r} saved other tensors when it was run again in backward than in forward, expected the same: if it"
                " changes an object that it is given, such as a cache of keys and values, go without (use_cache=False in"
                f" transformers), or leave it out by skip=; torch says: {error}"
            ) from error

    with saved_tensors_hooks(noted, named):
        yield
