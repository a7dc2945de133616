"""The C++ bodies of the error-bounded code's ops."""

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.kernels import ops
from division.kernels.cpu import error_bound, library
from division.kernels.reference import error_bound as reference
from tests.codecs.kinds import DTYPES, KINDS, values
from tests.kernels.cpu.agree import COMPILED, LAYOUTS, assert_same, by_all, guard_results, laid_out, needs_compiled
from tests.kernels.cpu.guard import guarded_copy


@needs_compiled
@settings(max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.lists(st.sampled_from([1, 2, 3, 5, 16, 33, 64, 130]), max_size=4).filter(lambda s: prod(s) <= 9000)
    | st.sampled_from([[2048], [2049], [4096], [9000]]),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    exponent=st.floats(-8, 3),
    seed=st.integers(0, 1000),
)
def test_equal_to_the_reference(
    kind: str, shape: list[int], dtype: torch.dtype, layout: str, exponent: float, seed: int
) -> None:
    x = laid_out(values(kind, prod(shape), seed).to(dtype).view(shape), layout)
    greatest = x.float().abs().nan_to_num(nan=1.0, posinf=1.0).max().clamp(min=1e-45)
    bound = (greatest * 10**exponent).clamp(max=3e38).view(1)
    code = by_all("error_bound_encode", x, bound)
    by_all("error_bound_decode", *code, bound, list(shape), list(x.contiguous().stride()), dtype)
    turned = laid_out(torch.empty(shape), "reversed")
    by_all("error_bound_decode", *code, bound, list(shape), list(turned.stride()), dtype)


@pytest.mark.skipif("avx512" not in COMPILED, reason="no AVX-512 here")
def test_avx512_without_vbmi2_is_equal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, list[Tensor]] = {}
    for better in ({}, library._BETTER):
        monkeypatch.setattr(library, "_BETTER", better)
        monkeypatch.setattr(library, "_functions", {})
        for kind in KINDS:
            for share in (1e-4, 1e-2, 0.3):
                x = values(kind, 9000)
                bound = (x.abs().nan_to_num(1.0, 1.0).max() * share).view(1)
                with library.forced("avx512"):
                    code = ops.call("error_bound_encode")(x, bound)
                    back = ops.call("error_bound_decode")(*code, bound, [9000], [1], torch.float32)
                for part, wanted in zip((*code, back), found.setdefault(f"{kind} {share}", [*code, back]), strict=True):
                    assert_same(part, wanted)


@needs_compiled
def test_threads_make_no_difference() -> None:
    x, bound = values("walk", 300_000), torch.tensor([0.1])
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            code = ops.call("error_bound_encode")(x, bound)
            found.append((*code, ops.call("error_bound_decode")(*code, bound, [300_000], [1], torch.float32)))
    finally:
        torch.set_num_threads(before)
    for one, several in zip(*found, strict=True):
        assert_same(one, several)


@needs_compiled
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["walk", "relu", "sparse", "odd", "spikes"])
@pytest.mark.parametrize("count", [6, 63, 65, 2048, 34_000])
def test_touches_no_memory_beyond_its_tensors(
    name: str, dtype: torch.dtype, kind: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, bound = guarded_copy(values(kind, count).to(dtype)), torch.tensor([0.02])
    place = [count], [1], dtype
    with library.forced("reference"):
        expected = error_bound.error_bound_encode(x, bound)
        back = error_bound.error_bound_decode(*expected, bound, *place)
    guard_results(monkeypatch)
    with library.forced(name):
        for found, wanted in zip(error_bound.error_bound_encode(x, bound), expected, strict=True):
            assert_same(found, wanted)
        assert_same(error_bound.error_bound_decode(*map(guarded_copy, expected), bound, *place), back)


@needs_compiled
def test_a_payload_that_is_cut_short_is_refused() -> None:
    bound = torch.tensor([0.02])
    payload, sizes = ops.call("error_bound_encode")(values("noise", 5000), bound)
    with pytest.raises(ValueError, match=r"got a payload of .* bytes, expected .*, the sum of the sizes"):
        ops.call("error_bound_decode")(payload[:-1], sizes, bound, [5000], [1], torch.float32)


def test_wrong_arguments_are_refused() -> None:
    x, bound = torch.zeros(3), torch.tensor([1.0])
    sizes, payload = torch.zeros(1, dtype=torch.int16), torch.zeros(0, dtype=torch.uint8)
    encode, decode = ops.call("error_bound_encode"), ops.call("error_bound_decode")
    with pytest.raises(TypeError, match=r"got dtype torch.float64, expected one of"):
        encode(x.double(), bound)
    with pytest.raises(ValueError, match=r"got a bound torch.float64 \(1,\), expected torch.float32 \(1,\)"):
        encode(x, bound.double())
    with pytest.raises(ValueError, match=r"got sizes torch.int16 \(1,\), expected torch.int16 \(2,\)"):
        decode(payload, sizes, bound, [3000], [1], torch.float32)
    with pytest.raises(ValueError, match=r"got a payload torch.int16 \(1,\), expected torch.uint8"):
        decode(sizes, sizes, bound, [3], [1], torch.float32)
    assert reference.most_bytes(2049, torch.float16) == 2 * 2049 + 4
