"""The C++ bodies of the ops of one and two bits an element."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs.layout import dense_stride
from division.kernels import ops
from division.kernels.cpu import bits, library
from division.kernels.cpu.strided import shape as shape_of
from tests.kernels.cpu.agree import (
    COMPILED,
    FLOATS,
    LAYOUTS,
    assert_same,
    by_all,
    far_apart,
    guard_results,
    laid_out,
    needs_compiled,
)
from tests.kernels.cpu.guard import guarded_copy

INF, NAN = math.inf, math.nan
SPECIAL = (0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 6.0, 0.1, 1e-40, 65504.0, 3.4e38)
#: Some beyond a dtype's range, between two of its values, and where rounding twice is not rounding once.
BOUNDS = (-INF, INF, 0.0, -0.0, 1.0, -1.0, 6.0, 0.1, -0.3, 1e39, -1e39, 65519.9, 65520.0, 1 + 2**-11 + 2**-40, 1e-40)
shapes = st.one_of(
    st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 17, 33]), max_size=3),
    st.sampled_from([[64], [4096], [4097], [2, 3, 40, 37], [70, 9, 9], [3, 16, 20, 20]]),
)
layouts = st.sampled_from(LAYOUTS)
dtypes = st.sampled_from(FLOATS)
bounds = st.tuples(st.sampled_from(BOUNDS), st.sampled_from(BOUNDS)).filter(lambda b: any(map(math.isfinite, b)))
seeds = st.integers(0, 1000)


def tensor(shape: list[int], dtype: torch.dtype, layout: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).mul_(3)
    odd = torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), shape, generator=generator)]
    x = torch.where(torch.rand(shape, generator=generator) < 0.3, odd, x).to(dtype)
    return laid_out(x, layout)


def place(x: Tensor) -> tuple[list[int], list[int]]:
    return list(x.shape), list(dense_stride(x.shape, x.stride()))


@needs_compiled
@settings(max_examples=200)
@given(
    shape=shapes,
    dtype=dtypes,
    layout=layouts,
    seed=seeds,
    interval=bounds,
    flags=st.tuples(*[st.booleans()] * 3),
    values=st.tuples(st.floats(-9, 9), st.sampled_from([-0.0, 1e-7, NAN, INF])),
)
def test_bits(
    shape: list[int], dtype: torch.dtype, layout: str, seed: int, interval: tuple[float, float],
    flags: tuple[bool, ...], values: tuple[float, float],
) -> None:  # fmt: skip
    x = tensor(shape, dtype, layout, seed)
    codes = by_all("bits_encode", x, *interval, *flags)
    by_all("bits_decode", codes, *place(x), dtype, *values)


@needs_compiled
@settings(max_examples=100)
@given(shape=shapes, dtype=dtypes, layout=layouts, seed=seeds, interval=bounds)
def test_intervals(shape: list[int], dtype: torch.dtype, layout: str, seed: int, interval: tuple[float, float]) -> None:
    x = tensor(shape, dtype, layout, seed)
    codes = by_all("interval_encode", x, *interval)
    by_all("interval_decode", codes, *place(x), dtype, [1.5, -0.0, 0.1, NAN])


@needs_compiled
@settings(max_examples=100)
@given(shape=shapes, dtype=st.sampled_from([*FLOATS, torch.bool, torch.int64, torch.uint8]), layout=layouts, seed=seeds)
def test_masks(shape: list[int], dtype: torch.dtype, layout: str, seed: int) -> None:
    x = tensor(shape, torch.float32, layout, seed)
    x = laid_out((x > 0).to(dtype) if not dtype.is_floating_point else x.to(dtype), layout)
    codes = by_all("mask_encode", x)
    for value in (1.25, -0.0):
        by_all("mask_decode", codes, torch.full((1,), value, dtype=dtype), *place(x))


@needs_compiled
@pytest.mark.parametrize("lo", [INF, -INF])
@pytest.mark.parametrize("closed", [False, True])
def test_an_infinite_bound_bounds_nothing(lo: float, closed: bool) -> None:
    x = torch.tensor([-INF, -1.0, 0.0, 1.0, INF, NAN])
    for name in COMPILED:
        with library.forced(name):
            assert ops.call("bits_encode")(x, lo, 0.0, closed, False, False).tolist() == [0b000011]
            assert ops.call("bits_encode")(x, 0.0, lo, False, closed, True).tolist() == [0b111000]
            assert ops.call("interval_encode")(x, lo, 0.0).tolist() == [0b00100101, 0b1100]


@needs_compiled
def test_bounds_are_those_that_the_dtype_holds() -> None:
    """The bfloat16 of 0.1 is above 0.1, yet it is not above the bound 0.1: compared with itself, it is at it."""
    x = torch.tensor([0.1], dtype=torch.bfloat16)
    assert float(x) > 0.1
    for name in COMPILED:
        with library.forced(name):
            assert ops.call("bits_encode")(x, 0.1, INF, False, False, False).tolist() == [0]
            assert ops.call("bits_encode")(x, 0.1, INF, True, False, False).tolist() == [1]
            assert ops.call("interval_encode")(x, 0.1, INF).tolist() == [2]


@needs_compiled
@pytest.mark.parametrize("name", COMPILED)
def test_a_value_that_the_dtype_can_not_hold_is_refused_as_by_the_reference(name: str) -> None:
    codes = torch.zeros(1, dtype=torch.uint8)
    for body in ("reference", name):
        with library.forced(body), pytest.raises(RuntimeError, match="overflow"):
            ops.call("bits_decode")(codes, [8], [1], torch.float32, 1e39, 0.0)


@needs_compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
@pytest.mark.parametrize("count", [1, 7, 63, 64, 65, 4095, 4100])
def test_touches_no_memory_beyond_its_tensors(count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = guarded_copy((torch.randn(count) > 0).to(dtype))
    value, numbers = torch.ones(1, dtype=dtype), [0.0, 1.0, 2.0, 3.0]
    calls: list[tuple[Any, Any]] = [(bits.mask_encode, lambda codes: bits.mask_decode(codes, value, (count,), (1,)))]
    if dtype != torch.bool:
        calls += [
            (
                lambda x: bits.bits_encode(x, 0.0, 9.0, False, True, True),
                lambda codes: bits.bits_decode(codes, (count,), (1,), dtype, 1.0, 0.0),
            ),
            (
                lambda x: bits.interval_encode(x, 0.0, 9.0),
                lambda codes: bits.interval_decode(codes, (count,), (1,), dtype, numbers),
            ),
        ]
    with library.forced("reference"):
        expected = [(encode(x), decode(encode(x))) for encode, decode in calls]
    guard_results(monkeypatch)
    for name in COMPILED:
        with library.forced(name):
            for (encode, decode), (codes, back) in zip(calls, expected, strict=True):
                found = encode(x)
                assert torch.equal(found, codes)
                assert torch.equal(decode(found), back)


@needs_compiled
@pytest.mark.parametrize("dim", [0, 2])
def test_offsets_beyond_two_to_the_31(dim: int) -> None:
    near = tensor([2, 50, 2], torch.bfloat16, "contiguous", 1)
    far = far_apart(near, dim)
    for name in COMPILED:
        with library.forced(name):
            for op, arguments in (("bits_encode", (0.0, 1.0, True, False, True)), ("interval_encode", (0.0, 6.0))):
                assert_same(ops.call(op)(far, *arguments), ops.call(op)(near, *arguments))
            assert_same(ops.call("mask_encode")(far), ops.call("mask_encode")(near))
            codes = ops.call("bits_encode")(near, 0.0, 1.0, False, False, False)
            expected = ops.call("bits_decode")(codes, [2, 50, 2], [100, 2, 1], torch.bfloat16, 1.0, -1.0)
            out = far_apart(torch.zeros_like(near), dim)
            decode: Any = library.function("bits_decode")
            values = torch.tensor([-1.0, 1.0], dtype=torch.bfloat16)
            left = decode(
                library.pointer(codes), shape_of(out.shape, out.stride()), library.pointer(values), 2,
                library.pointer(out),
            )  # fmt: skip
            assert left == 0
            assert torch.equal(out, expected)


def test_a_value_on_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="got a value on meta and codes on cpu, expected one device"):
        ops.call("mask_decode")(torch.zeros(1, dtype=torch.uint8), torch.ones((), device="meta"), [4], [1])
