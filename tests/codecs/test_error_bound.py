"""The error-bounded codec: the bound of every element, zeros, what is kept exactly, and how few bytes it takes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs import ErrorBound
from tests.codecs.contract import decode, encode, layouts, same_bits, same_code
from tests.codecs.kinds import DTYPES, KINDS, values


def check_bound(codec: ErrorBound, x: Tensor, most: float) -> Tensor:
    """No element is off by more, as exact numbers tell; zeros are zeros; what is not finite is itself."""
    packed = encode(codec, x)
    out = decode(codec, packed)
    finite = x.isfinite()
    off = (x.double() - out.double())[finite].abs()
    assert bool((off <= most).all()), (float(off.max()), most)
    assert bool((out[x == 0] == 0).all())
    assert same_bits(out[~finite], x[~finite])
    assert codec.least_bytes(x.shape, x.dtype) <= packed.nbytes <= codec.packed_bytes(x.shape, x.dtype)
    return out


@settings(max_examples=250)
@given(
    kind=st.sampled_from(KINDS),
    count=st.sampled_from([1, 2, 63, 64, 65, 2047, 2048, 2049, 5000]),
    dtype=st.sampled_from(DTYPES),
    exponent=st.floats(-7, 2),
    relative=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_element_keeps_the_bound(
    kind: str, count: int, dtype: torch.dtype, exponent: float, relative: bool, seed: int
) -> None:
    x, share = values(kind, count, seed).to(dtype), 10.0**exponent
    greatest = float(x.double().abs().nan_to_num(nan=0.0, posinf=0.0).max())
    bound = share * greatest
    if relative:
        check_bound(ErrorBound(share, relative=True), x, bound if x.isfinite().all() else 0.0)
    elif 0 < bound < math.inf:
        check_bound(ErrorBound(bound), x, bound)


@settings(max_examples=60)
@given(x=st.lists(st.floats(width=32), max_size=40), bound=st.floats(1e-50, 1e300), dtype=st.sampled_from(DTYPES))
def test_whatever_the_numbers(x: list[float], bound: float, dtype: torch.dtype) -> None:
    check_bound(ErrorBound(bound), torch.tensor(x).to(dtype), bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ties_and_the_bound_itself(dtype: torch.dtype) -> None:
    """Where rounding decides: multiples of the bound, and their neighbours in the dtype."""
    steps = torch.arange(-3000, 3000, dtype=torch.float64)
    for bound in (1.0, 0.1, 1e-3, 3.3e-5):
        near = (steps * bound).to(dtype)
        up, down = (torch.nextafter(near, torch.full_like(near, end)) for end in (math.inf, -math.inf))
        for x in (near, up, down):
            check_bound(ErrorBound(bound), x, bound)


def test_a_share_of_what_is_not_finite_keeps_all_bit_for_bit() -> None:
    x = torch.randn(5000)
    for odd in (math.inf, -math.inf, math.nan):
        x[7] = odd
        out = check_bound(ErrorBound(1.0, relative=True), x, 0.0)
        assert same_bits(out, x)


def test_zeros_take_next_to_nothing() -> None:
    for x in (torch.zeros(5000), torch.full((5000,), 1e-3)):
        codec = ErrorBound(0.01)
        packed = encode(codec, x)
        assert packed.nbytes == codec.least_bytes(x.shape, x.dtype) == 2 * 3 + 4
        assert not decode(codec, packed).any()
    assert encode(ErrorBound(0.01, relative=True), torch.zeros(5000)).nbytes == 10


def test_bytes_of_simple_blocks() -> None:
    """The bits as the format has them, by hand."""
    steps = torch.full((2048,), 2.0)  # the number 1 everywhere, of steps a little below 2
    (payload, sizes, bound) = encode(ErrorBound(1.0), steps).parts
    # Differences, the first of them 1, which is written as 2: a tree of 32 bits, 4, 4 and 4; then a one and a 0.
    assert sizes.tolist() == [2 + math.ceil((32 + 4 + 4 + 4 + 2) / 8)]
    assert payload.tolist() == [2 << 5 | 1 << 7, 1 << 1 | 2 << 2, 1, 0, 0, 0, 0x11, 0x11]
    assert bound.tolist() == [1.0]
    mixed = torch.tensor([2.0, 0, 2, 2]).repeat(512)
    (payload, sizes, _) = encode(ErrorBound(1.0), mixed).parts
    assert sizes.tolist() == [2 + 2048 // 8 + 1536 // 8]
    assert payload.tolist() == [1 << 5, 1 << 2] + [0b11011101] * 256 + [0] * 192


def test_a_block_that_cannot_keep_the_bound_is_kept_and_the_others_are_not_touched() -> None:
    x = values("noise", 3 * 2048)
    codec = ErrorBound(0.01)
    plain = decode(codec, encode(codec, x))
    for value in (math.nan, math.inf, -math.inf, 1e30):
        moved = x.clone()
        moved[2048 + 77] = value
        packed = encode(codec, moved)
        assert packed.parts[1][1] == 2 + 4 * 2048
        out = decode(codec, packed)
        assert same_bits(out[2048:4096], moved[2048:4096])
        assert same_bits(out[:2048], plain[:2048])
        assert same_bits(out[4096:], plain[4096:])


def test_fewer_bits_than_the_noise_has_are_taken_by_what_is_smooth_or_sparse() -> None:
    count = 1 << 15
    taken = {kind: encode(ErrorBound(0.05), values(kind, count)).nbytes for kind in ("noise", "relu", "sparse")}
    wave = torch.sin(torch.arange(count) / 50)
    taken["wave"] = encode(ErrorBound(0.05), wave).nbytes
    entropy = _entropy(np.rint(values("noise", count).numpy() / 0.1)) * count / 8
    assert entropy < taken["noise"] < 1.1 * entropy
    assert taken["relu"] < 0.7 * taken["noise"]
    assert taken["wave"] < 0.3 * taken["noise"]
    assert taken["sparse"] < 0.1 * taken["noise"]


def _entropy(numbers: np.ndarray) -> float:
    share = np.unique(numbers, return_counts=True)[1] / numbers.size
    return float(-(share * np.log2(share)).sum())


def test_the_seed_makes_no_difference() -> None:
    x = values("noise", 5000)
    assert same_code(encode(ErrorBound(0.01), x, 1), encode(ErrorBound(0.01), x, 2))


def test_relative_is_a_share_of_the_greatest_magnitude() -> None:
    x = values("noise", 5000)
    greatest = float(x.abs().max())
    bound = float(encode(ErrorBound(0.01, relative=True), x).parts[2])
    assert 0.01 * greatest * (1 - 1e-6) < bound <= 0.01 * greatest
    assert float(encode(ErrorBound(0.01, relative=True), -x).parts[2]) == bound


def test_the_bound_is_never_rounded_up() -> None:
    for bound in (0.1, 1 / 3, 1e-46, 1e300, 5e-324):
        assert float(encode(ErrorBound(bound), torch.ones(1)).parts[2]) <= bound


def test_any_layout_keeps_the_bound() -> None:
    x = values("relu", 2 * 24 * 9 * 10).view(2, 24, 9, 10)
    for _, moved in layouts(x):
        check_bound(ErrorBound(0.01), moved, 0.01)
    beside = x.contiguous(memory_format=torch.channels_last)
    order = ErrorBound(0.01), beside.permute(0, 2, 3, 1)
    assert same_code(encode(ErrorBound(0.01), beside), encode(*order)), "elements are taken as they lie in memory"


@pytest.mark.parametrize("bound", [0, 0.0, -1.0, math.nan, math.inf, "1", None, True])
def test_wrong_bounds_are_refused(bound: float) -> None:
    with pytest.raises(ValueError, match=r"got bound=.*, expected a finite number above 0"):
        ErrorBound(bound)


@pytest.mark.parametrize("relative", ["x", 1, None])
def test_relative_is_true_or_false(relative: object) -> None:
    with pytest.raises(ValueError, match=r"got relative=.*, expected True or False"):
        ErrorBound(0.1, relative=relative)  # type: ignore[arg-type]


def test_what_it_takes() -> None:
    assert ErrorBound(1.0).why_not(torch.zeros(3, dtype=torch.float64)) == "dtype torch.float64"
    assert ErrorBound(1.0).why_not(torch.zeros(3, dtype=torch.int64)) == "dtype torch.int64"
    assert ErrorBound(1.0).why_not(torch.zeros(3, 1).expand(3, 3)) == "overlapping layout"
