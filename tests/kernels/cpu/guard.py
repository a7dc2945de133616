"""Tensors that end where memory ends: one byte beyond them, read or written, stops the process."""

import ctypes
import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

_libc = ctypes.CDLL(None, use_errno=True)
_kept: list[mmap.mmap] = []


def guarded(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros whose last byte is followed by a page that nobody may touch; its layout is dense."""
    nbytes = prod(size) * dtype.itemsize
    pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    _kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _libc.mprotect(ctypes.c_void_p(start + pages), ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError(ctypes.get_errno(), "mprotect failed")
    if nbytes == 0:
        return torch.empty_strided(size, stride, dtype=dtype)
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=pages - nbytes)
    return flat.view(dtype).as_strided(size, stride)


def guarded_copy(x: Tensor) -> Tensor:
    """The same values and (dense) layout."""
    return guarded(x.shape, x.stride(), x.dtype).copy_(x)
