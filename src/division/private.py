"""The names of torch that this library needs and torch doesn't promise: all of them, guarded, in one place.

Each is read defensively: where a torch version lacks one, the function answers as if what it asks about were absent.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef as StorageWeakRef
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

node_creation_hook: Any = getattr(torch.autograd.graph, "node_creation_hook", None)
_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_transforms = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)
_sequence_now = getattr(torch.autograd, "_get_sequence_nr", lambda: 0)
_function_mode = getattr(torch.overrides, "_get_current_function_mode", lambda: None)
_dispatch_depth = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


def standing_aside() -> bool:
    """Whether nodes made now are not ours to touch.

    True inside a ``torch.func`` transform, while a backward runs (recomputation, ``create_graph``), and while
    compiling, exporting or tracing.
    """
    return (
        _graph_task() != -1
        or _transforms() is not None
        or torch.compiler.is_compiling()
        or _is_exporting()
        or torch.jit.is_tracing()
        or _proxy_tracing()
    )


def _proxy_tracing() -> bool:
    if not _dispatch_depth():
        return False
    proxy = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return proxy is not None and proxy.get_proxy_mode() is not None


def has_hooks(raw: Any) -> bool:
    """Whether a raw saved tensor (``_raw_saved_<field>``) has pack and unpack hooks."""
    return getattr(raw, "unpack_hook", None) is not None


def function_mode() -> Any:
    """The innermost torch-function mode of this thread; None if there is none."""
    return _function_mode()


def sequence_now() -> int:
    """The number that the next node made on this thread gets."""
    return int(_sequence_now())


@contextlib.contextmanager
def plain(device: str) -> Iterator[None]:
    """Our own tensor work on a type of device: no graph, no autocast, unseen by torch-function modes."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                yield
        else:
            yield


def fake_mode() -> Any:
    """A new ``FakeTensorMode``: tensors with a shape, a dtype and a device, and no memory. Real ones may mix in."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(x: Tensor) -> bool:
    """Whether ``x`` is a fake tensor."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(x, FakeTensor)


def storage_of(x: Tensor) -> tuple[int, int, StorageWeakRef]:
    """(identity, bytes, weak reference) of the storage under ``x``.

    The identity is an address: it is that storage's alone only while the weak reference is kept.
    """
    storage = x.untyped_storage()
    return storage._cdata, storage.nbytes(), StorageWeakRef(storage)


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
