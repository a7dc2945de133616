"""The Triton bodies of block means and their spread, in the interpreter: the bits of the reference."""

import importlib
import math

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from division.kernels.gpu import maps
from division.kernels.reference import pool as reference
from tests.kernels.gpu.maps import DTYPES, LAYOUTS, laid_out, sizes, values
from tests.kernels.gpu.same import same

pytest.importorskip("triton", reason="triton is not installed")
pool = importlib.import_module("division.kernels.gpu.pool")


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=sizes(),
    layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(DTYPES),
    block=st.integers(1, 21),
    split=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
@example((1, 2, 17, 5), "contiguous", torch.float32, 8, False, 0)
@example((1, 19, 7, 7), "channels_last", torch.bfloat16, 8, False, 1)
@example((1, 3, 4, 6, 9), "contiguous", torch.float16, 4, True, 2)
def test_means_and_their_spread_are_those_of_the_reference(
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, ...],
    layout: str,
    dtype: torch.dtype,
    block: int,
    split: bool,
    seed: int,
) -> None:
    with monkeypatch.context() as patch:
        if split:
            patch.setattr(maps, "LARGEST", 0)
            patch.setattr(importlib.import_module("division.kernels.gpu.blocks"), "PART", 64)
        x = laid_out(values(size, dtype, seed), layout)
        m = maps.view_map(x.shape, x.stride(), block, dtype)
        assert m is not None
        assert m.split or not split
        expected = reference.block_pool(x, block)
        assert same(pool.block_pool(x, block), expected)
        target = (list(size), list(torch.empty_like(x).stride()), dtype, block)
        assert same(pool.block_spread(expected, *target), reference.block_spread(expected, *target))


def test_what_float16_cannot_hold_is_held_within_its_range() -> None:
    lfc = torch.tensor([[1e30, -1e30, math.nan, 3.0]], dtype=torch.bfloat16)
    out = pool.block_spread(lfc, [1, 1, 4], [4, 4, 1], torch.float16, 1)
    assert out.flatten().tolist()[:2] == [65504.0, -65504.0]
    assert math.isnan(float(out[0, 0, 2]))
    assert float(out[0, 0, 3]) == 3.0


def test_empty_maps_and_float64_go_to_the_reference() -> None:
    for x in (torch.zeros(2, 0, 3), values((2, 3, 9), torch.float64, 0)):
        lfc = reference.block_pool(x, 4)
        assert same(pool.block_pool(x, 4), lfc)
        assert same(
            pool.block_spread(lfc, list(x.shape), list(x.stride()), x.dtype, 4),
            reference.block_spread(lfc, x.shape, x.stride(), x.dtype, 4),
        )
