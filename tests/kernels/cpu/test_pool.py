"""The C++ bodies of the ops on the low-frequency part alone."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs.layout import dense_stride
from division.kernels import ops
from division.kernels.cpu import dual, library, pool
from division.kernels.reference import pool as reference
from tests.kernels.cpu.agree import (
    COMPILED,
    FLOATS,
    LAYOUTS,
    assert_same,
    by_all,
    far_apart,
    laid_out,
    needs_compiled,
)
from tests.kernels.cpu.guard import guarded_copy

KINDS = ("normal", "relu", "constant", "odd", "huge", "all huge", "tiny", "greatest", "-0")
sizes = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24, 31, 33, 56])
spatial = st.one_of(
    st.tuples(sizes),
    st.tuples(sizes, sizes),
    st.tuples(*[st.integers(1, 9)] * 3),
    st.sampled_from([(2, 2300), (5000,), (2061,), (1500, 2)]),
)


def tensor(shape: tuple[int, ...], dtype: torch.dtype, layout: str, kind: str) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    flat = x.view(-1)
    if kind == "relu":
        x.relu_()
    elif kind == "constant":
        x[:, :1] = 1.2345
    elif kind == "odd":
        for i, value in enumerate((float("nan"), float("inf"), -float("inf"))):
            flat[i * 7919 % flat.numel()] = value
    elif kind == "huge":  # block sums overflow, some both ways
        x.mul_(3e38).clamp_(-3.4e38, 3.4e38)
    elif kind == "all huge":
        x.abs_().clamp_(1e38, 3e38)
    elif kind == "tiny":
        x.mul_(1e-40)
    elif kind == "greatest":
        x.fill_(torch.finfo(torch.float32).max)
    elif kind == "-0":
        x.fill_(-0.0)
    return laid_out(x.to(dtype), layout)


def place(x: Tensor) -> tuple[list[int], list[int], torch.dtype]:
    return list(x.shape), list(dense_stride(x.shape, x.stride())), x.dtype


@needs_compiled
@settings(max_examples=200)
@given(
    shape=st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 7, 16, 17, 35])),
    spatial=spatial,
    dtype=st.sampled_from(FLOATS),
    layout=st.sampled_from(LAYOUTS),
    kind=st.sampled_from(KINDS),
    block=st.sampled_from([8, 8, 1, 2, 3, 5, 16, 18, 64, 600, 1500]),
)
def test_equal_to_the_reference(
    shape: tuple[int, int], spatial: tuple[int, ...], dtype: torch.dtype, layout: str, kind: str, block: int
) -> None:
    x = tensor((*shape, *spatial), dtype, layout, kind)
    lfc = by_all("block_pool", x, block)
    by_all("block_spread", lfc, *place(x), block)


@needs_compiled
@pytest.mark.parametrize("shape", [(1, 1100, 3, 5), (2, 64, 28, 28), (70, 2, 30, 31)])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "reversed"])
def test_threads_make_no_difference(shape: tuple[int, ...], layout: str) -> None:
    x = tensor(shape, torch.float32, layout, "normal")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        lfc = ops.call("block_pool")(x, 8)
        out = ops.call("block_spread")(lfc, *place(x), 8)
    finally:
        torch.set_num_threads(before)
    assert_same(lfc, by_all("block_pool", x, 8))
    assert_same(out, by_all("block_spread", lfc, *place(x), 8))


@needs_compiled
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 3, 7, 7), (1, 17, 1, 1), (2, 33, 3, 5), (1, 2, 9, 57), (1, 40, 20)])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_touches_no_memory_beyond_its_tensors(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = guarded_copy(tensor(shape, dtype, layout, "normal"))
    empty_lfc, empty_map = reference.empty_lfc, reference.empty_map
    with library.forced("reference"):
        expected = pool.block_pool(x, 8)
        back = pool.block_spread(expected, *place(x), 8)
    monkeypatch.setattr(reference, "empty_lfc", lambda *a: guarded_copy(empty_lfc(*a)))
    monkeypatch.setattr(reference, "empty_map", lambda *a: guarded_copy(empty_map(*a)))
    with library.forced(name):
        assert_same(pool.block_pool(x, 8), expected)
        assert_same(pool.block_spread(guarded_copy(expected), *place(x), 8), back)


@needs_compiled
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_offsets_beyond_two_to_the_31(name: str, layout: str) -> None:
    near = tensor((2, 3, 20, 20), torch.bfloat16, layout, "normal")
    with library.forced(name):
        lfc = ops.call("block_pool")(near, 8)
        assert_same(ops.call("block_pool")(far_apart(near, 0), 8), lfc)
        out = far_apart(torch.zeros_like(near), 0)
        spread: Any = library.function("block_spread")
        numbers = library.numbers(dual.geometry(out.shape, out.stride(), 8))
        assert spread(library.pointer(lfc), library.TYPES[out.dtype], numbers, library.pointer(out)) == 0
        assert torch.equal(out, ops.call("block_spread")(lfc, *place(near), 8))
