"""The Triton bodies of the dual codec, in the interpreter: the bits of the reference."""

import importlib

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.kernels.gpu import launch, maps
from division.kernels.reference import dual as reference
from tests.kernels.gpu.maps import BITS, DTYPES, LAYOUTS, laid_out, sizes, values
from tests.kernels.gpu.same import same

pytest.importorskip("triton", reason="triton is not installed")
dual = importlib.import_module("division.kernels.gpu.dual")


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """All maps in parts, however small."""
    monkeypatch.setattr(maps, "LARGEST", 0)
    for module in ("blocks", "dual"):
        monkeypatch.setattr(importlib.import_module(f"division.kernels.gpu.{module}"), "PART", 64)


def check(x: Tensor, block: int, bits: int, seed: int) -> None:
    """Both ways, against the reference."""
    m = maps.view_map(x.shape, x.stride(), block, x.dtype)
    assert m is not None, "the reference would be compared with itself"
    expected = reference.dual_encode(x, block, bits, seed)
    for name, got, wanted in zip(
        ("lfc", "codes", "scale"), dual.dual_encode(x, block, bits, seed), expected, strict=True
    ):
        assert same(got, wanted), name
    target = (list(x.shape), list(torch.empty_like(x).stride()), x.dtype, block, bits)
    assert same(dual.dual_decode(*expected, *target), reference.dual_decode(*expected, *target))


@settings(max_examples=40)
@given(
    size=sizes(),
    layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(DTYPES),
    block=st.integers(1, 21),
    bits=st.sampled_from(BITS),
    seed=st.integers(-(2**63), 2**63 - 1),
)
@example((1, 2, 17, 5), "contiguous", torch.float32, 8, 2, 0)
@example((2, 3, 1, 40), "contiguous", torch.bfloat16, 8, 1, 1)
@example((1, 37, 7, 7), "contiguous", torch.float16, 8, 2, 2)
@example((1, 67, 4, 4), "channels_last", torch.bfloat16, 8, 2, 3)
@example((2, 19, 8, 12), "channels_last", torch.float32, 4, 8, 4)
@example((2, 3, 16, 16), "contiguous", torch.float32, 8, 4, 5)
@example((3, 2, 9, 1), "rotated", torch.float32, 4, 2, 6)
@example((2, 2, 3, 6, 5), "channels_last", torch.bfloat16, 2, 2, 7)
def test_codes_are_those_of_the_reference(
    size: tuple[int, ...], layout: str, dtype: torch.dtype, block: int, bits: int, seed: int
) -> None:
    check(laid_out(values(size, dtype, seed % 2**31), layout), block, bits, seed)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=sizes(most=400, side=30),
    layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(DTYPES),
    block=st.integers(1, 21),
    bits=st.sampled_from(BITS),
    seed=st.integers(0, 2**31 - 1),
)
@example((1, 5, 17, 20), "contiguous", torch.float32, 3, 2, 3)
@example((2, 9, 6, 7), "channels_last", torch.bfloat16, 2, 4, 4)
def test_maps_in_parts_have_the_same_codes(
    split: None, size: tuple[int, ...], layout: str, dtype: torch.dtype, block: int, bits: int, seed: int
) -> None:
    x = laid_out(values(size, dtype, seed), layout)
    m = maps.view_map(x.shape, x.stride(), block, dtype)
    assert m is not None
    assert m.split
    check(x, block, bits, seed)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_planes_at_the_ends_of_floats(bits: int, layout: str) -> None:
    """Sums that leave float32, parts of them without a mean, and ranges that bfloat16 hasn't."""
    largest = torch.finfo(torch.float32).max
    planes = [
        torch.full((6, 10), largest),
        torch.full((6, 10), -largest),
        torch.full((6, 10), largest).index_fill_(0, torch.tensor([3]), -largest),
        torch.linspace(-1, 1, 60).view(6, 10) * largest,
        torch.linspace(0, 1, 60).view(6, 10) * largest,
        torch.linspace(-0.3, 0.1, 60).view(6, 10) * largest,
        torch.full((6, 10), 2.0**-149),
        torch.linspace(-1, 1, 60).view(6, 10) * 2.0**-126,
        torch.zeros(6, 10).index_fill_(1, torch.tensor([9]), 2.0**127),
        torch.full((6, 10), 1.2345678),
    ]
    x = laid_out(torch.stack(planes)[None], layout)
    for block in (4, 5, 16):
        check(x, block, bits, 3)


@pytest.mark.parametrize("size", [(0, 3, 4), (2, 0, 5, 6), (2, 3, 0, 4)])
def test_empty_maps_have_empty_codes(size: tuple[int, ...]) -> None:
    x = torch.zeros(size)
    expected = reference.dual_encode(x, 8, 2, 0)
    got = dual.dual_encode(x, 8, 2, 0)
    assert [(part.shape, part.dtype) for part in got] == [(part.shape, part.dtype) for part in expected]
    target = (list(size), list(x.stride()), x.dtype, 8, 2)
    assert same(dual.dual_decode(*expected, *target), x)


@pytest.mark.parametrize(
    ("size", "block", "dtype"), [((2, 3, 9), 4, torch.float64), ((1, 2, 5000), 4500, torch.float32)], ids=str
)
def test_what_the_kernels_cannot_take_goes_to_the_reference(
    size: tuple[int, ...], block: int, dtype: torch.dtype
) -> None:
    x = values(size, dtype, 0)
    assert maps.view_map(x.shape, x.stride(), block, dtype) is None
    expected = reference.dual_encode(x, block, 2, 1)
    assert all(map(same, dual.dual_encode(x, block, 2, 1), expected))
    target = (list(size), list(x.stride()), dtype, block, 2)
    assert same(dual.dual_decode(*expected, *target), reference.dual_decode(*expected, *target))


@pytest.mark.parametrize("split_up", [False, True])
@pytest.mark.parametrize(
    ("size", "stride"),
    [
        ((2, 2, 3, 4), (2**31 + 5, 40, 4, 1)),
        ((3, 2, 3, 4), (2**30, 40, 4, 1)),
        ((1, 3, 3, 4), (7, 2**30 + 3, 4, 1)),
        ((1, 2, 4, 3), (7, 3, 2**29 * 2 - 5, 2**20)),
        ((1, 2, 3, 5), (1, 1, 5 * 2**28, 2**28)),
        ((1, 2, 3, 2, 3), (9, 2**31 + 100, 2**29, 3, 1)),
    ],
    ids=str,
)
def test_offsets_beyond_2_to_the_31(
    size: tuple[int, ...], stride: tuple[int, ...], split_up: bool, request: pytest.FixtureRequest
) -> None:
    """In memory that nobody touches but where the elements lie, so that there is enough of it."""
    if split_up:
        request.getfixturevalue("split")
    reach = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    assert reach >= 2**31
    x = torch.empty(reach + 1, dtype=torch.float16).as_strided(size, stride)
    x.copy_(values(size, torch.float16, 3))
    expected = reference.dual_encode(x.contiguous(), 2, 2, 5)
    assert all(map(same, dual.dual_encode(x, 2, 2, 5), expected))
    out = dual.dual_decode(*expected, list(size), list(stride), torch.float16, 2, 2)
    assert out.stride() == stride
    dense = torch.empty(size, dtype=torch.float16)
    again = reference.dual_decode(*expected, list(size), list(dense.stride()), torch.float16, 2, 2)
    assert same(out.contiguous(), again)


def test_cuda_calls_take_the_kernels_where_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    x = values((2, 3, 5), torch.float32, 0)
    monkeypatch.setattr(launch, "failure", lambda index: None)
    monkeypatch.setattr(dual, "dual_encode", lambda *args: args)
    assert launch.late("dual_encode")(x, 4, 2, 0) == (x, 4, 2, 0)


def test_cuda_calls_take_the_reference_where_kernels_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    x = values((2, 3, 5), torch.float32, 0)
    monkeypatch.setattr(launch, "failure", lambda index: "no compiler")
    monkeypatch.setattr(dual, "dual_encode", None)
    assert all(map(same, launch.late("dual_encode")(x, 4, 2, 0), reference.dual_encode(x, 4, 2, 0)))
