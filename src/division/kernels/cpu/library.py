"""The compiled library: found, asked what this processor can run, and called.

It is built when the package is installed, from ``kernels/csrc``. ``DIVISION_KERNELS`` in the environment names the
body to use instead of the best one: ``reference``, ``portable``, ``avx2`` or ``avx512``. A name that is none of those
that run here is refused when a body is first asked for.
"""

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VARIABLE = "DIVISION_KERNELS"
REFERENCE = "reference"
#: From the slowest to the fastest.
BODIES = (REFERENCE, "portable", "avx2", "avx512")
#: The element types that the C++ bodies take, by the number they know each by.
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_MISSING = (
    "the compiled library is missing: install a C++ compiler (g++ or clang++) and reinstall division, "
    "`pip install --force-reinstall --no-deps .`"
)


def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, and why there is none."""
    found = sorted(Path(__file__).parents[1].glob("_cpu*.so"))
    if not found:
        return None, _MISSING
    try:
        library = ctypes.CDLL(str(found[0]))
        library.division_use_threads(_threads())
    except (OSError, AttributeError) as error:
        return None, f"the compiled library {found[0].name} does not load: {error}"
    return library, ""


def _threads() -> ctypes.c_void_p:
    """torch's own thread pool, as a function of libtorch; null where this torch lacks it."""
    name = "libtorch_cpu.dylib" if sys.platform == "darwin" else "libtorch_cpu.so"
    try:
        libtorch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
        return ctypes.cast(libtorch.torch_parallel_for, ctypes.c_void_p)
    except (OSError, AttributeError):
        return ctypes.c_void_p(None)


_library, _why_missing = _load()


def _bits() -> int:
    """What was built and this processor has the instructions for, as the library numbers it."""
    return 0 if _library is None else int(_library.division_built() & _library.division_runnable())


def _runnable() -> tuple[str, ...]:
    """The bodies that were built and that this processor has the instructions for, slowest first."""
    bits = _bits()
    return (REFERENCE, *(name for i, name in enumerate(BODIES[1:]) if bits >> i & 1))


RUNNABLE = _runnable()


@functools.cache
def _chosen() -> str:
    """The body that the environment names, or else the fastest; a refusal is not kept."""
    name = os.environ.get(VARIABLE, "")
    if name and name not in RUNNABLE:
        raise ValueError(f"got {VARIABLE}={name!r}, expected one that runs here: {', '.join(RUNNABLE)}")
    return name or RUNNABLE[-1]


class _Forced(threading.local):
    body: str | None = None


_forced = _Forced()


def body() -> str:
    """The body that the CPU's ops use on this thread now: one of :data:`BODIES`.

    Raises:
        ValueError: ``DIVISION_KERNELS`` names none that runs here.
    """
    return _forced.body or _chosen()


def why() -> str:
    """Why the CPU's ops do not use a faster body; "" if they use the fastest."""
    if _library is None:
        return _why_missing
    if body() != RUNNABLE[-1]:
        return f"{VARIABLE}={body()}" if _forced.body is None else f"forced to {body()}"
    missing = BODIES[len(RUNNABLE) :]
    return f"this processor has no {' and no '.join(name.upper() for name in missing)}" if missing else ""


@contextlib.contextmanager
def forced(name: str) -> Iterator[None]:
    """Use one body on this thread, for tests and measurements.

    Raises:
        ValueError: a body that is not built here or that this processor can't run.

    Example:
        >>> with forced("reference"):
        ...     body()
        'reference'
    """
    if name not in RUNNABLE:
        raise ValueError(f"got body {name!r}, expected one that runs here: {', '.join(RUNNABLE)}")
    before, _forced.body = _forced.body, name
    try:
        yield
    finally:
        _forced.body = before


#: Some functions are also built for more instructions of the same width, which are taken where the processor has them.
_BETTER = {"avx512": "avx512vbmi2"} if _bits() & 8 else {}
_functions: dict[tuple[str, str], Callable[..., int]] = {}


def function(name: str) -> Callable[..., int] | None:
    """The compiled function ``name`` for the body in use; None where that is the reference.

    A pointer is an int or a ctypes array, a whole number a ctypes integer of its width or an int (then a C int).
    """
    isa = body()
    if isa == REFERENCE:
        return None
    found = _functions.get((name, isa))
    if found is None:
        better = _BETTER.get(isa, isa)
        found = getattr(_library, f"{name}_{better}", None) or getattr(_library, f"{name}_{isa}")
        _functions[name, isa] = found
    return found


def pointer(x: Tensor) -> ctypes.c_void_p:
    """Where the elements of a tensor begin."""
    return ctypes.c_void_p(x.data_ptr())


def numbers(values: Any) -> Any:
    """Whole numbers as the C array ``const int64_t*`` that a function takes."""
    values = tuple(values)
    return _array(len(values))(*values)


@functools.cache
def _array(length: int) -> type[ctypes.Array[ctypes.c_int64]]:
    """One type a length: a new one is garbage that only the collector frees."""
    return ctypes.c_int64 * length
