"""The Triton bodies of the mixed codec, in the interpreter: the bits of the reference."""

import importlib
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.kernels.reference import mixed as reference
from tests.kernels.gpu.same import same
from tests.kernels.gpu.views import FLOATS, far, layouts, shapes, view

pytest.importorskip("triton", reason="triton is not installed")
mixed = importlib.import_module("division.kernels.gpu.mixed")
values = importlib.import_module("tests.kernels.gpu.test_group").values


def check(x: Tensor, group: int, total: int, seed: int) -> None:
    """Both ways, against the reference."""
    expected = reference.mixed_encode(x, group, total, seed)
    for found, wanted in zip(mixed.mixed_encode(x, group, total, seed), expected, strict=True):
        assert same(found, wanted)
    target = (list(x.shape), list(x.stride()), x.dtype, group)
    assert same(mixed.mixed_decode(*expected, *target), reference.mixed_decode(*expected, *target))


@settings(max_examples=40)
@given(
    data=st.data(),
    size=shapes(most=400, dims=4).filter(bool),
    dtype=st.sampled_from(FLOATS),
    group=st.sampled_from((16, 32, 48, 96, 256, 4096)),
    share=st.floats(0, 1),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_codes_are_those_of_the_reference(
    data: st.DataObject, size: list[int], dtype: torch.dtype, group: int, share: float, seed: int
) -> None:
    x = view(values(size, dtype, seed % 1000), *data.draw(layouts(len(size))))
    check(x, group, size[0] + int(7 * size[0] * share), seed)


@pytest.mark.parametrize(
    ("size", "order", "group", "mode"),
    [
        ((6, 300), (0, 1), 304, "both"),
        ((3, 600), (0, 1), 64, "both"),
        ((32, 9), (1, 0), 16, "rows"),
        ((2, 16, 8, 6), (0, 2, 3, 1), 32, "runs"),
        ((2, 3, 8, 6), (0, 2, 3, 1), 48, "any"),
        ((2, 2, 64, 65), (0, 2, 3, 1), 4096, "any"),
        ((16, 5000), (1, 0), 4096, "rows"),
        ((2, 32, 16, 20), (0, 2, 1, 3), 160, "any"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_way_over_samples(
    size: tuple[int, ...], order: Sequence[int], group: int, mode: str, dtype: torch.dtype
) -> None:
    x = view(values(size, dtype, 5), order, 1, 0)
    assert mixed._way(x, group).constants["mode"] == mode
    check(x, group, 5 * size[0] // 2, 11)


@pytest.mark.parametrize("width", range(1, 9))
def test_every_width(width: int) -> None:
    check(torch.randn(2, 135, generator=torch.Generator().manual_seed(width)), 32, 2 * width, 3)


@pytest.mark.parametrize(
    "x",
    [torch.randn(3, 40, dtype=torch.float64), torch.randn([2] * 7).permute(0, 6, 2, 4, 1, 3, 5), torch.zeros(3, 0)],
    ids=["float64", "many dims", "empty"],
)
def test_what_takes_the_reference_is_right_too(x: Tensor) -> None:
    check(x, 16, 3 * x.shape[0], 4)


def test_elements_more_than_two_to_the_31_apart() -> None:
    x = far(values((2, 48), torch.bfloat16, 3))
    assert x.stride(0) > 2**31
    check(x, 16, 5, 7)
