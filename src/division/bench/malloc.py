"""The C library's allocator, brought into a state in which a measurement means the same each time (glibc alone)."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import torch

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt
_KEEP_ALL = 2**31 - 1
_DEFAULTS = {_TRIM_THRESHOLD: 128 << 10, _MMAP_MAX: 1 << 16}

#: For a process whose resident set is to be what is in use: every block of 64 KiB or more is a mapping of its own, given
#: back to the system the moment it is freed.
GIVE_BACK = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 10),
    "MALLOC_MMAP_MAX_": str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 10),
    "MALLOC_TOP_PAD_": "0",
}


@contextlib.contextmanager
def keeping(reserve: int) -> Iterator[None]:
    """Freed memory stays with the process inside, so that results are written to pages that are there already.

    As it comes, glibc hands a large block back to the system or keeps it depending on what was freed before; fetching
    its pages anew takes several times as long as copying into them. Nothing happens where the C library is another.

    Args:
        reserve: bytes fetched at the beginning and given back at the end. A freed block may be a few bytes too small
            for the next aligned one of its size, so this should hold several of those that come.
    """
    set_option = _call("mallopt")
    if set_option is None:
        yield
        return
    set_option(_TRIM_THRESHOLD, _KEEP_ALL)
    set_option(_MMAP_MAX, 0)
    torch.ones(reserve, dtype=torch.uint8)
    try:
        yield
    finally:
        for option, value in _DEFAULTS.items():
            set_option(option, value)
        trim()


def trim() -> None:
    """Give back to the system whatever is free."""
    give_back = _call("malloc_trim")
    if give_back is not None:
        give_back(0)


def _call(name: str) -> ctypes._NamedFuncPointer | None:
    try:
        return getattr(ctypes.CDLL(None), name)  # type: ignore[no-any-return]
    except (OSError, AttributeError, TypeError):  # another C library, another system
        return None
