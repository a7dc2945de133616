"""The Triton bodies of the error-bounded code, in the interpreter: the bits of the reference."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.kernels.reference import error_bound as reference
from tests.codecs.kinds import DTYPES, KINDS, values
from tests.kernels.gpu.same import same

triton = pytest.importorskip("triton", reason="triton is not installed")
error_bound = importlib.import_module("division.kernels.gpu.error_bound")


def check(x: Tensor, bound: Tensor) -> None:
    """Both ways, against the reference."""
    expected = reference.error_bound_encode(x, bound)
    for found, wanted in zip(error_bound.error_bound_encode(x, bound), expected, strict=True):
        assert same(found, wanted)
    place = list(x.shape), list(x.stride()), x.dtype
    assert same(
        error_bound.error_bound_decode(*expected, bound, *place),
        reference.error_bound_decode(*expected, bound, *place),
    )


@settings(max_examples=25)
@given(
    kind=st.sampled_from(KINDS),
    count=st.sampled_from([1, 63, 64, 65, 2048, 2050]),
    dtype=st.sampled_from(DTYPES),
    exponent=st.floats(-8, 3),
    seed=st.integers(0, 1000),
)
def test_equal_to_the_reference(kind: str, count: int, dtype: torch.dtype, exponent: float, seed: int) -> None:
    x = values(kind, count, seed).to(dtype)
    greatest = x.float().abs().nan_to_num(nan=1.0, posinf=1.0).max().clamp(min=1e-45)
    check(x, (greatest * 10**exponent).clamp(max=3e38).view(1))


@pytest.mark.parametrize("kind", ["walk", "relu", "sparse", "spikes", "odd"])
def test_every_kind_of_block(kind: str) -> None:
    check(values(kind, 5000), torch.tensor([0.02]))


def test_layouts_and_nothing_at_all() -> None:
    check(values("relu", 600).view(20, 30).t(), torch.tensor([0.1]))
    check(torch.zeros(0, 3), torch.tensor([0.1]))
