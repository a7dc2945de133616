"""The C++ bodies of the frequency codec's ops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs.layout import dense_stride
from division.kernels import ops
from division.kernels.cpu import library
from tests.kernels.cpu.agree import FLOATS, LAYOUTS, by_all, far_apart, guard_results, laid_out, needs_compiled
from tests.kernels.cpu.guard import guarded_copy

SCALES = (1.0, 2.0**-130, 2.0**-60, 1e-3, 2.0**126)


def check(x: Tensor, quality: float = 8.0, slope: float = 0.3) -> tuple[Tensor, ...]:
    """All bodies agree on the code and on what it stands for; returns the code."""
    code: tuple[Tensor, ...] = by_all("frequency_encode", x, quality, slope)
    stride = list(dense_stride(x.shape, x.stride()))
    by_all("frequency_decode", *code, list(x.shape), stride, x.dtype, quality, slope)
    return code


@st.composite
def maps(draw: st.DrawFn) -> Tensor:
    dims = draw(st.integers(1, 3))
    spatial = [draw(st.one_of(st.integers(1, 9), st.integers(1, (300, 70, 18)[dims - 1]))) for _ in range(dims)]
    planes = draw(st.integers(1, 3)), draw(st.one_of(st.integers(1, 4), st.integers(1, 37)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    x = torch.randn(*planes, *spatial, generator=generator) * draw(st.sampled_from(SCALES))
    if draw(st.booleans()):
        x = x.relu_()
    x *= torch.rand(*planes, *(1,) * dims, generator=generator)
    return laid_out(x.to(draw(st.sampled_from(FLOATS[:3]))), draw(st.sampled_from(LAYOUTS)))


@needs_compiled
@settings(max_examples=250)
@given(x=maps(), quality=st.sampled_from([0.5, 3.0, 8.0, 1e9]), slope=st.sampled_from([0.0, 0.3, 2.0]))
def test_all_bodies_agree(x: Tensor, quality: float, slope: float) -> None:
    check(x, quality, slope)


@needs_compiled
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_planes_that_are_not_finite(layout: str, bad: float) -> None:
    x = torch.randn(2, 21, 9, 17, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0, 0] = x[0, 3, 8, 16] = x[1, 3, 4, 4] = x[:, 7, 2, 2] = x[1, 20, 0, 9] = bad
    masks, values, _ = check(laid_out(x, layout))
    assert int((values == -128).sum()) == 6
    assert [int(masks[p].sum()) for p in (0, 3, 24, 7, 28, 41)] == [1] * 6


@needs_compiled
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_halves_are_rounded_to_even(dtype: torch.dtype) -> None:
    """One element a plane: its coefficient is the element, and a step of it the peak over 8."""
    steps = torch.tensor([16.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.5, -2.5, 0.0]).to(dtype)
    _, values, peaks = check(steps.view(9, 1, 1, 1) / 2, 16.0)
    assert peaks.tolist() == [8.0]
    assert values.tolist() == [16, 2, 2, -2, 4, -2]


@needs_compiled
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "reversed"])
def test_nothing_beyond_the_ends_is_touched(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard_results(monkeypatch)
    for shape in (
        (1, 1, 1, 1),
        (2, 5, 7, 7),
        (1, 17, 3, 3),
        (2, 3, 11),
        (1, 2, 3, 4, 9),
        (3, 16, 8, 8),
        (1, 1, 19, 130),
    ):
        for dtype in FLOATS[:3]:
            x = guarded_copy(laid_out(torch.randn(shape).to(dtype), layout))
            code = [guarded_copy(part) for part in check(x)]
            by_all("frequency_decode", *code, list(shape), list(x.stride()), dtype, 8.0, 0.3)


@needs_compiled
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_elements_far_apart(dim: int) -> None:
    shape = [3, 3, 9, 9]
    shape[dim] = 2
    check(far_apart(torch.randn(shape), dim))


@needs_compiled
def test_threads_make_no_difference() -> None:
    x = torch.randn(5, 70, 30, 31)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        code = ops.call("frequency_encode")(x, 8.0, 0.3)
        back = ops.call("frequency_decode")(*code, list(x.shape), list(x.stride()), x.dtype, 8.0, 0.3)
        torch.set_num_threads(1)
        alone = ops.call("frequency_encode")(x, 8.0, 0.3)
        assert all(map(torch.equal, code, alone))
        assert torch.equal(
            back, ops.call("frequency_decode")(*code, list(x.shape), list(x.stride()), x.dtype, 8.0, 0.3)
        )
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("body", library.RUNNABLE)
@pytest.mark.parametrize("change", [-1, 1])
def test_values_of_another_code_are_refused(body: str, change: int) -> None:
    x = torch.randn(2, 3, 9, 10)
    masks, values, peaks = ops.call("frequency_encode")(x, 8.0, 0.3)
    values = values[:-1] if change < 0 else torch.cat((values, values[:1]))
    with library.forced(body), pytest.raises(ValueError, match="expected as many as the masks have bits"):
        ops.call("frequency_decode")(masks, values, peaks, [2, 3, 9, 10], list(x.stride()), x.dtype, 8.0, 0.3)
