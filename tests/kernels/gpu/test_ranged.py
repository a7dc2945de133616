"""The Triton body of the ranged codec's op, in the interpreter: the bits of the reference."""

import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from division.kernels.reference import ranged as reference
from tests.kernels.cpu.test_ranged import scales
from tests.kernels.gpu.same import same
from tests.kernels.gpu.views import FLOATS, layouts, shapes, view

pytest.importorskip("triton", reason="triton is not installed")
ranged = importlib.import_module("division.kernels.gpu.ranged")


@settings(max_examples=25)
@given(
    data=st.data(),
    size=shapes(most=400, dims=4),
    dtype=st.sampled_from(FLOATS),
    bits=st.integers(1, 16),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_codes_are_those_of_the_reference(
    data: st.DataObject, size: list[int], dtype: torch.dtype, bits: int, seed: int
) -> None:
    lead = data.draw(st.integers(0, len(size)))
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed % 999)).to(dtype)
    x = view(x, *data.draw(layouts(len(size))))
    scale = scales(math.prod(size[:lead]), math.prod(size[lead:]), seed)
    expected = reference.ranged_encode(x, scale, lead, bits, seed)
    assert same(ranged.ranged_encode(x, scale, lead, bits, seed), expected)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_rows_of_several_blocks(order: tuple[int, int, int]) -> None:
    x = view(torch.randn(3, 40, 30), order, 1, 0)
    for lead, rows in ((0, 1), (1, 3)):
        scale = scales(rows, 1, 4)
        assert ranged.encoding(x, torch.empty(3600, dtype=torch.uint8), scale.view(torch.int32), lead, 8, 3) is not None
        assert same(ranged.ranged_encode(x, scale, lead, 8, 3), reference.ranged_encode(x, scale, lead, 8, 3))
