"""One op by all bodies of the CPU: what the reference gives, the others must give, bit for bit."""

import math
import mmap
from typing import Any

import pytest
import torch
from torch import Tensor

from division.kernels import ops
from division.kernels.cpu import library
from tests.kernels.cpu.guard import guarded

COMPILED = library.RUNNABLE[1:]
needs_compiled = pytest.mark.skipif(not COMPILED, reason="the compiled library is missing")
LAYOUTS = ("contiguous", "channels_last", "reversed", "rotated", "gapped", "every other")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values, stored in another way."""
    dims = x.dim()
    if layout == "channels_last" and dims > 2:
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout in ("reversed", "rotated"):
        order = [*range(dims)][::-1] if layout == "reversed" else [*range(dims)][2:] + [*range(dims)][:2]
        return x.permute(order).contiguous().permute(sorted(range(dims), key=order.__getitem__))
    if layout == "gapped":
        wide = torch.zeros([n + 1 for n in x.shape], dtype=x.dtype)[tuple(slice(n) for n in x.shape)]
        return wide.copy_(x)
    if layout == "every other" and dims:
        return torch.stack((x, x), -1).flatten(-2)[..., ::2]
    return x


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal in dtype, shape, strides and bits, but that one NaN is as good as another."""
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    if found.is_floating_point():
        assert torch.equal(found.isnan(), expected.isnan())
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.dtype.itemsize]
        found, expected = (
            x.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf).view(bits) for x in (found, expected)
        )
    assert torch.equal(found, expected)


def by_all(name: str, *arguments: Any) -> Any:
    """What the reference gives, once every compiled body has given the same."""
    op = ops.call(name)
    with library.forced("reference"):
        expected = op(*arguments)
    for body in COMPILED:
        with library.forced(body):
            found = op(*arguments)
        if isinstance(expected, Tensor):
            assert_same(found, expected)
        else:
            for part, wanted in zip(found, expected, strict=True):
                assert_same(part, wanted)
    return expected


def guard_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the bodies allocate ends where memory ends."""

    def new_empty(x: Tensor, size: Any, dtype: torch.dtype | None = None) -> Tensor:
        size = (size,) if isinstance(size, int) else tuple(size)
        return guarded(size, torch.empty(size, device="meta").stride(), dtype or x.dtype)

    def empty_strided(size: Any, stride: Any, *, dtype: torch.dtype, device: Any) -> Tensor:
        return guarded(size, stride, dtype)

    monkeypatch.setattr(Tensor, "new_empty", new_empty)
    monkeypatch.setattr(torch, "empty_strided", empty_strided)


def far_apart(x: Tensor, dim: int) -> Tensor:
    """The same values, the elements along one dim of size 2 more than 2^31 apart, in memory of which nothing else is used."""
    step = (1 << 31) + 64
    nbytes = (step + x.numel()) * x.element_size()
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))
    stride = [step if d == dim else s for d, s in enumerate(x.stride())]
    return torch.frombuffer(memory, dtype=torch.uint8).view(x.dtype).as_strided(x.shape, stride).copy_(x)
