"""Compressing a model whose training loop belongs to someone else."""

import contextlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer

from division.account import Report
from division.calibrate import calibrate
from division.compress import Patterns, as_method, as_patterns, bind
from division.methods import Method
from division.nodes import silenced, watch
from division.private import uncompiled
from division.rerun import Rerun, rerun_of
from division.scope import Scope, expect_state, method_state

MethodByPart = Mapping[str, str | Method | None]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.calls: list[tuple[str, FrameType | None]] = []
        self.watch: watch | None = None


class Handle:
    """A model under compression; made by :func:`attach`.

    Every outermost call of the model, or of a part of it, is a step of its :attr:`report`. Also a context manager:
    leaving it removes it.
    """

    def __init__(
        self, model: nn.Module, methods: Mapping[str, Method], only: Sequence[str], skip: Sequence[str],
        seed: int | None, inputs: bool, fakes: bool = False,
    ) -> None:  # fmt: skip
        self._names = weakref.WeakKeyDictionary({module: name for name, module in model.named_modules()})
        self._methods, self._only, self._skip, self._fakes = methods, only, skip, fakes
        self._chosen: dict[str, Method | None] = {}
        self._thread = _Thread()
        self._model = weakref.ref(model)
        self._scope = Scope(self._at, self._state, seed, inputs, fakes)
        self._reruns = [self._rerun_of(method, model) for method in _distinct(methods) if method.blocks is not None]
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        for rerun in self._reruns:
            rerun.hold(model)
        self._finalizer = weakref.finalize(model, _remove, self._hooks)

    def _at(self, node: str) -> tuple[str, Method | None]:
        calls = self._thread.calls
        module = calls[-1][0] if calls else ""
        if module not in self._chosen:
            self._chosen[module] = self._choose(module)
        return module, self._chosen[module]

    def _choose(self, module: str) -> Method | None:
        parts = _ancestry(module)
        if self._only and _first_match(parts, self._only) is None:
            return None
        if _first_match(parts, self._skip) is not None:
            return None
        pattern = _first_match(parts, tuple(self._methods))
        return None if pattern is None else self._methods[pattern]

    def _rerun_of(self, method: Method, model: nn.Module) -> Rerun:
        return rerun_of(method, model, self._on_node, self._scope, lambda name: self._choose(name) is method)

    def _state(self) -> Iterator[Tensor]:
        model = self._model()
        if model is not None:
            yield from model.parameters()
            yield from model.buffers()

    @uncompiled
    def _enter(self, module: nn.Module, args: Any) -> None:
        if is_dynamo_compiling():
            return
        name = self._names.get(module)
        if name is not None:
            self._drop_interrupted()
            self._open(name, _call_frame(sys._getframe(1)))

    @uncompiled
    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if is_dynamo_compiling():
            return
        calls = self._thread.calls
        if not calls:
            return
        frame = _call_frame(sys._getframe(1))
        if calls[-1][1] is not frame and module in self._names:
            self._drop_interrupted()
        if calls and calls[-1][1] is frame:
            self._close()

    def _on_node(self, node: Any) -> None:
        calls = self._thread.calls
        if calls and _runs(calls[-1][1]):
            self._scope.on_node(node)

    def _drop_interrupted(self) -> None:
        """Close the calls that ended without a word: torch tells hooks of an ``Exception``, not of Ctrl-C."""
        calls = self._thread.calls
        while calls and not _runs(calls[-1][1]):
            self._close()

    def _open(self, name: str, frame: FrameType | None) -> None:
        thread = self._thread
        if not thread.calls and not silenced():
            thread.watch = watch(self._on_node, alone=self._fakes)
            thread.watch.__enter__()
            self._scope.enter()
            for rerun in self._reruns:
                rerun.enter()
        thread.calls.append((name, frame))

    def _close(self) -> None:
        thread = self._thread
        thread.calls.pop()
        if not thread.calls and thread.watch is not None:
            open_watch, thread.watch = thread.watch, None
            for rerun in self._reruns:
                rerun.leave()
            open_watch.__exit__(None, None, None)
            self._scope.leave()

    @contextlib.contextmanager
    def step(self) -> Iterator["Handle"]:
        """Cover everything in a ``with`` block, such as the loss, as one step of the report.

        Example:
            >>> import torch, division
            >>> model = torch.nn.Linear(64, 64)
            >>> with division.attach(model) as handle, handle.step() as running:
            ...     loss = model(torch.randn(8, 64)).sigmoid().sum()
            >>> running.report.steps
            1
        """
        if is_dynamo_compiling():
            yield self
            return
        self._drop_interrupted()
        before = len(self._thread.calls)
        self._open("", None)
        try:
            yield self
        finally:
            while len(self._thread.calls) > before:
                self._close()

    def calibrate(self, step: Callable[[], Tensor]) -> bool:
        """Let the methods that are due measure on this step, as :meth:`division.compress.calibrate` does.

        Args:
            step: runs forward on a batch and returns the loss, in a ``with handle.step()`` block if it is in training.

        Returns:
            whether anything was measured.
        """
        return calibrate(self._scope, self._methods.values(), step)

    def remove(self) -> None:
        """Stop compressing this model. What is in coded form already decodes as ever. May be called again."""
        model = self._model()
        if self._finalizer.alive and model is not None:
            for rerun in self._reruns:
                rerun.release(model)
        self._finalizer()
        while self._thread.calls and self._thread.calls[-1][1] is not None:
            self._close()

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        model = self._model()
        name = "a model that is gone" if model is None else type(model).__name__
        methods = repr(self._methods[""] if set(self._methods) == {""} else dict(self._methods))
        return f"Handle({name}, {methods}, {self.report!r}{'' if self._finalizer.alive else ', removed'})"

    @property
    def report(self) -> Report:
        """What was saved, coded and left, by module: the last outermost call in detail, and totals."""
        return self._scope.report

    @property
    def settling(self) -> bool:
        """Whether some method keeps more at first than it will once it has learned."""
        return any(method.settling for method in self._methods.values())

    def state_dict(self) -> dict[str, Any]:
        """Where the noise stands and what the methods learned, as plain data: store it with a checkpoint."""
        states = {pattern: method_state(method) for pattern, method in self._methods.items()}
        return {"noise": self._scope.seeds.state_dict(), "methods": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the handle did whose :meth:`state_dict` this is.

        Raises:
            ValueError: not such a state, or one of other methods; nothing of it is taken over.
        """
        expect_state(state, {"noise", "methods"})
        expect_state(state["methods"], set(self._methods))
        learned = [(self._methods[pattern], own) for pattern, own in state["methods"].items()]
        self._scope.take_over(state["noise"], learned)


def attach(
    model: nn.Module,
    method: str | Method | MethodByPart | None = "division",
    *,
    seed: int | None = None,
    inputs: bool = False,
    optimizer: Optimizer | None = None,
    only: Patterns = None,
    skip: Patterns = None,
) -> Handle:
    """Compress what every forward of ``model`` saves for backward, until the handle is removed.

    Nothing in the model changes: no module, parameter, hook or ``state_dict`` entry; copies and pickles of it are
    plain models. The loss, which is computed outside, is not covered: use :class:`division.compress` where the loop
    is yours.

    Args:
        model: the model; modules added to it later count as part of the module that calls them.
        method: a method or its name; or one for each part, by patterns (as in ``fnmatch``) of module names:
            ``{"backbone.*": "division", "head": "lossless"}``. A pattern covers what is inside the modules it
            matches. An exact name goes before a wildcard, the innermost match before those around it; ``""`` stands for
            the whole model and comes last. What no pattern covers is left alone.
        seed, inputs, optimizer: as for :class:`division.compress`.
        only, skip: patterns of module names to handle alone, or to leave.

    Raises:
        TypeError, ValueError: an argument that can't be meant, such as a pattern that matches no module.

    Example:
        >>> import torch, division
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
        >>> handle = division.attach(model)
        >>> model(torch.randn(4, 3, 32, 32)).sum().backward()
        >>> handle.report.ratio > 1
        True
        >>> handle.remove()
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"got {type(model).__name__} as the model, expected a torch.nn.Module")
    return attached(model, method, only, skip, seed, inputs, optimizer=optimizer)


def attached(
    model: nn.Module, method: str | Method | MethodByPart | None, only: Patterns, skip: Patterns, seed: int | None,
    inputs: bool, fakes: bool = False, optimizer: Optimizer | None = None,
    parameters: Mapping[str, Tensor] | None = None,
) -> Handle:  # fmt: skip
    """:func:`attach`, for fake tensors too, with the parameters that stand for the model's."""
    names = [name for name, _ in model.named_modules()]
    methods = {p: as_method(m) for p, m in method.items()} if isinstance(method, Mapping) else {"": as_method(method)}
    if isinstance(method, Mapping):
        as_patterns(tuple(methods), "method", names)
    for each in _distinct(methods):
        bind(each, model, optimizer, parameters)
    chosen = (as_patterns(only, "only", names), as_patterns(skip, "skip", names))
    return Handle(model, methods, *chosen, seed, inputs, fakes)


def _distinct(methods: Mapping[str, Method]) -> list[Method]:
    return list({id(method): method for method in methods.values()}.values())


def _ancestry(module: str) -> list[str]:
    """A module's name and those it lies in, innermost first; the last is "", the model."""
    parts = module.split(".") if module else []
    return [".".join(parts[:i]) for i in range(len(parts), -1, -1)]


def _first_match(names: Sequence[str], patterns: Sequence[str]) -> str | None:
    """The pattern that fits best: an exact name before a wildcard, the innermost first; "", the model, comes last."""
    exact = (name for name in names if name and name in patterns)
    wild = (pattern for name in names for pattern in patterns if pattern and fnmatchcase(name, pattern))
    whole = (pattern for pattern in patterns if not pattern)
    return next(itertools.chain(exact, wild, whole), None)


def _call_frame(frame: FrameType) -> FrameType | None:
    """The frame of the module's call, of which a hook's caller is a part: one step further out where it is nested."""
    return frame.f_back if frame.f_code.co_name == "inner" else frame


def _runs(frame: FrameType | None) -> bool:
    """Whether this thread is still inside that frame; None stands for a ``with`` block, which always says its end."""
    if frame is None:
        return True
    caller: FrameType | None = sys._getframe(2)
    while caller is not None and caller is not frame:
        caller = caller.f_back
    return caller is frame


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()
