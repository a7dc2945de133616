"""The group codec against its definition, its formula, and the edges of the number formats."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs import Group, from_config
from division.kernels.cpu import library
from division.kernels.reference import chunks
from tests.codecs import contract, naive, statistics
from tests.codecs.contract import decode, encode, same_bits, same_code


def rows_of(x: Tensor, codec: Group) -> Tensor:
    """``[rows, elements]``: what the docstring calls rows."""
    axis = codec.axis
    if isinstance(axis, int):
        if codec.span is None:
            return x.movedim(axis, -1).reshape(-1, x.shape[axis])
        axis %= x.dim()
        if codec.interleaved:
            return x.unflatten(axis, (codec.span, -1)).movedim(axis, -1).reshape(-1, codec.span)
        return x.unflatten(axis, (-1, codec.span)).movedim(axis + 1, -1).reshape(-1, codec.span)
    if isinstance(axis, tuple):
        return x.movedim(axis, tuple(range(-len(axis), 0))).reshape(-1, math.prod(x.shape[d] for d in axis))
    lead = ("tensor", "sample", "plane").index(axis)
    return x.reshape(math.prod(x.shape[:lead]), math.prod(x.shape[lead:]))


def widths_of(rows: int, bits: int | tuple[int, ...]) -> list[int]:
    widths = bits if isinstance(bits, tuple) else (bits,)
    return [b for b in widths for _ in range(rows // len(widths))]


def check_against_naive(x: Tensor, codec: Group, seed: int) -> None:
    packed = encode(codec, x, seed)
    rows = rows_of(x, codec).to(torch.float32).numpy()
    out = rows_of(decode(codec, packed, torch.float32), codec).numpy()
    size = codec.size or rows.shape[1]
    stream = b""
    for r, (row, bits) in enumerate(zip(rows, widths_of(len(rows), codec.bits), strict=True)):
        codes: list[int] = []
        for g, start in enumerate(range(0, len(row), size)):
            group = row[start : start + size]
            with np.errstate(all="ignore"):
                slow = naive.quantize(group, bits, [naive.noise(seed, r, start + e) for e in range(len(group))])
                decoded = [np.float32(np.float32(c * slow.step) + slow.offset) for c in slow.codes]
            np.testing.assert_array_equal(packed.parts[1][r, g].float().numpy(), [slow.offset, slow.step])
            np.testing.assert_array_equal(out[r, start : start + size], decoded)
            codes += slow.codes
        stream += naive.packed(codes, bits)
    assert bytes(packed.parts[0].tolist()) == stream


axes = st.one_of(st.sampled_from(["tensor", "sample", "plane"]), st.integers(-4, 3))


@settings(max_examples=50)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    axis=axes,
    bits=st.integers(1, 16),
    size=st.one_of(st.none(), st.integers(1, 40)),
    seed=st.integers(-(2**63), 2**63 - 1),
    dtype=st.sampled_from(contract.FLOATS),
)
def test_codes_are_those_of_the_definition(
    shape: list[int], axis: str | int, bits: int, size: int | None, seed: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed % 2**32)
    x = torch.randn(shape, dtype=torch.float64).to(dtype)
    codec = Group(bits, size, axis)
    if codec.why_not(x) is None:
        check_against_naive(x, codec, seed)
    else:
        needed = {"tensor": 0, "sample": 1, "plane": 2}[axis] if isinstance(axis, str) else max(axis + 1, -axis)
        assert len(shape) < needed


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    order=st.permutations(range(4)),
    count=st.integers(1, 3),
    size=st.one_of(st.none(), st.integers(1, 40)),
)
def test_rows_along_several_dims(shape: list[int], order: list[int], count: int, size: int | None) -> None:
    axis = tuple(d for d in order if d < len(shape))[:count]
    x, codec = torch.randn(shape), Group(2, size, axis)
    check_against_naive(x, codec, 5)
    assert encode(codec, x).nbytes == codec.packed_bytes(shape, x.dtype)
    contract.check_value(codec)
    contract.check_layouts(codec, x)


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    dim=st.integers(0, 2),
    span=st.integers(1, 7),
    size=st.one_of(st.none(), st.integers(1, 10)),
)
def test_a_span_cuts_a_dim_into_rows(shape: list[int], dim: int, span: int, size: int | None) -> None:
    dim %= len(shape)
    shape[dim] *= span
    x, codec = torch.randn(shape), Group(2, size, dim, span)
    check_against_naive(x, codec, 5)
    split = x.unflatten(dim, (-1, span))
    assert same_code(encode(codec, x, 3), encode(Group(2, size, dim + 1), split, 3))
    contract.check_value(codec)
    contract.check_layouts(codec, x)


@settings(max_examples=12)
@given(
    widths=st.lists(st.integers(1, 16), min_size=1, max_size=5).map(tuple),
    axis=st.sampled_from(["sample", "plane", 1, 2, -1]),
    size=st.one_of(st.none(), st.integers(1, 20)),
)
def test_a_width_for_each_sample(widths: tuple[int, ...], axis: str | int, size: int | None) -> None:
    x = torch.randn(len(widths), 3, 5)
    codec = Group(widths, size, axis)
    assert codec.why_not(x) is None
    check_against_naive(x, codec, 3)
    assert encode(codec, x).nbytes == codec.packed_bytes(x.shape, x.dtype)
    contract.check_value(codec)
    contract.check_layouts(codec, x)


@settings(max_examples=12)
@given(
    widths=st.lists(st.integers(1, 16), min_size=1, max_size=5).map(tuple),
    axis=st.sampled_from([(0, 2, 3), (0, -1), (2, 0), 0, -4]),
    size=st.one_of(st.none(), st.integers(1, 20)),
)
def test_a_width_for_each_channel(widths: tuple[int, ...], axis: int | tuple[int, ...], size: int | None) -> None:
    x = torch.randn(3, len(widths), 2, 5)
    codec = Group(widths, size, axis)
    assert codec.why_not(x) is None
    code = encode(codec, x, 3)
    assert code.nbytes == codec.packed_bytes(x.shape, x.dtype)
    order = [d for d in range(4) if d not in [a % 4 for a in codec._dims]]
    moved = x.permute(*order, *[a % 4 for a in codec._dims])
    lead = "sample" if len(order) == 1 else tuple(range(len(order), 4))
    assert same_code(code, encode(Group(widths, size, lead), moved, 3))
    contract.check_value(codec)
    contract.check_layouts(codec, x)


def test_equal_widths_are_one_width() -> None:
    x = torch.randn(3, 4, 5)
    assert same_code(encode(Group((4, 4, 4), 7), x, 2), encode(Group(4, 7), x, 2))


@settings(max_examples=50)
@given(
    shape=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    axis=axes,
    bits=st.integers(1, 16),
    size=st.one_of(st.none(), st.integers(1, 40)),
)
def test_packed_bytes(shape: list[int], axis: str | int, bits: int, size: int | None) -> None:
    x, codec = torch.randn(shape), Group(bits, size, axis)
    if codec.why_not(x) is not None:
        return
    if isinstance(axis, int):
        elements = shape[axis]
        rows = math.prod(shape[: axis % len(shape)]) * math.prod(shape[axis % len(shape) + 1 :])
    else:
        lead = ("tensor", "sample", "plane").index(axis)
        rows, elements = math.prod(shape[:lead]), math.prod(shape[lead:])
    groups = math.ceil(elements / (size or elements or 1))
    expected = rows * (math.ceil(elements * bits / 8) + 4 * groups)
    assert encode(codec, x).nbytes == codec.packed_bytes(shape, x.dtype) == expected


@pytest.mark.parametrize("bits", [1, 2, 5, 8, 16])
def test_constant_groups(bits: int) -> None:
    """Exact in 16-bit dtypes; in float32 two bfloat16 parts hold what they hold, and the error stays under a step."""
    torch.manual_seed(5)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        values = torch.randn(200, 1, dtype=torch.float64) * 2.0 ** torch.randint(-10, 11, (200, 1))
        values[:2] = torch.tensor([[0.0], [-0.0]])
        x = values.to(dtype).repeat(1, 9)
        codec = Group(bits, 4)
        out = decode(codec, encode(codec, x))
        if dtype == torch.float32:
            statistics.check_bounded(codec, x, 0)
        else:
            assert torch.equal(out, x)
        assert not torch.signbit(out[1]).any()
    zero = torch.zeros(2, 9)
    assert same_code(encode(Group(bits, 4), -zero), encode(Group(bits, 4), zero))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", contract.FLOATS, ids=str)
@pytest.mark.parametrize("where", [(0, 0), (1, 12), (2, 29)])
def test_a_group_with_a_value_that_is_not_finite_decodes_to_nan(
    value: float, dtype: torch.dtype, where: tuple[int, int]
) -> None:
    codec, x = Group(3, 8), torch.randn(3, 30).to(dtype)
    plain = decode(codec, encode(codec, x, 1))
    x[where] = value
    out = decode(codec, encode(codec, x, 1))
    group = (where[0], slice(where[1] // 8 * 8, where[1] // 8 * 8 + 8))
    assert out[group].isnan().all()
    out[group] = plain[group]
    assert same_bits(out, plain)


@pytest.mark.parametrize("bits", [1, 2, 8, 16])
def test_the_largest_values_stay_finite(bits: int) -> None:
    """All of float16; elsewhere as long as the range of a group is one of float32 (then NaN: see below)."""
    codec = Group(bits, 64)
    for dtype, largest in ((torch.float16, 65504.0), (torch.bfloat16, 2.0**126), (torch.float32, 2.0**126)):
        for low in (-1.0, 0.0):
            x = torch.linspace(low, 1, 200, dtype=torch.float64).mul(largest).to(dtype).view(2, 100)
            assert decode(codec, encode(codec, x)).isfinite().all()
    beyond = torch.tensor([[-3e38, 3e38, 0.0, 1.0]])
    assert decode(codec, encode(codec, beyond)).isnan().all()


def test_an_outlier_costs_its_own_group_alone() -> None:
    x = torch.randn(1, 256 * 8)
    x[0, 700] = 6e4
    error = (decode(Group(4, 256), encode(Group(4, 256), x)) - x).abs().view(8, 256).amax(1)
    assert bool((torch.cat((error[:2], error[3:])) < 8 / 15).all())


@library.forced("reference")
def test_codes_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for codec in (*Group.examples(), Group((3, 11, 16, 2), 7, "plane")):
        assert isinstance(codec, Group)
        x = torch.randn(4, 3, 5, 6)
        whole = encode(codec, x, 6)
        out = decode(codec, whole)
        for limit in (1, 31, 121):
            monkeypatch.setattr(chunks, "_CPU_ELEMENTS", limit)
            for moved in (x, x.transpose(0, 2).contiguous().transpose(0, 2)):
                assert same_code(encode(codec, moved, 6), whole), (codec, limit)
            assert same_bits(decode(codec, whole), out)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Group(bits=0), "got bits=0 for group, expected integers from 1 to 16"),
        (lambda: Group(bits=17), "got bits=17"),
        (lambda: Group(bits=()), r"got bits=\(\)"),
        (lambda: Group(bits=(2, 2.5)), r"got bits=\(2, 2.5\)"),  # type: ignore[arg-type]
        (lambda: Group(size=0), "got size=0"),
        (lambda: Group(size=2.5), "got size=2.5"),  # type: ignore[arg-type]
        (lambda: Group(axis="row"), "got axis='row', expected one of .*, the number of a dim or several"),
        (lambda: Group(axis=()), r"got axis=\(\), expected one of"),
        (lambda: Group(axis=(1, "plane")), "got axis="),  # type: ignore[arg-type]
        (lambda: Group(span=4), "got span=4 with axis='sample', expected None, or an integer"),
        (lambda: Group(axis=0, span=0), "got span=0 with axis=0"),
        (lambda: Group(bits=(2, 4), axis="tensor"), "got several widths with axis='tensor'"),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Group], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_what_it_takes() -> None:
    x = torch.zeros(3, 3)
    assert Group().why_not(x.to(torch.int64)) == "dtype torch.int64"
    assert Group(axis=2).why_not(x) == "2 dims, too few for axis 2"
    assert Group(axis=-3).why_not(x) == "2 dims, too few for axis -3"
    assert Group().why_not(torch.zeros(())) == "0 dims, too few for axis 'sample'"
    assert Group((2, 4)).why_not(x) == "3 rows to have a width each, and 2 bit widths"
    assert Group((2, 4, 8), axis=-2).why_not(x[:2]) is None
    assert Group((2, 4), axis=-2).why_not(x[:2]) == "3 rows to have a width each, and 2 bit widths"
    assert Group((2, 4, 8), axis=(0, 1)).why_not(x) == "no rows to have a width each, and 3 bit widths"
    assert Group((2, 4, 8), axis=-1).why_not(x) is None
    assert Group(axis=(0, 2)).why_not(x) == "2 dims, too few for axis (0, 2)"
    assert Group(axis=(0, -2)).why_not(x) == "axis (0, -2) names a dim twice"
    assert Group(axis=0, span=2).why_not(x) == "3 indices in dim 0, no multiple of span 2"
    assert Group().why_not(torch.zeros(3, 1).expand(3, 3)) == "overlapping layout"


def test_widths_survive_json() -> None:
    assert from_config({"codec": "group", "bits": [2, 4], "size": None, "axis": "sample"}) == Group((2, 4), None)
