"""The C++ bodies of the ops on pooling indices."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs.index import AdaptiveWindow
from division.codecs.layout import dense_stride
from division.kernels import ops
from division.kernels.cpu import index, library
from tests.kernels.cpu.agree import (
    COMPILED,
    LAYOUTS,
    assert_same,
    by_all,
    far_apart,
    guard_results,
    laid_out,
    needs_compiled,
)
from tests.kernels.cpu.guard import guarded_copy

POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
ADAPTIVE = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
layouts = st.sampled_from(LAYOUTS)


def check(x: Tensor, *windows: list[int]) -> Tensor:
    """All bodies agree, and the indices come back; returns the codes."""
    codes: Tensor = by_all("window_encode", x, *windows)
    stride = list(dense_stride(x.shape, x.stride()))
    assert torch.equal(by_all("window_decode", codes, list(x.shape), stride, *windows), x)
    return codes


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[int], ...]:
    count = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(count)]

    plane = each(1, (200, 30, 12)[count - 1])
    kernel = [draw(st.sampled_from([1, 2, 2, 3, 3, 4, 5, 7])) for _ in range(count)]
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    dilation = each(1, 3) if draw(st.booleans()) else [1] * count
    return plane, kernel, each(1, 4), padding, dilation


@needs_compiled
@settings(max_examples=150)
@given(windows=pools(), ceil=st.booleans(), layout=layouts, planes=st.tuples(st.integers(1, 2), st.integers(1, 20)))
def test_pooling(windows: tuple[list[int], ...], ceil: bool, layout: str, planes: tuple[int, int]) -> None:
    plane, kernel, stride, padding, dilation = windows
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    assume(all(n + 2 * p >= r for n, p, r in zip(plane, padding, reach, strict=True)))
    assume(not any(p and d > n for n, p, d in zip(plane, padding, dilation, strict=True)))
    x = torch.randn(*planes, *plane, generator=torch.Generator().manual_seed(1))
    _, found = POOLS[len(plane)](x, kernel, stride, padding, dilation, ceil, return_indices=True)
    check(laid_out(found, layout), *windows)


@needs_compiled
@settings(max_examples=100)
@given(sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 14)), min_size=1, max_size=3), layout=layouts)
def test_adaptive_pooling(sizes: list[tuple[int, int]], layout: str) -> None:
    plane, outputs = map(list, zip(*sizes, strict=True))
    _, found = ADAPTIVE[len(plane)](torch.randn(2, 9, *plane), outputs, return_indices=True)
    check(laid_out(found, layout), plane, list(AdaptiveWindow(tuple(plane))._kernel(found.shape)), [], [], [])


@needs_compiled
@pytest.mark.parametrize(("side", "bits"), [(1, 1), (2, 2), (4, 4), (16, 8), (255, 16), (300, 32)])
def test_every_width_of_codes(side: int, bits: int) -> None:
    x = torch.arange(2.0 * 301 * 302).mul(7919).remainder(10007).view(1, 2, 301, 302)
    _, found = F.max_pool2d(x, side, max(side // 7, 1), return_indices=True)
    codes = check(found, [301, 302], [side] * 2, [max(side // 7, 1)] * 2, [0, 0], [1, 1])
    assert codes.nbytes == -(-found.numel() * bits // 8)


@needs_compiled
def test_planes_beyond_32_bits_and_many_lines() -> None:
    plane = [1 << 20, 1 << 14]
    rows, columns = torch.tensor([[0], [(1 << 19) + 1]]), torch.tensor([[1, 1 << 13]])
    check((rows * plane[1] + columns).view(1, 1, 2, 2), plane, [2, 2], [1 << 19, 1 << 13], [0, 0], [1, 1])
    lines = (1 << 20) + 7  # more than a float32 quotient is exact for
    last = torch.arange(lines - 1, lines).view(1, 1, 1, 1) * 3 + 2
    check(last, [lines, 3], [lines, 3], [lines, 3], [0, 0], [1, 1])


@needs_compiled
@pytest.mark.parametrize("width", [113, 1500, 1999, 2011, 2039, 2047])
def test_quotients_are_exact_up_to_the_last_line(width: int) -> None:
    """The first and the last cell of lines: where a float32 quotient is just above a whole number, or just below."""
    lines = torch.arange(1, (1 << 20) + 1, 521)
    found = torch.stack((lines * width - 1, (lines - 1) * width), 1).view(1, 1, -1, 2)
    codes = by_all("window_encode", found, [1 << 20, width], [90, width - 1], [1, 0], [0, 0], [1, 1])
    assert codes.element_size() == (2 if width == 113 else 4)


@needs_compiled
def test_threads_make_no_difference() -> None:
    _, found = F.max_pool2d(torch.randn(3, 31, 81, 83), 3, 2, 1, return_indices=True)
    windows = [81, 83], [3, 3], [2, 2], [1, 1], [1, 1]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        codes = ops.call("window_encode")(found, *windows)
        back = ops.call("window_decode")(codes, list(found.shape), list(found.stride()), *windows)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(codes, by_all("window_encode", found, *windows))
    assert torch.equal(back, found)


@needs_compiled
@pytest.mark.parametrize("count", [1, 9, 16, 33])
@pytest.mark.parametrize("kernel", [2, 3, 5, 17])
def test_touches_no_memory_beyond_its_tensors(count: int, kernel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plane = [kernel * count]
    _, found = F.max_pool1d(torch.randn(1, 3, *plane), kernel, return_indices=True)
    x, windows = guarded_copy(found), (plane, [kernel], [kernel], [0], [1])
    expected = by_all("window_encode", x, *windows)
    guard_results(monkeypatch)
    for name in COMPILED:
        with library.forced(name):
            codes = index.window_encode(x, *windows)
            assert torch.equal(codes, expected)
            assert torch.equal(index.window_decode(codes, x.shape, x.stride(), *windows), found)


@needs_compiled
@pytest.mark.parametrize("name", COMPILED)
def test_offsets_beyond_two_to_the_31(name: str) -> None:
    _, near = F.max_pool1d(torch.randn(2, 3, 40), 2, return_indices=True)
    windows = [40], [2], [2], [0], [1]
    with library.forced(name):
        codes = ops.call("window_encode")(near, *windows)
        assert_same(ops.call("window_encode")(far_apart(near, 0), *windows), codes)


@needs_compiled
def test_more_than_three_pooled_dims_take_the_reference() -> None:
    found = torch.zeros(1, 2, 2, 2, 2, dtype=torch.int64)
    codes = by_all("window_encode", found, [4] * 4, [2] * 4, [2] * 4, [0] * 4, [1] * 4)
    assert codes.shape == (8,)


@pytest.mark.parametrize("body", library.RUNNABLE)
@pytest.mark.parametrize(
    ("windows", "words"),
    [
        (([4, 4], [2, 2], [2, 2], [0, 0], [0, 0]), r"dilation \(0, 0\), expected 0 or more, 0 or more, and 1 or more"),
        (([4, 4], [2, 2], [2, 2], [-1, 0], [1, 1]), r"padding \(-1, 0\)"),
        (([4, 0], [2, 2], [2, 2], [0, 0], [1, 1]), r"into a plane \(4, 0\), expected 2 pooled dims"),
        (([4], [2, 2], [2, 2], [0, 0], [1, 1]), r"into a plane \(4,\), expected 2 pooled dims"),
        (([4, 4, 4], [2, 2], [2, 2], [0, 0], [1, 1]), r"into a plane \(4, 4, 4\)"),
        (([4, 4], [2, 2], [], [1], [2]), "none at all for adaptive windows"),
        (([4, 4], [2, 2], [], [1] * 5, [2] * 4), "none at all for adaptive windows"),
        (([4, 4], [2, 2], [2], [0, 0], [1, 1]), "expected 2 numbers each"),
        (([4, 4], [1 << 20, 1 << 20], [2, 2], [0, 0], [1, 1]), r"2\^32 cells at most"),
        (([], [], [], [], []), r"got kernel \(\)"),
    ],
)
def test_windows_that_can_not_be_meant_are_refused(body: str, windows: tuple[list[int], ...], words: str) -> None:
    found = torch.zeros(1, 1, 2, 2, dtype=torch.int64)
    with library.forced(body):
        with pytest.raises(ValueError, match=words):
            ops.call("window_encode")(found, *windows)
        with pytest.raises(ValueError, match=words):
            ops.call("window_decode")(torch.zeros(1, dtype=torch.uint8), [1, 1, 2, 2], [4, 4, 2, 1], *windows)


def test_indices_of_fewer_dims_than_the_plane_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got indices of shape \(3,\) into a plane \(4, 4\)"):
        ops.call("window_decode")(torch.zeros(1, dtype=torch.uint8), [3], [1], [4, 4], [2, 2], [], [], [])
