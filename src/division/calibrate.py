"""A step run again and again, each time from the same state, so that a method can measure what its codes do to gradients."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from division.methods.method import Method
from division.scope import Scope

Step = Callable[[], Tensor]


def calibrate(scope: Scope, methods: Iterable[Method], step: Step) -> bool:
    """Let every method that is due measure on this step; True if one did, and so is due no more.

    Raises:
        TypeError, ValueError: what the step returns is no loss.
    """
    due = [method for method in {id(each): each for each in methods}.values() if method.wants_step()]
    for method in due:
        with _Unchanged() as state:

            def run(probe: Method, seed: int, method: Method = method, state: _Unchanged = state) -> tuple[Tensor, ...]:
                state.restore()
                with scope.instead(method, probe, seed):
                    loss = step()
                return _gradients(loss)

            method.calibrate(run)
    return any(not method.wants_step() for method in due)


def _gradients(loss: Tensor) -> tuple[Tensor, ...]:
    """The gradient of every parameter that the loss depends on, in an order that the graph alone decides.

    Zeros where a backward has none for it and returns None.
    """
    if not isinstance(loss, Tensor):
        raise TypeError(f"got {type(loss).__name__} from the step, expected the loss: lambda: criterion(model(x), y)")
    if loss.numel() != 1 or loss.grad_fn is None:
        what = f"a tensor {tuple(loss.shape)}" + (" without a graph" if loss.grad_fn is None else "")
        raise ValueError(f"got {what} from the step, expected a loss of one element that parameters lead to")
    seen, pending, leaves = {loss.grad_fn}, [loss.grad_fn], []
    while pending:
        node: Any = pending.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.append(leaf)
        for source, _ in node.next_functions:
            if source is not None and source not in seen:
                seen.add(source)
                pending.append(source)
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


class _Unchanged:
    """Context manager: random numbers and the buffers of modules are afterwards as they were before.

    A module's buffers are noted when it is first called; those that are handed to ``F.batch_norm`` without a module are
    not known.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, str], tuple[nn.Module, Tensor, Tensor]] = {}

    def __enter__(self) -> "_Unchanged":
        self._random = torch.get_rng_state()
        self._random_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._hook = register_module_forward_pre_hook(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()
        self.restore()

    def _note(self, module: nn.Module, args: Any) -> None:
        for name, buffer in module._buffers.items():
            if buffer is not None and (id(module), name) not in self._buffers:
                self._buffers[id(module), name] = module, buffer, buffer.detach().clone()

    def restore(self) -> None:
        """Go back to the state before."""
        torch.set_rng_state(self._random)
        for device, random in enumerate(self._random_gpus):
            torch.cuda.set_rng_state(random, device)
        for (_, name), (module, buffer, values) in self._buffers.items():
            module._buffers[name] = buffer
            # A graph from before may need it, and finds what it saved: batch norm doesn't count its updates as changes.
            buffer.data.copy_(values)
