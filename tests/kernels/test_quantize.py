"""Rounding to bfloat16 by integers, affine quantisation of rows, and packing of codes."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from division.kernels.reference import quantize as q
from tests.codecs import naive

#: Every finite bfloat16, in order.
BF16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
BF16 = BF16[BF16.isfinite()].unique()


def test_directed_rounding_of_every_bfloat16_is_itself() -> None:
    assert torch.equal(q.round_down(BF16), BF16)
    positive = BF16[BF16 >= 0].abs()
    assert torch.equal(q.round_up(positive), positive)
    assert torch.equal(q.to_bf16(BF16), BF16.to(torch.bfloat16))


def test_directed_rounding_between_two_bfloat16s() -> None:
    below, above = BF16[:-1], BF16[1:]
    for x in (torch.nextafter(below, above), torch.nextafter(above, below), below / 2 + above / 2):
        inside = (x > below) & (x < above)
        assert int(inside.sum()) > 60000
        assert torch.equal(q.round_down(x)[inside], below[inside])
        positive = inside & (below >= 0)
        assert torch.equal(q.round_up(x[positive]), above[positive])


def test_directed_rounding_at_the_edges() -> None:
    x = torch.tensor([-0.0, 0.0, math.inf, -math.inf, math.nan, torch.finfo(torch.float32).max])
    down = q.round_down(x)
    assert down[:4].tolist() == [0.0, 0.0, math.inf, -math.inf]
    assert not torch.signbit(down[:2]).any()
    assert down[4].isnan()
    assert float(down[5]) == torch.finfo(torch.bfloat16).max
    assert float(q.round_up(x[5:])) == math.inf
    assert float(q.round_up(torch.tensor([2.0**-149]))) == 2.0**-133


@settings(max_examples=60)
@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100),
        min_size=1,
        max_size=9,
    ),
    bits=st.integers(1, 16),
    seed=st.integers(0, 2**20),
)
def test_quantize_is_the_definition(values: list[float], bits: int, seed: int) -> None:
    x = torch.tensor([values], dtype=torch.float32)
    u = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).clamp_(2.0**-17, 1 - 2.0**-17)
    slow = naive.quantize(list(x[0].numpy()), bits, list(u[0].numpy()))
    coded = q.quantize(x.clone(), torch.tensor([True]), bits, u.clone())
    assert coded.codes[0].tolist() == slow.codes
    assert [float(coded.offset), float(coded.step)] == [float(slow.offset), float(slow.step)]


def test_codes_are_monotonic_and_reach_both_ends() -> None:
    x = torch.linspace(-3, 5, 1000)[None]
    for bits in range(1, 17):
        coded = q.quantize(x.clone(), torch.tensor([True]), bits, torch.full_like(x, 0.5))
        codes = coded.codes[0].tolist()
        assert all(a <= b for a, b in pairwise(codes))
        assert codes[0] == 0
        assert 0.98 * (2**bits - 1) <= codes[-1] <= 2**bits - 1
        assert float(coded.offset) <= -3
        assert float(coded.offset + (2**bits - 1) * coded.step) >= 5


def test_a_row_that_is_not_finite() -> None:
    x = torch.tensor([[1.0, math.nan], [1.0, 2.0], [math.inf, 0.0]])
    coded = q.quantize(x, x.isfinite().all(1), 2, torch.full_like(x, 0.5))
    assert coded.codes.tolist() == [[0, 0], [0, 3], [0, 0]]
    assert coded.offset.isnan().tolist() == coded.step.isnan().tolist() == [True, False, True]


@settings(max_examples=80)
@given(data=st.data(), bits=st.integers(1, 16), rows=st.integers(0, 4), elements=st.integers(0, 40))
def test_packing_is_a_bit_stream(data: st.DataObject, bits: int, rows: int, elements: int) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    wide = torch.randint(2**bits, (rows, elements + 3), generator=generator, dtype=torch.int32)
    for codes in (wide[:, :elements], wide[:, 3:].t().contiguous().t()):
        packed = q.pack_codes(codes, bits)
        assert packed.shape == (rows, q.code_bytes(elements, bits))
        assert packed.dtype == torch.uint8
        for row, stream in zip(codes.tolist(), packed.tolist(), strict=True):
            assert bytes(stream) == naive.packed(row, bits)
        assert torch.equal(q.unpack_codes(packed, elements, bits).to(torch.int32), codes)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_column_of_any_stride_is_packed(rows: int) -> None:
    codes = torch.arange(300, 306, dtype=torch.int32).view(3, 2)[:rows, :1]
    for own in (codes, codes.t().contiguous().t(), codes.as_strided((rows, 1), (1, 2))):
        assert q.pack_codes(own, 16).view(torch.int16).tolist() == own.tolist()


@pytest.mark.parametrize(
    ("elements", "bits", "size"), [(0, 3, 0), (1, 1, 1), (8, 1, 1), (9, 1, 2), (3, 11, 5), (5, 16, 10)]
)
def test_code_bytes(elements: int, bits: int, size: int) -> None:
    assert q.code_bytes(elements, bits) == size
