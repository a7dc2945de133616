"""The C++ bodies of the dual codec: bit for bit the reference, in every layout, within their own memory."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs.layout import dense_stride
from division.kernels import ops
from division.kernels.cpu import dual, library
from division.kernels.reference import dual as reference
from tests.kernels.cpu.guard import guarded, guarded_copy

encode, decode = ops.call("dual_encode"), ops.call("dual_decode")
COMPILED = library.RUNNABLE[1:]
LAYOUTS = ("contiguous", "channels_last", "reversed", "gapped rows", "gapped channels", "every other")
SPECIAL = (
    "normal", "relu", "constant", "inf", "nan", "-0", "huge", "tiny", "greatest", "one odd element", "edges", "edges, nan",
)  # fmt: skip


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values, stored in another way."""
    if layout == "channels_last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "reversed":
        dims = tuple(reversed(range(x.dim())))
        return x.permute(dims).contiguous().permute(dims)
    if layout == "gapped rows":
        return torch.cat([x, x], -1)[..., : x.shape[-1]]
    if layout == "gapped channels":
        return torch.cat([x, x], 1).movedim(1, -1).contiguous().movedim(-1, 1)[:, : x.shape[1]]
    if layout == "every other":
        return x.repeat_interleave(2, -1)[..., ::2]
    return x


def filled(x: Tensor, kind: str) -> Tensor:
    """``x``, standard normal, changed into what the name says."""
    flat = x.view(-1)
    if kind == "relu":
        return x.relu_()
    if kind == "constant":
        x[:, :1] = 1.2345
    elif kind in ("inf", "nan"):
        flat[flat.numel() // 2] = float(kind)
    elif kind == "-0":
        return x.fill_(-0.0)
    elif kind == "huge":  # sums overflow, and ranges
        return x.mul_(3e38).clamp_(-3.4e38, 3.4e38)
    elif kind == "tiny":
        return x.mul_(1e-40)
    elif kind == "greatest":
        return x.fill_(torch.finfo(torch.float32).max)
    elif kind == "one odd element":
        x.fill_(7.0)
        flat[-1] = -3.0
    elif kind.startswith("edges"):  # of float16 or bfloat16: what is decoded reaches beyond them
        edge = 65504.0 if flat.numel() % 2 else 3.3895313892515355e38
        x.sign_().mul_(edge)
        if kind.endswith("nan"):  # in one plane of several
            x[:, :: 2 + flat.numel() % 3] = float("nan")
    return x


def place(x: Tensor) -> tuple[list[int], list[int], torch.dtype]:
    return list(x.shape), list(dense_stride(x.shape, x.stride())), x.dtype


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal in dtype, shape, strides and bits, but that one NaN is as good as another."""
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    if found.dtype.is_floating_point:
        assert torch.equal(found.isnan(), expected.isnan())
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.dtype.itemsize]
        found, expected = (
            x.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf).view(bits) for x in (found, expected)
        )
    assert torch.equal(found, expected)


def assert_all_bodies_agree(x: Tensor, block: int, bits: int, seed: int) -> None:
    with library.forced("reference"):
        code = encode(x, block, bits, seed)
        back = decode(*code, *place(x), block, bits)
    for name in COMPILED:
        with library.forced(name):
            for found, expected in zip(encode(x, block, bits, seed), code, strict=True):
                assert_same(found, expected)
            assert_same(decode(*code, *place(x), block, bits), back)


sizes = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 13, 14, 16, 17, 24, 28, 31, 33, 40, 56])
spatial = st.one_of(
    st.tuples(sizes),
    st.tuples(sizes, sizes),
    st.tuples(*[st.integers(1, 9)] * 3),
    st.sampled_from([(300, 1), (2, 700), (5000,), (2, 2300), (2061,), (136, 9), (300, 3)]),
)


@pytest.mark.skipif(not COMPILED, reason="the compiled library is missing")
@settings(max_examples=250)
@given(
    shape=st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 3, 7, 16, 17, 31, 67])),
    spatial=spatial,
    dtype=st.sampled_from(list(library.TYPES)),
    layout=st.sampled_from(LAYOUTS),
    kind=st.sampled_from(SPECIAL),
    block=st.sampled_from([8, 8, 1, 2, 3, 4, 5, 16, 18, 64, 600, 1500]),
    bits=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_equal_to_the_reference(
    shape: tuple[int, int], spatial: tuple[int, ...], dtype: torch.dtype, layout: str, kind: str, block: int,
    bits: int, seed: int,
) -> None:  # fmt: skip
    x = torch.randn(*shape, *spatial, generator=torch.Generator().manual_seed(seed % 1000))
    assert_all_bodies_agree(laid_out(filled(x, kind).to(dtype), layout), block, bits, seed)


@pytest.mark.parametrize(
    "shape", [(4, 3, 56, 56), (2, 64, 28, 28), (2, 64, 14, 14), (3, 37, 7, 7), (2, 130, 4, 4), (1, 1, 130, 140)]
)
@pytest.mark.parametrize("dtype", library.TYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_equal_to_the_reference_on_the_shapes_of_networks(
    shape: tuple[int, ...], dtype: torch.dtype, layout: str
) -> None:
    assert_all_bodies_agree(laid_out(torch.randn(shape).to(dtype), layout), 8, 2, 5)


@pytest.mark.parametrize("body", library.RUNNABLE)
@pytest.mark.parametrize("shape", [(1, 2, 136, 9), (1, 2, 300, 3), (2, 20, 7, 7), (1, 16, 16, 16), (1, 64, 20, 20)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_what_decodes_beyond_its_dtype_is_held_to_it_whatever_the_planes_beside_it_hold(
    body: str, shape: tuple[int, ...], layout: str, bits: int
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).sign_().mul_(65504.0)
    x[:, 1:] *= 0.9
    x[0, -1, 0, 0] = math.nan
    x = laid_out(x.to(torch.float16), layout)
    for block in (2, 8):
        with library.forced(body):
            back = decode(*encode(x, block, bits, 3), *place(x), block, bits)
        assert torch.isfinite(back[0, :-1]).all()
        assert back[0, -1].isnan().all()


def test_the_default_dtype_of_torch_is_of_no_account() -> None:
    x = torch.randn(2, 4, 15, 15, 15, dtype=torch.float64)
    expected = encode(x, 8, 2, 1)
    for other in (torch.bfloat16, torch.float16, torch.float64):
        torch.set_default_dtype(other)
        try:
            found = encode(x, 8, 2, 1)
        finally:
            torch.set_default_dtype(torch.float32)
        for part, wanted in zip(found, expected, strict=True):
            assert_same(part, wanted)


@pytest.mark.parametrize("body", library.RUNNABLE)
def test_the_code_of_planes_without_elements_is_always_the_same(body: str) -> None:
    with library.forced(body):
        _, _, scale = encode(torch.empty(8, 8, 0, 4), 8, 2, 1)
    assert scale.shape == (64, 2)
    assert not scale.any()


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("bits", [1, 2, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 3, 7, 7), (1, 17, 1, 1), (2, 33, 3, 5), (1, 2, 9, 57), (1, 40, 20), (1, 5, 30, 30), (1, 2, 2, 1000)]
)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_touches_no_memory_beyond_its_tensors(
    name: str, bits: int, dtype: torch.dtype, shape: tuple[int, ...], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = guarded_copy(laid_out(torch.randn(shape).to(dtype), layout))
    empty_code, empty_map = reference.empty_code, reference.empty_map
    with library.forced("reference"):
        expected = encode(x, 8, bits, 3)
        back = decode(*expected, *place(x), 8, bits)
    monkeypatch.setattr(reference, "empty_code", lambda *a: tuple(map(guarded_copy, empty_code(*a))))
    monkeypatch.setattr(reference, "empty_map", lambda *a: guarded_copy(empty_map(*a)))
    with library.forced(name):
        for found, wanted in zip(dual.dual_encode(x, 8, bits, 3), expected, strict=True):
            assert_same(found, wanted)
        assert_same(dual.dual_decode(*map(guarded_copy, expected), *place(x), 8, bits), back)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_offsets_beyond_two_to_the_31(name: str, layout: str) -> None:
    """Two samples more than 2^31 elements apart, in memory of which no other page is touched."""
    x = torch.empty(2**31 + 4096, dtype=torch.bfloat16)
    size, inner = (2, 3, 20, 20), (400, 20, 1) if layout == "contiguous" else (1, 60, 3)
    far = x.as_strided(size, (2**31 + 64, *inner))
    far.copy_(torch.randn(size))
    near = laid_out(far.contiguous(), layout)
    with library.forced(name):
        for found, expected in zip(encode(far, 8, 2, 3), encode(near, 8, 2, 3), strict=True):
            assert_same(found, expected)
        code = encode(near, 8, 2, 3)
        back = torch.empty(2**31 + 4096, dtype=torch.bfloat16).as_strided(size, far.stride())
        fill_like(back, code)
        assert torch.equal(back, decode(*code, *place(near), 8, 2))


def fill_like(out: Tensor, code: tuple[Tensor, ...]) -> None:
    """Decode into ``out`` itself, whatever its strides."""
    call: Any = library.function("dual_decode")
    numbers = library.numbers(dual.geometry(out.shape, out.stride(), 8))
    assert call(library.pointer(out), library.TYPES[out.dtype], numbers, 2, *map(library.pointer, code)) == 0


@pytest.mark.parametrize("name", COMPILED)
def test_float64_and_strange_layouts_take_the_reference(name: str) -> None:
    strange = torch.randn(2, 3, 80, 80).repeat_interleave(2, -1)[..., ::2].transpose(2, 3)
    assert 1 not in strange.stride()
    for x in (torch.randn(2, 3, 9, 9, dtype=torch.float64), strange):
        with library.forced("reference"):
            expected = encode(x, 8, 2, 1)
        with library.forced(name):
            assert all(map(torch.equal, encode(x, 8, 2, 1), expected))
            assert torch.equal(decode(*expected, *place(x), 8, 2), reference.dual_decode(*expected, *place(x), 8, 2))


def test_guarded_tensors_end_at_the_end_of_memory() -> None:
    x = guarded((3, 5), (5, 1), torch.float32)
    assert (x.data_ptr() + x.nbytes) % 4096 == 0
