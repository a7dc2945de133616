"""The context manager: what is saved for backward inside it is kept compressed."""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from division import methods
from division.account import Report
from division.calibrate import calibrate
from division.methods import Method
from division.nodes import watch
from division.private import uncompiled
from division.rerun import Rerun, rerun_of
from division.rules import known_nodes
from division.rules.user import OWN
from division.scope import Scope, expect_state, method_state

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
    if isinstance(method, nn.Module):
        raise TypeError(
            f"got the model {type(method).__name__} as the method: division.attach(model) is for a model,"
            " division.compress() for the code inside a with block, whatever runs there"
        )
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
            names = sorted(name for name in known if name)
            shown = ", ".join(names[:12]) + ", …" * (len(names) > 12) if names else "'', the model itself"
            raise ValueError(f"{what}: pattern {pattern!r} matches nothing, expected one that matches any of: {shown}")
    return found


def bind(
    method: Method, model: nn.Module | None, optimizer: Optimizer | None, parameters: Mapping[str, Tensor] | None = None
) -> None:
    """Tell a method of the model and the optimizer it works with, as far as they are known.

    Args:
        method: the method.
        model: whose parameters' names it learns.
        optimizer: who changes them.
        parameters: what stands for the model's.

    Raises:
        TypeError: what is given is neither.
        ValueError: an optimizer alone.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"got {type(model).__name__} as the model, expected a torch.nn.Module")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(f"got {type(optimizer).__name__} as the optimizer, expected a torch.optim.Optimizer")
    if model is not None:
        method.bind(dict(model.named_parameters()) if parameters is None else parameters, optimizer)
    elif optimizer is not None:
        raise ValueError("got an optimizer and no model: pass model= too, whose parameters it changes")


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
        model, optimizer: of a method that learns while it trains, such as ``"actnn"``: whose parameters it names what it
            learns after, so that it is known again when it is loaded, and whose momentum it looks at if it does. Make the
            context once and use it for all steps.
        only, skip: names of autograd nodes (patterns as in ``fnmatch``: ``"Convolution*"``) to handle alone, or to
            leave. For parts of a model use :func:`division.attach`.

    Raises:
        TypeError, ValueError: an argument that can't be meant; the message says what is expected.

    Example:
        >>> import torch, division
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
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        only: Patterns = None,
        skip: Patterns = None,
    ) -> None:
        if isinstance(method, Mapping):
            raise TypeError("got a method for each part of a model, which needs the model: division.attach(model, …)")
        self.method = as_method(method)
        bind(self.method, model, optimizer)
        known = [*known_nodes(), *(node for node, fields in OWN.items() if fields)]
        self._only = as_patterns(only, "only", known)
        self._skip = as_patterns(skip, "skip", known)
        self._covered: dict[str, bool] = {}
        state = tuple if model is None else partial(_state, weakref.ref(model))
        self._scope = Scope(self._at, state, seed, inputs)
        self._watch = watch(self._scope.on_node)
        self._rerun = None if self.method.blocks is None else self._blocks_of(model)

    def _blocks_of(self, model: nn.Module | None) -> Rerun:
        if model is None:
            raise ValueError(
                f"got method {self.method!r}, which runs blocks of a model again, and no model: pass model=model, or use"
                " division.attach(model, …)"
            )
        return rerun_of(self.method, model, self._scope.on_node, self._scope)

    def _at(self, node: str) -> tuple[str, Method | None]:
        covered = self._covered.get(node)
        if covered is None:
            covered = self._covered[node] = self._covers(node)
        return "", self.method if covered else None

    def _covers(self, node: str) -> bool:
        if self._only and not any(fnmatchcase(node, pattern) for pattern in self._only):
            return False
        return not any(fnmatchcase(node, pattern) for pattern in self._skip)

    @uncompiled
    def __enter__(self) -> "compress":
        if is_dynamo_compiling():
            return self
        self._watch.__enter__()
        self._scope.enter()
        if self._rerun is not None:
            self._rerun.enter()
        return self

    @uncompiled
    def __exit__(self, *error: object) -> None:
        if is_dynamo_compiling():
            return
        if self._rerun is not None:
            self._rerun.leave()
        self._watch.__exit__(*error)
        self._scope.leave()

    def calibrate(self, step: Callable[[], Tensor]) -> bool:
        """Let a method that measures what its codes do to gradients, such as ``"gact"``, do so if it is due.

        To be called before each step, outside of any backward. Where nothing is due, nothing happens. The step is run
        many times, each time from the same random numbers and buffers of the modules called, which are as before
        afterwards; gradients go by ``torch.autograd.grad``, so that ``.grad`` and the hooks of a
        ``DistributedDataParallel`` are not touched (give it the module inside, or use its ``no_sync()``).

        Args:
            step: runs forward on a batch and returns the loss, scaled if it is in training; this context is opened
                around it.

        Returns:
            whether anything was measured.

        Raises:
            TypeError, ValueError: what the step returns is no loss.

        Example:
            >>> import torch, division
            >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
            >>> context = division.compress("gact", model=model)
            >>> x = torch.randn(32, 64)
            >>> context.calibrate(lambda: model(x).square().mean())
            True
        """

        def covered() -> Tensor:
            with self:
                return step()

        return calibrate(self._scope, [self.method], covered)

    def __repr__(self) -> str:
        return f"compress({self.method!r}, {self.report!r})"

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
            ValueError: not such a state, or one of another method; nothing of it is taken over.
        """
        expect_state(state, {"noise", "method"})
        self._scope.take_over(state["noise"], [(self.method, state["method"])])


def _state(model: "weakref.ref[nn.Module]") -> Iterator[Tensor]:
    """Weights and buffers, as long as the model is there."""
    found = model()
    if found is not None:
        yield from found.parameters()
        yield from found.buffers()


class disabled(watch, ContextDecorator):
    """Leave everything saved inside this region alone, whatever context is around it.

    As a decorator it covers each call of a function; of a generator function only the call, not what runs later.

    Example:
        >>> import torch, division
        >>> with division.compress(), division.disabled():
        ...     y = torch.nn.Linear(4, 4)(torch.randn(2, 4))
        >>> @division.disabled()
        ... def exact(x):
        ...     return x.square().mean()
    """

    def __init__(self) -> None:
        super().__init__(None)
