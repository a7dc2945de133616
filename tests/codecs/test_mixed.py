"""The mixed codec: its widths against a search of all, its codes against the group codec, its formula, its edges."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs import Group, Mixed
from division.codecs.codec import Packed
from tests.codecs.contract import decode, encode, same_bits


def spread(x: Tensor, size: int) -> list[float]:
    """C of each sample: the sum over its groups of range squared times elements."""
    found = []
    for row in x.reshape(len(x), -1).double():
        groups = row.split(size)
        found.append(sum(float((g.max() - g.min()) ** 2) * len(g) for g in groups))
    return found


def objective(costs: list[float], widths: tuple[int, ...] | list[int]) -> float:
    return math.fsum(c / (2**b - 1) ** 2 for c, b in zip(costs, widths, strict=True))


def widths(packed: Packed) -> list[int]:
    return [int(b) for b in packed.parts[2]]


@settings(max_examples=60)
@given(
    scales=st.lists(st.floats(1e-18, 1e18) | st.just(0.0), min_size=1, max_size=4),
    bits=st.floats(1, 8),
    elements=st.integers(1, 70),
    seed=st.integers(0, 1000),
)
def test_widths_are_the_best_there_are(scales: list[float], bits: float, elements: int, seed: int) -> None:
    x = (
        torch.randn(len(scales), elements, generator=torch.Generator().manual_seed(seed))
        * torch.tensor(scales)[:, None]
    )
    codec = Mixed(bits, 16)
    found, costs = widths(encode(codec, x)), spread(x, 16)
    total = max(math.floor(len(scales) * bits + 1e-9), len(scales))
    assert sum(found) == total
    best = min(objective(costs, w) for w in product(range(1, 9), repeat=len(scales)) if sum(w) == total)
    assert objective(costs, found) <= best * (1 + 1e-12)


@settings(max_examples=60)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    bits=st.floats(1, 8),
    size=st.sampled_from([16, 48, 256]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_codes_are_those_of_the_group_codec_in_the_same_widths(
    shape: list[int], bits: float, size: int, seed: int
) -> None:
    x = torch.randn(shape) * torch.arange(1, shape[0] + 1).view(-1, *[1] * (len(shape) - 1))
    codec = Mixed(bits, size)
    packed = encode(codec, x, seed)
    twin = Group(tuple(widths(packed)), size)
    expected = encode(twin, x, seed)
    assert same_bits(packed.parts[1], expected.parts[1])
    assert same_bits(decode(codec, packed), decode(twin, expected))
    octets, elements = math.ceil(math.prod(shape[1:]) / 8), math.prod(shape[1:])
    at = dense = 0
    for width in widths(packed):
        own = math.ceil(elements * width / 8)
        row = packed.parts[0][at : at + octets * width]
        assert torch.equal(row[:own], expected.parts[0][dense : dense + own])
        assert not row[own:].any()
        at, dense = at + octets * width, dense + own
    assert at == packed.parts[0].numel()


@settings(max_examples=60)
@given(
    shape=st.lists(st.integers(0, 30), min_size=1, max_size=3), bits=st.floats(1, 8), size=st.sampled_from([16, 256])
)
def test_packed_bytes(shape: list[int], bits: float, size: int) -> None:
    x, codec = torch.randn(shape), Mixed(bits, size)
    samples, elements = shape[0], math.prod(shape[1:])
    total = sum(widths(encode(codec, x)))
    assert samples * bits - 1 < total <= samples * bits + 1e-9
    expected = math.ceil(elements / 8) * total + samples * (4 * math.ceil(elements / size) + 1)
    assert encode(codec, x).nbytes == codec.packed_bytes(shape, x.dtype) == expected


@pytest.mark.parametrize("bits", [1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4])
def test_the_averages_of_the_paper_are_met(bits: float) -> None:
    x = torch.randn(64, 3, 8, 8) * torch.rand(64, 1, 1, 1)
    assert sum(widths(encode(Mixed(bits), x))) == 64 * bits


def test_equal_samples_have_equal_widths() -> None:
    x = torch.randn(1, 500).repeat(6, 1)
    assert widths(encode(Mixed(3), x)) == [3] * 6
    assert widths(encode(Mixed(2.5), x)) == [3, 3, 3, 2, 2, 2]
    assert widths(encode(Mixed(2.5), torch.ones(6, 500))) == [3, 3, 3, 2, 2, 2]


def test_one_sample_has_the_whole_bits_it_can() -> None:
    assert widths(encode(Mixed(2.75), torch.randn(1, 50))) == [2]
    assert widths(encode(Mixed(1), torch.randn(1, 50))) == [1]
    assert widths(encode(Mixed(8), torch.randn(1, 50))) == [8]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_sample_that_is_not_finite_takes_nobodys_bits(value: float) -> None:
    x = torch.randn(4, 320, generator=torch.Generator().manual_seed(0))
    x[1] = value
    x[2, 300] = value
    packed = encode(Mixed(2.5, 64), x)
    assert widths(packed) == [4, 1, 1, 4] or widths(packed)[1] == 1
    out = decode(Mixed(2.5, 64), packed)
    assert out[1].isnan().all()
    assert out[2, 256:].isnan().all()
    assert out[2, :256].isfinite().all()
    assert out[[0, 3]].isfinite().all()
    clean = x[[0, 2, 3]].nan_to_num(0.0, 0.0, 0.0)
    assert sum(widths(packed)) == 10
    assert widths(packed)[0] >= min(widths(encode(Mixed(3, 64), clean)))


def test_a_range_beyond_float32_takes_nobodys_bits() -> None:
    x = torch.randn(3, 64)
    x[1, :2] = torch.tensor([3e38, -3e38])
    packed = encode(Mixed(4), x)
    assert widths(packed)[1] == 1
    assert decode(Mixed(4), packed)[1].isnan().all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mixed(0.5), "got bits=0.5 for mixed, expected a number from 1 to 8"),
        (lambda: Mixed(8.5), "got bits=8.5"),
        (lambda: Mixed(math.nan), "got bits=nan"),
        (lambda: Mixed(True), "got bits=True"),
        (lambda: Mixed("2"), "got bits='2'"),  # type: ignore[arg-type]
        (lambda: Mixed(size=100), "got size=100, expected a multiple of 16 up to 4096"),
        (lambda: Mixed(size=0), "got size=0"),
        (lambda: Mixed(size=8192), "got size=8192"),
        (lambda: Mixed(size=16.0), "got size=16.0"),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Mixed], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_what_it_takes() -> None:
    assert Mixed().why_not(torch.zeros(())) == "0 dims, expected samples along dim 0"
    assert Mixed().why_not(torch.zeros(3, dtype=torch.int64)) == "dtype torch.int64"
    assert Mixed().why_not(torch.zeros(3, 1).expand(3, 3)) == "overlapping layout"


def test_parts_of_another_code_are_refused() -> None:
    codec, x = Mixed(2), torch.randn(4, 40)
    packed = encode(codec, x)
    with pytest.raises(ValueError, match="for widths"):
        decode(codec, Packed((*packed.parts[:2], packed.parts[2] + 1), packed.size, packed.stride, x.dtype, x.device))
    with pytest.raises(ValueError, match="got codes"):
        decode(codec, Packed((packed.parts[0][:-1], *packed.parts[1:]), packed.size, packed.stride, x.dtype, x.device))
