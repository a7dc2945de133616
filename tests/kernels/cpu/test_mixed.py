"""The C++ bodies of the mixed codec's ops."""

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs.layout import dense_stride
from division.kernels import ops
from division.kernels.cpu import library, mixed
from division.kernels.reference import mixed as reference
from tests.kernels.cpu.agree import COMPILED, FLOATS, LAYOUTS, assert_same, by_all, laid_out, needs_compiled
from tests.kernels.cpu.guard import guarded_copy
from tests.kernels.cpu.test_group import KINDS, seeds, tensor


def check(x: Tensor, group: int, total: int, seed: int) -> None:
    code = by_all("mixed_encode", x, group, total, seed)
    by_all("mixed_decode", *code, list(x.shape), list(dense_stride(x.shape, x.stride())), x.dtype, group)


@needs_compiled
@settings(max_examples=150)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 5, 7, 16, 17, 33, 64]), min_size=1, max_size=4).filter(
        lambda s: prod(s) <= 8000
    ),
    dtype=st.sampled_from(FLOATS),
    layout=st.sampled_from(LAYOUTS),
    kind=st.sampled_from(KINDS),
    group=st.sampled_from([16, 32, 48, 240, 256, 4096]),
    share=st.floats(0, 1),
    seed=seeds,
)
def test_equal_to_the_reference(
    shape: list[int], dtype: torch.dtype, layout: str, kind: str, group: int, share: float, seed: int
) -> None:
    x = tensor(tuple(shape), dtype, layout, kind, seed)
    check(x * torch.arange(1, len(x) + 1).view(-1, *[1] * (x.dim() - 1)), group, len(x) + int(7 * len(x) * share), seed)


@needs_compiled
@pytest.mark.parametrize("width", range(1, 9))
def test_every_width(width: int) -> None:
    for elements in (1, 63, 1000):
        check(torch.randn(3, elements), 256, 3 * width, 5)


@needs_compiled
@pytest.mark.parametrize("dtype", library.TYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "every other"])
def test_large_samples(layout: str, dtype: torch.dtype) -> None:
    check(tensor((2, 9, 70, 401), dtype, layout, "normal", 1), 256, 5, 5)


@needs_compiled
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_threads_make_no_difference(layout: str) -> None:
    x = laid_out(torch.randn(3, 31, 47, 91), layout)
    place = list(x.shape), list(x.stride()), x.dtype, 256
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            code = ops.call("mixed_encode")(x, 256, 8, 5)
            found.append((*code, ops.call("mixed_decode")(*code, *place)))
    finally:
        torch.set_num_threads(before)
    for one, several in zip(*found, strict=True):
        assert_same(one, several)


@needs_compiled
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(5, 7), (3, 64), (2, 65), (300, 9), (1, 4097), (65, 33)])
def test_touches_no_memory_beyond_its_tensors(
    name: str, dtype: torch.dtype, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = guarded_copy(torch.randn(shape).to(dtype))
    total = 5 * shape[0] // 2
    with library.forced("reference"):
        expected = mixed.mixed_encode(x, 32, total, 3)
        back = mixed.mixed_decode(*expected, shape, x.stride(), dtype, 32)
    empty_code, empty_samples = reference.empty_code, reference.empty_samples
    monkeypatch.setattr(reference, "empty_code", lambda *a: tuple(map(guarded_copy, empty_code(*a))))
    monkeypatch.setattr(reference, "empty_samples", lambda *a: guarded_copy(empty_samples(*a)))
    with library.forced(name):
        for found, wanted in zip(mixed.mixed_encode(x, 32, total, 3), expected, strict=True):
            assert_same(found, wanted)
        assert_same(mixed.mixed_decode(*map(guarded_copy, expected), shape, x.stride(), dtype, 32), back)
