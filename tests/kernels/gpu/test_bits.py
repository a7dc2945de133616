"""The Triton bodies of bits, intervals and masks, in the interpreter: the bits of the reference."""

import importlib
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.kernels.reference import bits as reference
from tests.kernels.gpu.same import same
from tests.kernels.gpu.views import FLOATS, far, layouts, shapes, view

triton = pytest.importorskip("triton", reason="triton is not installed")
tl = importlib.import_module("triton.language")
bits = importlib.import_module("division.kernels.gpu.bits")
address = importlib.import_module("division.kernels.gpu.address")

DTYPES = (*FLOATS, torch.float64)
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 6.0, 0.1, 0.100001, -1.0, 1e-45)
RULES = (
    (0.0, math.inf, False, False, True),
    (0.1, 6.0, True, True, False),
    (-math.inf, 0.1, False, True, True),
    (-1.0, math.inf, True, False, False),
    (0.1, 0.1, True, True, True),
)
#: Shapes in channels_last: planes of whole bytes, and planes of which 2, 4 or 8 make whole bytes.
PLANES = ((2, 16, 8, 2), (1, 16, 14, 14), (1, 35, 4, 4), (2, 64, 7, 7), (1, 32, 3, 2, 5))


def values(size: list[int], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    special = torch.tensor(SPECIAL, dtype=torch.float64)[torch.randint(len(SPECIAL), size, generator=generator)]
    return torch.where(torch.rand(size, generator=generator) < 0.3, special, x).to(dtype)


def channels_last(x: Tensor) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def check(x: Tensor, rule: tuple[float, float, bool, bool, bool]) -> None:
    """All three kinds, both ways, against the reference."""
    size, stride = x.shape, torch.empty_like(x).stride()
    codes = reference.bits_encode(x, *rule)
    assert same(bits.bits_encode(x, *rule), codes)
    decode = (codes, size, stride, x.dtype, 1.1, -0.0)
    assert same(bits.bits_decode(*decode), reference.bits_decode(*decode))
    codes = reference.interval_encode(x, *rule[:2])
    assert same(bits.interval_encode(x, *rule[:2]), codes)
    ends = (codes, size, stride, x.dtype, [-1.0, 0.1, 6.0, math.nan])
    assert same(bits.interval_decode(*ends), reference.interval_decode(*ends))
    for mask, one in ((x, torch.full((1, 1), 1.25, dtype=x.dtype)), (x > 0, torch.ones(1, dtype=torch.bool))):
        codes = reference.mask_encode(mask)
        assert same(bits.mask_encode(mask), codes)
        assert same(bits.mask_decode(codes, one, size, stride), reference.mask_decode(codes, one, size, stride))


@settings(max_examples=60)
@given(
    data=st.data(), size=shapes(), dtype=st.sampled_from(DTYPES), rule=st.sampled_from(RULES), seed=st.integers(0, 99)
)
def test_codes_are_those_of_the_reference(
    data: st.DataObject, size: list[int], dtype: torch.dtype, rule: tuple[float, float, bool, bool, bool], seed: int
) -> None:
    check(view(values(size, dtype, seed), *data.draw(layouts(len(size)))), rule)


@pytest.mark.parametrize("size", PLANES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_planes(size: tuple[int, ...], dtype: torch.dtype) -> None:
    x = channels_last(values(list(size), dtype, 1))
    plan = address.plan(x.shape, x.stride(), 8, x.itemsize)
    assert plan.planes
    check(x, RULES[0])


@pytest.mark.parametrize("count", [4095, 4096, 4097, 8192, 12300])
def test_more_than_one_program(count: int) -> None:
    check(values([count], torch.float32, count), RULES[1])
    check(channels_last(values([2, 8, count // 64, 3], torch.bfloat16, count)), RULES[2])


def test_known_answers() -> None:
    x = torch.tensor([-2.0, 0.0, 3.0, math.nan, 6.0, 7.0, -0.0, math.inf, 1.0])
    assert bits.bits_encode(x, 0.0, math.inf, False, False, True).tolist() == [0b10111100, 1]
    assert bits.bits_encode(x, 0.0, 6.0, True, True, False).tolist() == [0b01010110, 1]
    assert bits.interval_encode(x, 0.0, 6.0).tolist() == [0b11011000, 0b00100010, 1]
    assert bits.mask_encode(x).tolist() == [0b10111101, 1]
    codes = torch.tensor([0b101], dtype=torch.uint8)
    assert bits.bits_decode(codes, [3], [1], torch.bfloat16, 2.0, -1.0).tolist() == [2.0, -1.0, 2.0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("bound", [0.1, 1 + 2**-8 + 2**-40, -1 - 2**-11, 65519.9, 65520.0, -1e39, 2**-25])
def test_bounds_are_compared_in_the_tensors_own_dtype(dtype: torch.dtype, bound: float) -> None:
    held = torch.tensor(bound, dtype=torch.float64).to(dtype)
    steps = torch.arange(-2, 3, dtype=torch.int32)
    kind = torch.int32 if dtype == torch.float32 else torch.int16
    x = (held.view(kind) + steps.to(kind)).view(dtype)
    for closed in (False, True):
        rule = (bound, math.inf, closed, False, False)
        assert same(bits.bits_encode(x, *rule), reference.bits_encode(x, *rule))
        rule = (-math.inf, bound, False, closed, True)
        assert same(bits.bits_encode(x, *rule), reference.bits_encode(x, *rule))
    assert same(bits.interval_encode(x, bound, math.inf), reference.interval_encode(x, bound, math.inf))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_masks_of_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, -128, 127, 0, 64, -1, 0, 0, 3]).to(dtype)
    assert same(bits.mask_encode(x), reference.mask_encode(x))
    codes = reference.mask_encode(x)
    one = torch.tensor([77], dtype=dtype)
    assert same(bits.mask_decode(codes, one, [2, 5], [1, 2]), reference.mask_decode(codes, one, [2, 5], [1, 2]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.complex64], ids=str)
def test_bits_decode_to_any_dtype(dtype: torch.dtype) -> None:
    arguments = (torch.tensor([0b0110, 1], dtype=torch.uint8), [9], [1], dtype, 7.0, -3.0)
    assert torch.equal(bits.bits_decode(*arguments), reference.bits_decode(*arguments))


CODES = torch.tensor([0b10110], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bits_encode", (torch.zeros(0, 3), *RULES[0])),
        ("mask_encode", (torch.zeros(1, dtype=torch.bool).expand(4, 4),)),
        ("mask_encode", (torch.arange(64.0).view([2] * 6).permute(1, 3, 5, 0, 2, 4),)),
        ("bits_decode", (CODES, [5], [1], torch.complex128, 1.0, 0.0)),
        ("bits_decode", (CODES, [], [], torch.float32, 1.0, 0.0)),
        ("interval_decode", (torch.zeros(0, dtype=torch.uint8), [3, 0], [1, 1], torch.float32, [0.0, 1.0, 2.0, 3.0])),
    ],
)
def test_what_is_rare_is_right_too(name: str, arguments: tuple[Any, ...]) -> None:
    got, expected = getattr(bits, name)(*arguments), getattr(reference, name)(*arguments)
    assert got.stride() == expected.stride()
    assert torch.equal(got, expected)


def test_elements_more_than_two_to_the_31_apart() -> None:
    x = far(values([2, 3, 5], torch.bfloat16, 3))
    check(x, RULES[0])
    assert x.stride(0) > 2**31
    x = far(channels_last(values([2, 8, 4, 2], torch.float16, 4)))
    assert address.plan(x.shape, x.stride(), 8, 2).planes
    check(x, RULES[1])


@triton.jit
def spots_kernel(
    out: Any, byte: Any, n0: Any, n1: Any, s0: Any, s1: Any, s2: Any,
    dims: tl.constexpr, even: tl.constexpr, wide: tl.constexpr,  # type: ignore[name-defined]
) -> None:  # fmt: skip
    """Where the elements of two bytes lie."""
    at = address.of_bytes(byte.to(tl.int64) + tl.arange(0, 2), (n0, n1), (s0, s1, s2), dims, even, wide, 8)
    tl.store(out + tl.arange(0, 2)[:, None] * 8 + tl.arange(0, 8)[None, :], at)


@pytest.mark.parametrize(
    ("size", "stride"),
    [
        ((2**40,), (1,)),
        ((2**32,), (3,)),
        ((2**16, 2**16 + 8), (2**17, 1)),
        ((2**11, 2**11 + 1, 2**11 + 3), (7, 2**34, 2**12)),
    ],
)
def test_more_than_two_to_the_31_elements(size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    plan = address.plan(size, stride, 8, 4)
    assert not plan.planes
    assert plan.arguments["count"] == math.prod(size)
    given = {name: plan.arguments[name] for name in ("n0", "n1", "s0", "s1", "s2")}
    for byte in (0, 2**28 - 1, 2**28, math.prod(size) // 8 - 2):
        out = torch.zeros(16, dtype=torch.int64)
        spots_kernel[1,](out, byte, **given, **{name: plan.constants[name] for name in ("dims", "even", "wide")})
        expected = []
        for e in range(byte * 8, byte * 8 + 16):
            at, rest = 0, e
            for n, s in zip(reversed(size), reversed(stride), strict=True):
                at, rest = at + rest % n * s, rest // n
            expected.append(at)
        assert out.tolist() == expected
