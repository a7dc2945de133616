"""The names of torch that this library needs and torch doesn't promise: all of them, guarded, in one place.

Each is read defensively: where a torch version lacks one, the function answers as if what it asks about were absent.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_unflatten as tree_unflatten

node_creation_hook: Any = getattr(torch.autograd.graph, "node_creation_hook", None)
_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_transforms = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)
_is_wrapped = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda x: False)
_unwrap: Any = getattr(getattr(torch._C, "_functorch", None), "get_unwrapped", None)
_sequence_now = getattr(torch.autograd, "_get_sequence_nr", lambda: 0)
_function_mode = getattr(torch.overrides, "_get_current_function_mode", lambda: None)
_dispatch_depth = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_is_compiling = torch.compiler.is_compiling
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
_is_tracing = getattr(torch._C, "_is_tracing", torch.jit.is_tracing)
_function_modes = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
_set_grad_enabled = torch._C._set_grad_enabled
_default_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_is_tracing: None)
_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def uncompiled(function: _Function) -> _Function:
    """A decorator: where ``torch.compile`` meets calls of this function, it leaves them, and all below, to Python.

    It still traces through a call in the middle of what it compiles: there ``torch.compiler.is_dynamo_compiling()`` is
    true, and the function had better do nothing.
    """
    if all(hasattr(_frames, name) for name in ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")):
        skip = _frames._FrameAction.SKIP
        _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(skip, skip))
    return function


def standing_aside() -> bool:
    """Whether nodes made now are not ours to touch.

    True inside a ``torch.func`` transform, while a backward runs (recomputation, ``create_graph``), and while
    compiling, exporting or tracing.
    """
    return (
        _graph_task() != -1
        or _transforms() is not None
        or _is_compiling()
        or _is_exporting()
        or _is_tracing()
        or (_dispatch_depth() > 0 and _proxy_tracing())
    )


def _proxy_tracing() -> bool:
    proxy = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return proxy is not None and proxy.get_proxy_mode() is not None


def has_hooks(raw: Any) -> bool:
    """Whether a raw saved tensor (``_raw_saved_<field>``) has pack and unpack hooks."""
    return getattr(raw, "unpack_hook", None) is not None


def has_default_hooks() -> bool:
    """Whether hooks of saved tensors are in force on this thread: ``save_on_cpu``, or a checkpoint around us."""
    return _default_hooks(True) is not None


def default_hooks() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]] | None:
    """The pack and unpack hooks in force on this thread; None if there are none."""
    hooks = _default_hooks(True)
    return None if hooks is None else (hooks[0], hooks[1])


def output_size(node: Any, number: int = 0) -> tuple[int, ...] | None:
    """The size of one of a node's outputs; None where torch doesn't tell."""
    outputs = getattr(node, "_input_metadata", ())
    if number >= len(outputs) or getattr(outputs[number], "is_nested_tensor", False):
        return None
    return tuple(outputs[number].shape)


def operand_size(node: Any, position: int) -> tuple[int, ...] | None:
    """The size of an operand that takes a gradient, by its position among the op's tensors; None if it isn't known."""
    source, number = node.next_functions[position]
    return None if source is None else output_size(source, number)


def signed_number(number: int) -> int:
    """An integer that a node saved, such as the number of a dim: nodes tell some negative ones modulo 2**64."""
    return number - (1 << 64) if number >= 1 << 63 else number


def function_mode() -> Any:
    """The innermost torch-function mode of this thread; None if there is none."""
    return _function_mode()


def sequence_now() -> int:
    """The number that the next node made on this thread gets."""
    return int(_sequence_now())


class plain:
    """Context manager for our own tensor work on a device: no graph, no autocast, unseen by torch-function modes."""

    __slots__ = ("_autocast", "_functions", "_grad")

    def __init__(self, device: torch.device) -> None:
        kind = _autocast_kind(device)
        self._autocast = torch.autocast(kind, enabled=False) if kind and torch.is_autocast_enabled(kind) else None

    def __enter__(self) -> None:
        self._functions = torch._C.DisableTorchFunction() if _function_modes() else None
        if self._functions is not None:
            self._functions.__enter__()
        self._grad = torch.is_grad_enabled()
        if self._grad:
            _set_grad_enabled(False)
        if self._autocast is not None:
            self._autocast.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._autocast is not None:
            self._autocast.__exit__(*error)
        if self._grad:
            _set_grad_enabled(True)
        if self._functions is not None:
            self._functions.__exit__(*error)


# No `lru_cache`: compiled autograd traces unpacking, and would warn of it.
_autocast_kinds: dict[str, str] = {}


def _autocast_kind(device: torch.device) -> str:
    """The device's type as autocast is asked for it; "" where there is no autocast."""
    kind = _autocast_kinds.get(device.type)
    if kind is None:
        available = torch.amp.is_autocast_available(device.type)
        kind = _autocast_kinds[device.type] = device.type if available else ""
    return kind


def fake_mode() -> Any:
    """A new ``FakeTensorMode``: tensors with a shape, a dtype and a device, and no memory. Real ones may mix in."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(x: Tensor) -> bool:
    """Whether ``x`` is a fake tensor."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(x, FakeTensor)


class Storage:
    """The memory under a tensor: its address, its bytes, and a weak hold on it.

    The address is that storage's alone for as long as this object lives.
    """

    # A `__del__` in Python is where Ctrl-C gets lost: the interpreter looks for signals as it enters one, and drops what is
    # raised inside. This one is a value of each object, and runs no Python.
    __slots__ = ("__del__", "address", "nbytes")

    _gone = staticmethod(torch.UntypedStorage._expired)

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.address: int = storage._weak_ref()  # type: ignore[assignment]
        self.nbytes = storage.nbytes()
        self.__del__ = partial(torch.UntypedStorage._free_weak_ref, self.address)

    def expired(self) -> bool:
        """Whether the memory is free."""
        return bool(self._gone(self.address))


def storage_of(x: Tensor) -> Storage:
    """The memory under ``x``, held weakly."""
    return Storage(x.untyped_storage())


def address_of(x: Tensor) -> int:
    """The address of the storage under ``x``: what :attr:`Storage.address` of it is."""
    return int(x.untyped_storage()._cdata)


def unwrapped(x: Tensor) -> Tensor:
    """The tensor within those of ``torch.func`` transforms; any other as it is."""
    while _is_wrapped(x):
        x = _unwrap(x)
    return x


def bytes_without_storage(x: Tensor) -> int:
    """Bytes of a tensor that is no view of one storage: sparse, nested, or in another opaque layout."""
    if x.layout is torch.sparse_coo:
        return x._indices().nbytes + x._values().nbytes
    names = ("crow_indices", "ccol_indices", "col_indices", "row_indices", "values")
    total = 0
    for name in names if x.layout in _COMPRESSED else ():
        with contextlib.suppress(RuntimeError):  # each layout has three of them
            total += getattr(x, name)().nbytes
    if total:
        return total
    try:
        return int(x.numel()) * x.itemsize
    except (RuntimeError, TypeError):
        return 0


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


@contextlib.contextmanager
def concrete() -> Iterator[None]:
    """Work on real values, even where a mode makes fake tensors of them."""
    if _dispatch_depth() == 0:
        yield
        return
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield
