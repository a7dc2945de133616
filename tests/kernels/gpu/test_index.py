"""The Triton bodies of pooling indices, in the interpreter: the codes of the reference, and the indices back."""

import importlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs.index import AdaptiveWindow
from division.kernels.reference import index as reference
from tests.kernels.gpu.same import same
from tests.kernels.gpu.views import far, layouts, view

pytest.importorskip("triton", reason="triton is not installed")
index = importlib.import_module("division.kernels.gpu.index")

POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
ADAPT = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
Window = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int]]


def check(found: Tensor, window: Window) -> None:
    """The same codes, and the indices back from them, in the same layout."""
    launch = index.launch_of(False, found, torch.empty(1, dtype=torch.uint8), *window)
    assert launch is not None, "the reference would be compared with itself"
    codes = reference.window_encode(found, *window)
    assert same(index.window_encode(found, *window), codes)
    decoded = index.window_decode(codes, found.shape, found.stride(), *window)
    assert decoded.stride() == found.stride()
    assert torch.equal(decoded, found)


def pooled(size: Sequence[int], window: Window, seed: int = 0) -> Tensor:
    """The indices of pooling noise; NaN among it."""
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    x[x > 2.5] = torch.nan
    _, kernel, stride, padding, dilation = window
    pool: Any = POOL[len(kernel)]
    _, found = pool(x, kernel, stride, padding, dilation, return_indices=True)
    assert isinstance(found, Tensor)
    return found


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], Window]:
    """A size and a window that torch pools."""
    dims = draw(st.integers(1, 3))
    plane = [draw(st.integers(4, {1: 60, 2: 16, 3: 7}[dims])) for _ in range(dims)]
    kernel = [draw(st.integers(1, min(n, 5))) for n in plane]
    stride = [draw(st.integers(1, 4)) for _ in plane]
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    fits = [(n + 2 * p - 1) // max(k - 1, 1) for n, k, p in zip(plane, kernel, padding, strict=True)]
    dilation = [draw(st.integers(1, min(max(most, 1), 3))) for most in fits]
    return [draw(st.integers(1, 2)), draw(st.sampled_from((1, 3, 8, 16))), *plane], (
        plane,
        kernel,
        stride,
        padding,
        dilation,
    )


@settings(max_examples=40)
@given(data=st.data(), case=windows(), seed=st.integers(0, 99))
def test_windows(data: st.DataObject, case: tuple[list[int], Window], seed: int) -> None:
    found = pooled(*case, seed)
    check(view(found, *data.draw(layouts(found.dim()))), case[1])


@settings(max_examples=25)
@given(data=st.data(), dims=st.integers(1, 3), seed=st.integers(0, 99))
def test_windows_of_adaptive_pooling(data: st.DataObject, dims: int, seed: int) -> None:
    plane = data.draw(st.lists(st.integers(1, {1: 60, 2: 16, 3: 7}[dims]), min_size=dims, max_size=dims))
    outputs = [data.draw(st.integers(1, n)) for n in plane]
    x = torch.randn(2, 8, *plane, generator=torch.Generator().manual_seed(seed))
    adapt: Any = ADAPT[dims]
    _, found = adapt(x, outputs, return_indices=True)
    kernel = AdaptiveWindow(tuple(plane))._kernel(found.shape)
    check(view(found, *data.draw(layouts(found.dim()))), (plane, kernel, [], [], []))


@pytest.mark.parametrize(
    ("size", "kernel", "bits"),
    [
        ((2, 3, 30), (1,), 1),
        ((2, 3, 30), (2,), 1),
        ((2, 5, 9, 9), (2, 2), 2),
        ((2, 5, 9, 9), (3, 3), 4),
        ((2, 5, 9, 9), (5, 5), 8),
        ((1, 2, 40, 40), (20, 13), 16),
        ((1, 2, 300, 300), (220, 300), 32),
    ],
)
@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_every_width(size: tuple[int, ...], kernel: tuple[int, ...], bits: int, layout: tuple[int, ...]) -> None:
    dims = len(kernel)
    window = (size[2:], kernel, [1] * dims if bits < 16 else [7] * dims, [0] * dims, [1] * dims)
    assert reference.window_bits(kernel) == bits
    check(view(pooled(size, window), [d for d in layout if d < len(size)], 1, 0), window)


@pytest.mark.parametrize("plane", [(16, 16), (14, 14), (12, 9)])
def test_channels_last(plane: tuple[int, int]) -> None:
    window = (plane, (3, 3), (2, 2), (1, 1), (1, 1))
    found = view(pooled((2, 32, *plane), window), (0, 2, 3, 1), 1, 0)
    launch = index.launch_of(False, found, torch.empty(1, dtype=torch.uint8), *window)
    assert launch.kernel is index.encode_planes_kernel
    check(found, window)


def test_known_answers() -> None:
    found = torch.tensor([[[0, 7, 9, 15]]])
    assert index.window_encode(found, [16], [4], [4], [0], [1]).tolist() == [0b11011100]
    codes = torch.tensor([0b11011100], dtype=torch.uint8)
    assert index.window_decode(codes, [1, 1, 4], [4, 4, 1], [16], [4], [4], [0], [1]).tolist() == [[[0, 7, 9, 15]]]


@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((1, 1, 2), ((1 << 31,), (3,), (1 << 30,), (1,), (1,))),
        ((1, 2, 2, 2, 2), ((4, 4, 4, 4), (2, 2, 2, 2), (2, 2, 2, 2), (0, 0, 0, 0), (1, 1, 1, 1))),
        ((0, 3, 2), ((4,), (2,), (2,), (0,), (1,))),
    ],
)
def test_what_is_too_large_takes_the_reference(size: tuple[int, ...], window: Window) -> None:
    found = torch.zeros(size, dtype=torch.int64)
    assert index.launch_of(False, found, torch.empty(1, dtype=torch.uint8), *window) is None
    codes = index.window_encode(found, *window)
    assert same(codes, reference.window_encode(found, *window))
    got, expected = (body.window_decode(codes, size, found.stride(), *window) for body in (index, reference))
    assert same(got, expected)


def test_elements_more_than_two_to_the_31_apart() -> None:
    window = ((8, 6), (2, 2), (2, 2), (0, 0), (1, 1))
    found = far(pooled((2, 5, 8, 6), window))
    assert found.stride(0) > 2**31
    check(found, window)
