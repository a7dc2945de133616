"""The Triton bodies of the frequency codec's ops, in the interpreter: the bits of the reference."""

import importlib

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from division.kernels.reference import frequency as reference
from tests.kernels.gpu.maps import DTYPES, LAYOUTS, laid_out, sizes, values
from tests.kernels.gpu.same import same

pytest.importorskip("triton", reason="triton is not installed")
frequency = importlib.import_module("division.kernels.gpu.frequency")


@settings(max_examples=25)
@given(
    size=sizes(),
    layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(DTYPES),
    quality=st.sampled_from([2.0, 8.0, 1e9]),
    seed=st.integers(0, 2**31 - 1),
)
@example((2, 3, 7, 7), "channels_last", torch.float32, 8.0, 0)
@example((1, 2, 8, 17), "contiguous", torch.bfloat16, 8.0, 1)
@example((2, 2, 1, 1), "contiguous", torch.float32, 8.0, 2)
@example((1, 3, 4, 6, 9), "contiguous", torch.float16, 1e9, 3)
@example((3, 2, 37), "contiguous", torch.float64, 2.0, 4)
def test_codes_and_what_they_stand_for_are_those_of_the_reference(
    size: tuple[int, ...], layout: str, dtype: torch.dtype, quality: float, seed: int
) -> None:
    x = laid_out(values(size, dtype, seed), layout)
    code = reference.frequency_encode(x, quality, 0.3)
    found = frequency.frequency_encode(x, quality, 0.3)
    assert all(map(same, found, code))
    place = (list(size), list(torch.empty_like(x).stride()), dtype, quality, 0.3)
    assert same(frequency.frequency_decode(*code, *place), reference.frequency_decode(*code, *place))


@pytest.mark.parametrize("spatial", [(8,), (7, 7), (15, 8), (3, 1), (5, 2, 12)], ids=str)
def test_transforms_are_those_of_the_reference(spatial: tuple[int, ...]) -> None:
    rows = torch.randn(5, *spatial, generator=torch.Generator().manual_seed(0))
    coefficients = reference.transform(rows.clone())
    assert same(frequency.forward(rows.clone()), coefficients)
    assert same(frequency.backward(coefficients.clone()), reference.transform_back(coefficients.clone()))


def test_empty_maps() -> None:
    x = torch.zeros(2, 0, 3)
    code = frequency.frequency_encode(x, 8.0, 0.3)
    assert all(map(same, code, reference.frequency_encode(x, 8.0, 0.3)))
    assert frequency.frequency_decode(*code, [2, 0, 3], [0, 3, 1], x.dtype, 8.0, 0.3).shape == x.shape
