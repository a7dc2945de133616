"""The C++ bodies of the group codec's ops."""

from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs.layout import dense_stride
from division.kernels import ops
from division.kernels.cpu import group, library, strided
from division.kernels.reference import group as reference
from tests.kernels.cpu.agree import (
    COMPILED,
    FLOATS,
    LAYOUTS,
    assert_same,
    by_all,
    far_apart,
    laid_out,
    needs_compiled,
)
from tests.kernels.cpu.guard import guarded_copy

KINDS = ("normal", "normal", "relu", "constant", "odd", "huge", "tiny", "greatest", "least", "-0")
widths = st.integers(1, 16) | st.sampled_from([1, 2, 4, 8])
seeds = st.integers(-(2**63), 2**63 - 1)


def tensor(shape: tuple[int, ...], dtype: torch.dtype, layout: str, kind: str, seed: int) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed % 1000))
    flat = x.view(-1)
    if kind == "relu":
        x.relu_()
    elif kind == "constant":
        x.fill_(1.2345)
    elif kind == "odd" and x.numel():
        for i, value in enumerate((float("nan"), float("inf"), -float("inf"), 0.0)):
            flat[i * 7919 % flat.numel()] = value
    elif kind in ("huge", "tiny"):
        x.mul_(3e37 if kind == "huge" else 1e-40)
    elif kind in ("greatest", "least"):
        x.fill_(torch.finfo(torch.float32).max * (1 if kind == "greatest" else -1))
    elif kind == "-0":
        x.fill_(-0.0)
    return laid_out(x.to(dtype), layout)


def check(x: Tensor, lead: int, size: int, bits: list[int], seed: int) -> None:
    code = by_all("group_encode", x, lead, size, bits, seed)
    place = list(x.shape), list(dense_stride(x.shape, x.stride())), x.dtype
    by_all("group_decode", *code, *place, lead, size, bits)


@needs_compiled
@settings(max_examples=250)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 5, 7, 16, 17, 33, 64]), max_size=4).filter(lambda s: prod(s) <= 8000),
    dtype=st.sampled_from(FLOATS),
    layout=st.sampled_from(LAYOUTS),
    kind=st.sampled_from(KINDS),
    lead=st.integers(0, 4),
    size=st.integers(1, 80) | st.sampled_from([255, 256, 1000, 4096, 10**9]),
    bits=st.lists(widths, min_size=1, max_size=64),
    seed=seeds,
)
def test_equal_to_the_reference(
    shape: list[int], dtype: torch.dtype, layout: str, kind: str, lead: int, size: int, bits: list[int], seed: int
) -> None:
    lead = min(lead, len(shape))
    each = lead > 0 and len(bits) >= shape[0]
    x = tensor(tuple(shape), dtype, layout, kind, seed)
    check(x, lead, size, bits[: shape[0]] if each else bits[:1], seed)


def side_by_side(x: Tensor, heads: int) -> Tensor:
    """Tokens ``(samples, heads, tokens, features)`` as rows of one feature each, which lie side by side in memory."""
    samples, _, tokens, features = x.shape
    joined = x.transpose(1, 2).reshape(samples, tokens, heads * features)
    return joined.unflatten(-1, (heads, features)).permute(0, 2, 3, 1)


@needs_compiled
@settings(max_examples=150)
@given(
    samples=st.integers(1, 3),
    heads=st.integers(1, 3),
    tokens=st.sampled_from([1, 2, 7, 15, 16, 17, 31, 32, 33, 49, 50, 130, 197]),
    features=st.sampled_from([7, 8, 9, 15, 16, 17, 31, 32, 48, 63, 64, 65, 80, 127, 128, 130]),
    dtype=st.sampled_from(FLOATS),
    kind=st.sampled_from(KINDS),
    size=st.sampled_from([1, 2, 5, 16, 25, 29, 32, 33, 64, 10**9]),
    bits=widths,
    seed=seeds,
)
def test_rows_side_by_side(
    samples: int, heads: int, tokens: int, features: int, dtype: torch.dtype, kind: str, size: int, bits: int, seed: int
) -> None:
    x = tensor((samples, heads, tokens, features), dtype, "contiguous", kind, seed)
    check(side_by_side(x, heads), 3, size, [bits], seed)


@needs_compiled
@pytest.mark.parametrize("dtype", library.TYPES, ids=str)
@pytest.mark.parametrize("kind", ["normal", "odd"])
@pytest.mark.parametrize(
    ("shape", "lead", "size", "layout"),
    [
        ((1, 100_003), 0, 10**9, "contiguous"),  # one group, in pieces
        ((2, 3, 70, 400), 1, 10**9, "channels_last"),  # two, brought together
        ((90_000,), 0, 33_333, "every other"),
        ((2, 120_000), 1, 1001, "contiguous"),  # groups that end anywhere within a byte
        ((2, 40, 48, 48), 1, 256, "channels_last"),  # whole lines at a time
        ((5, 9, 9, 9), 2, 10**9, "channels_last"),
        ((4, 8, 65, 65), 1, 1001, "channels_last"),  # whole rows at a time, in a pass after the ranges
        ((3, 50, 7, 7), 2, 10**9, "contiguous"),
        ((400, 3), 1, 2, "contiguous"),
    ],
)
def test_large_groups_and_many_rows(
    shape: tuple[int, ...], lead: int, size: int, layout: str, kind: str, dtype: torch.dtype
) -> None:
    check(tensor(shape, dtype, layout, kind, 1), lead, size, [2], 5)


@needs_compiled
@pytest.mark.parametrize("bits", range(1, 17))
def test_every_width(bits: int) -> None:
    check(torch.randn(3, 1000), 1, 256, [bits], 5)
    check(torch.randn(3, 1000), 1, 33, [bits, 17 - bits, bits], 6)


@needs_compiled
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("size", [256, 1001, 10**9])
def test_threads_make_no_difference(size: int, layout: str) -> None:
    """Groups shared by threads, and bytes where the codes of neighbours meet."""
    x = laid_out(torch.randn(2, 31, 47, 90), layout)
    place = list(x.shape), list(x.stride()), x.dtype, 1, size, [3]
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            code = ops.call("group_encode")(x, 1, size, [3], 5)
            found.append((*code, ops.call("group_decode")(*code, *place)))
    finally:
        torch.set_num_threads(before)
    for one, several in zip(*found, strict=True):
        assert_same(one, several)


@needs_compiled
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("shape", "lead", "size", "bits"),
    [
        ((5, 7), 1, 3, 3), ((3, 64), 1, 64, 2), ((2, 65), 1, 256, 1), ((700, 9), 1, 9, 16), ((1, 4097), 0, 256, 13),
        ((17, 7), 1, 3, 2), ((65, 33), 1, 32, 2), ((16, 49), 1, 25, 8), ((130, 5), 1, 5, 4), ((64, 3), 1, 2, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_touches_no_memory_beyond_its_tensors(
    name: str, dtype: torch.dtype, shape: tuple[int, int], lead: int, size: int, bits: int, turned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    x = guarded_copy(torch.randn(shape[::-1]).to(dtype).t() if turned else torch.randn(shape).to(dtype))
    place = shape, x.stride(), dtype, lead, size, (bits,)
    empty_code, empty_rows = reference.empty_code, reference.empty_rows
    with library.forced("reference"):
        expected = group.group_encode(x, lead, size, (bits,), 3)
        back = group.group_decode(*expected, *place)
    monkeypatch.setattr(reference, "empty_code", lambda *a: tuple(map(guarded_copy, empty_code(*a))))
    monkeypatch.setattr(reference, "empty_rows", lambda *a: guarded_copy(empty_rows(*a)))
    with library.forced(name):
        for found, wanted in zip(group.group_encode(x, lead, size, (bits,), 3), expected, strict=True):
            assert_same(found, wanted)
        assert_same(group.group_decode(*map(guarded_copy, expected), *place), back)


@needs_compiled
@pytest.mark.parametrize("name", COMPILED)
def test_offsets_beyond_two_to_the_31(name: str) -> None:
    near = torch.randn(2, 300).to(torch.bfloat16)
    with library.forced(name):
        for lead in (0, 1):
            code = ops.call("group_encode")(near, lead, 100, [2], 5)
            for found, expected in zip(
                ops.call("group_encode")(far_apart(near, 0), lead, 100, [2], 5), code, strict=True
            ):
                assert_same(found, expected)
            out = far_apart(torch.zeros_like(near), 0)
            decode: Any = library.function("group_decode")
            rows = library.numbers((1 + lead, 300 * (2 - lead), 100, 1, 2))
            left = decode(
                *map(library.pointer, code), rows, library.TYPES[out.dtype],
                strided.shape(out.shape, out.stride()), library.pointer(out),
            )  # fmt: skip
            assert left == 0
            back = ops.call("group_decode")(*code, [2, 300], [300, 1], torch.bfloat16, lead, 100, [2])
            assert torch.equal(out, back)
