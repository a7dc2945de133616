"""The codecs of one and two bits: known answers, layouts, sizes, and what they refuse."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from division.codecs.bits import Bits, Mask, is_mask, rounded
from division.codecs.codec import Codec, from_config
from division.codecs.interval import Interval
from division.codecs.layout import dense_stride

RELU = Bits(lo=0.0, nan_inside=True, inside=1.0, outside=-1.0)
RELU6 = Interval(lo=0.0, hi=6.0, inside=3.0, outside=-1.0)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NAN, INF = math.nan, math.inf

LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.permute(3, 0, 2, 1),
    lambda x: x[:, 1:, ::2, 1:],
    lambda x: x[:0],
    lambda x: x[:1, :1, :1, :1],
    lambda x: x[0, 0, 0, 0],
]


def there_and_back(codec: Codec, x: Tensor) -> Tensor:
    before = x.clone()
    packed = codec.encode(x, seed=0)
    assert packed.nbytes == codec.packed_bytes(x.shape, x.dtype)
    y = codec.decode(packed)
    assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
    assert y.stride() == dense_stride(x.shape, x.stride())
    again = codec.decode(packed)
    assert y.data_ptr() != again.data_ptr() or y.numel() == 0
    torch.testing.assert_close(again, y, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (RELU, [-1, -1, -1, -1, 1, 1, 1, 1, 1]),
        (Bits(lo=0.0), [0, 0, 0, 0, 1, 1, 1, 1, 0]),
        (Bits(lo=0.0, closed_lo=True, outside=-1.0), [-1, -1, 1, 1, 1, 1, 1, 1, -1]),
        (Bits(hi=0.5, inside=0.25, outside=2.0), [0.25, 0.25, 0.25, 0.25, 2, 2, 2, 2, 2]),
        (Bits(hi=0.5, closed_hi=True, inside=0, outside=2), [0, 0, 0, 0, 0, 2, 2, 2, 2]),
        (Bits(lo=0, hi=1, nan_inside=True, inside=0.5, outside=9), [9, 9, 9, 9, 0.5, 9, 9, 9, 0.5]),
        (Bits(0, 1, True, True, True, 0.5, 9), [9, 9, 0.5, 0.5, 0.5, 0.5, 9, 9, 0.5]),
        (RELU6, [-1, -1, 0, 0, 3, 3, 3, -1, NAN]),
        (Interval(lo=1.0, inside=2, outside=0), [0, 0, 0, 0, 0, 1, 2, 2, NAN]),
        (Interval(hi=1.0, inside=0, outside=2), [0, 0, 0, 0, 0, 1, 2, 2, NAN]),
        (Interval(lo=1.0, hi=1.0, outside=3), [3, 3, 3, 3, 3, 1, 3, 3, NAN]),
        (Interval(lo=0.5, hi=1.0, inside=0.75, outside=3), [3, 3, 3, 3, 0.5, 0.5, 3, 3, NAN]),
    ],
    ids=str,
)
def test_known_answers(codec: Codec, expected: list[float], dtype: torch.dtype) -> None:
    x = torch.tensor([-INF, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, INF, NAN], dtype=dtype)
    decoded = there_and_back(codec, x)
    torch.testing.assert_close(decoded, torch.tensor(expected, dtype=dtype), rtol=0, atol=0, equal_nan=True)


def test_the_code_is_laid_out_as_the_elements_are_low_bits_first() -> None:
    x = torch.tensor([[1.0, -1, -1, 1, 1], [-1, -1, -1, 1, -1]])
    gapped = torch.cat((x, x), 1)[:, :5]
    for codec, layout in ((RELU, x), (RELU, gapped), (Mask(), x > 0)):
        assert codec.encode(layout, seed=0).parts[0].tolist() == [0b00011001, 0b01]
    columns = x.t().contiguous().t()
    for codec, layout in ((RELU, columns), (Mask(), columns > 0)):
        assert codec.encode(layout, seed=0).parts[0].tolist() == [0b11000001, 0b01]
    square = torch.tensor([[1.0, 6], [-1, 2]])
    assert RELU6.encode(square, seed=0).parts[0].tolist() == [0b01001001]
    assert RELU6.encode(square.t().contiguous().t(), seed=0).parts[0].tolist() == [0b01100001]
    assert RELU6.encode(torch.tensor([1.0, 6, -1, NAN, 0]), seed=0).parts[0].tolist() == [0b11001001, 0b10]


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
@pytest.mark.parametrize("codec", [RELU, RELU6, Mask()], ids=str)
def test_every_layout(codec: Codec, layout: int) -> None:
    x = LAYOUTS[layout](torch.randn(3, 4, 5, 7) * 4)
    if isinstance(codec, Interval) and dense_stride(x.shape, x.stride()) != x.stride():
        assert codec.why_not(x) == "gapped layout"
        return
    if isinstance(codec, Mask):
        for mask in (x > 0, (x > 0).to(torch.bfloat16) * 1.5):
            assert torch.equal(there_and_back(codec, mask), mask)
        return
    assert codec.why_not(x) is None
    expected = torch.where(x > 0, 1.0, -1.0) if codec is RELU else torch.where((x > 0) & (x < 6), 3.0, -1.0)
    assert torch.equal(there_and_back(codec, x), expected)


@given(st.lists(st.floats(width=32) | st.sampled_from([0.0, -0.0, 0.1, 6.0]), max_size=40), st.booleans())
def test_bits_say_which_side(values: list[float], nan_inside: bool) -> None:
    codec = Bits(0.1, 6.0, nan_inside=nan_inside, inside=1.0, outside=0.0)
    x = torch.tensor(values, dtype=torch.float32)
    bound = torch.tensor(0.1)
    expected = ~((x <= bound) | (x >= 6)) if nan_inside else (x > bound) & (x < 6)
    assert torch.equal(there_and_back(codec, x), expected.float())


@given(st.lists(st.booleans(), max_size=40), st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_masks_are_exact(kept: list[bool], value: float) -> None:
    mask = torch.tensor(kept, dtype=torch.bool)
    assert torch.equal(there_and_back(Mask(), mask), mask)
    factor = torch.where(mask, value, 0.0)
    if is_mask(factor):
        assert torch.equal(there_and_back(Mask(), factor).view(torch.int32), factor.view(torch.int32))
    else:
        assert value == 0
        assert math.copysign(1, value) < 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 1.25, 0.0], True),
        ([1.25, 1.25], True),
        ([0.0, 0.0], True),
        ([-2.0, 0.0], True),
        ([], True),
        ([-2.0, 2.0], False),
        ([0.0, 1.0, 2.0], False),
        ([1.0, 2.0], False),
        ([-0.0, 1.0], False),
        ([0.0, NAN], False),
        ([0.0, INF], False),
        ([0.0, -INF], False),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_mask_is(values: list[float], expected: bool, dtype: torch.dtype) -> None:
    x = torch.tensor(values, dtype=dtype)
    assert is_mask(x) is expected
    assert (Mask().why_not(x) is None) is expected


def test_a_mask_is_told_by_all_its_elements() -> None:
    x = torch.zeros(3, 70, 70)
    assert is_mask(x)
    x[2, 69, 69] = 1.0
    assert is_mask(x)
    x[2, 69, 68] = 2.0
    assert not is_mask(x)


def test_masks_of_other_dtypes() -> None:
    assert is_mask(torch.tensor([0, 1, 1], dtype=torch.uint8))
    assert not is_mask(torch.tensor([0, 1, 2]))
    assert not is_mask(torch.tensor([0j, 1j]))
    assert there_and_back(Mask(), torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [0, 255]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
def test_fakes_have_the_same_bytes(dtype: torch.dtype) -> None:
    with FakeTensorMode():
        mask = torch.empty(3, 5, 7, device="cuda", dtype=dtype)
        assert is_mask(mask)
        for codec in (Mask(), RELU, RELU6):
            if codec.why_not(mask) is None:
                assert there_and_back_fake(codec, mask)
    assert is_mask(torch.empty(3, device="meta")) is False


def there_and_back_fake(codec: Codec, x: Tensor) -> bool:
    packed = codec.encode(x, seed=0)
    y = codec.decode(packed)
    same = (y.shape, y.stride(), y.dtype, y.device) == (x.shape, x.stride(), x.dtype, x.device)
    return same and packed.nbytes == codec.packed_bytes(x.shape, x.dtype)


@pytest.mark.parametrize(
    ("codec", "dtype"),
    [
        (Bits(lo=0.3), torch.bfloat16),
        (Bits(lo=0.3), torch.float16),
        (Bits(lo=1.0, inside=1.0 + 1e-9, outside=0.0), torch.float32),
        (Bits(lo=1.0, closed_lo=True, inside=1.0, outside=1.0 - 1e-9), torch.float32),
        (Interval(lo=-0.1, hi=0.7, inside=0.0, outside=2.0), torch.bfloat16),
        (Interval(lo=0.0, hi=1e-46, inside=5e-47, outside=1.0), torch.float32),
        (RELU, torch.int64),
        (RELU, torch.complex64),
        (RELU6, torch.float8_e5m2),
    ],
    ids=str,
)
def test_refused_dtypes(codec: Codec, dtype: torch.dtype) -> None:
    assert codec.why_not(torch.ones(2).to(dtype)) is not None


@pytest.mark.parametrize("bound", [0.3, 1e-6, 1 / 3])
def test_a_single_bound_that_half_precision_rounds(bound: float) -> None:
    codec = Interval(lo=bound, inside=2.0, outside=-1.0)
    x = torch.tensor([bound], dtype=torch.bfloat16)
    assert codec.why_not(x) is None
    assert torch.equal(there_and_back(codec, x), x)


@given(st.floats(), st.sampled_from(DTYPES))
def test_rounding_is_that_of_torch(value: float, dtype: torch.dtype) -> None:
    expected = torch.tensor(value, dtype=torch.float64).to(torch.float32 if dtype.itemsize < 8 else dtype).to(dtype)
    torch.testing.assert_close(
        torch.tensor(rounded(value, dtype), dtype=torch.float64), expected.double(), rtol=0, atol=0, equal_nan=True
    )


def test_settings_unseen_before_are_checked_among_fakes() -> None:
    with FakeTensorMode():
        x = torch.empty(3, dtype=torch.bfloat16)
        assert Bits(lo=0.171875, inside=0.5).why_not(x) is None
        assert Interval(lo=0.171875, hi=0.3, inside=0.25).why_not(x) is not None


@pytest.mark.parametrize("codec", [RELU, RELU6, Mask()], ids=str)
def test_overlapping_layouts_are_refused(codec: Codec) -> None:
    assert codec.why_not(torch.ones(3, 1).expand(3, 4)) is not None


@pytest.mark.parametrize(
    "make",
    [
        Bits,
        lambda: Bits(lo=NAN),
        lambda: Bits(lo=INF),
        lambda: Bits(lo=0.0, hi=NAN),
        lambda: Bits(lo=0.0, hi=-INF),
        lambda: Bits(lo=0.0, inside=-1.0),
        lambda: Bits(lo=0.0, outside=0.5),
        lambda: Bits(lo=0.0, outside=NAN, nan_inside=True),
        lambda: Bits(lo=1.0, hi=0.0),
        Interval,
        lambda: Interval(lo=1.0, hi=0.0),
        lambda: Interval(lo=0.0, inside=0.0),
        lambda: Interval(lo=0.0, hi=6.0, outside=3.0),
    ],
)
def test_bad_settings(make: Callable[[], Codec]) -> None:
    with pytest.raises(ValueError, match="expected"):
        make()


@pytest.mark.parametrize("codec", [*Bits.examples(), *Interval.examples(), *Mask.examples()], ids=str)
def test_config_reads_back(codec: Codec) -> None:
    assert from_config(codec.config()) == codec


def test_more_elements_than_are_worked_on_at_a_time() -> None:
    x = torch.randn((1 << 20) + 13)
    assert torch.equal(there_and_back(RELU, x), torch.where(x > 0, 1.0, -1.0))
    assert torch.equal(there_and_back(RELU6, x), torch.where((x > 0) & (x < 6), 3.0, -1.0))
    assert torch.equal(there_and_back(Mask(), x > 0), x > 0)
