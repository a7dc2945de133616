"""The C++ body of the ranged codec's op."""

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.kernels import ops
from division.kernels.cpu import library, ranged
from division.kernels.reference import ranged as reference
from tests.kernels.cpu.agree import FLOATS, LAYOUTS, assert_same, by_all, laid_out, needs_compiled
from tests.kernels.cpu.guard import guarded_copy


def scales(rows: int, elements: int, seed: int) -> Tensor:
    """Parameters that cover rows of a normal distribution, cut them off, or are NaN."""
    generator = torch.Generator().manual_seed(seed % 1000)
    low = -4 * torch.rand(rows, generator=generator)
    step = torch.rand(rows, generator=generator) * 2.0 ** -torch.randint(0, 16, (rows,), generator=generator)
    pairs = torch.stack((low, step + 1e-6), -1).to(torch.bfloat16)
    pairs[torch.rand(rows, generator=generator) < 0.2] = torch.nan
    return pairs[:, None][:, : min(elements, 1)].contiguous()


@needs_compiled
@settings(max_examples=150)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 5, 7, 16, 17, 33, 64]), max_size=4).filter(lambda s: prod(s) <= 8000),
    dtype=st.sampled_from(FLOATS),
    layout=st.sampled_from(LAYOUTS),
    lead=st.integers(0, 4),
    bits=st.integers(1, 16),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_equal_to_the_reference(
    shape: list[int], dtype: torch.dtype, layout: str, lead: int, bits: int, seed: int
) -> None:
    lead = min(lead, len(shape))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed % 999))
    scale = scales(prod(shape[:lead]), prod(shape[lead:]), seed)
    by_all("ranged_encode", laid_out(x.to(dtype), layout), scale, lead, bits, seed)


@needs_compiled
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "lead", "bits"), [((2, 3, 200, 400), 1, 8), ((1, 600_001), 0, 5)])
def test_rows_that_are_worked_on_by_parts(shape: tuple[int, ...], lead: int, bits: int, layout: str) -> None:
    x = laid_out(torch.randn(shape), layout)
    by_all("ranged_encode", x, scales(prod(shape[:lead]), 1, 3), lead, bits, 5)


@needs_compiled
@pytest.mark.parametrize("name", library.RUNNABLE[1:])
@pytest.mark.parametrize("shape", [(5, 7), (3, 64), (2, 65), (700, 9), (1, 4097)])
def test_touches_no_memory_beyond_its_tensors(
    name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, scale = guarded_copy(torch.randn(shape)), guarded_copy(scales(shape[0], 1, 2))
    empty = reference.empty_codes
    with library.forced("reference"):
        expected = ranged.ranged_encode(x, scale, 1, 3, 4)
    monkeypatch.setattr(reference, "empty_codes", lambda *a: guarded_copy(empty(*a)))
    with library.forced(name):
        assert_same(ranged.ranged_encode(x, scale, 1, 3, 4), expected)


def test_the_parameters_of_a_group_code_give_its_codes() -> None:
    x = torch.randn(6, 500)
    for bits in (1, 2, 3, 8, 13):
        codes, scale = ops.call("group_encode")(x, 1, 500, [bits], 9)
        assert torch.equal(ops.call("ranged_encode")(x, scale, 1, bits, 9), codes)


def test_known_answers() -> None:
    x = torch.tensor([[-5.0, 0.0, 1.0, 3.0, 99.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    scale = torch.tensor([[[0.0, 1.0]], [[torch.nan, torch.nan]]], dtype=torch.bfloat16)
    codes = ops.call("ranged_encode")(x, scale, 1, 8, 1)
    assert codes.tolist() == [0, 0, 1, 3, 99, 0, 0, 0, 0, 0]
    assert ops.call("ranged_encode")(x * 10, scale, 1, 2, 1).tolist()[0] == 0b11_11_00_00
