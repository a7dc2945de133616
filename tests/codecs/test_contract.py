"""Every registered codec is held to the contract, on its own examples: a new codec is tested by its registration."""

import pytest
import torch
from torch import Tensor

from division.codecs import CODECS, Codec, from_config
from division.codecs.codec import PROMISES
from tests.codecs import contract, statistics

EXAMPLES = [codec for kind in CODECS.values() for codec in kind.examples()]
each_codec = pytest.mark.parametrize("codec", EXAMPLES, ids=repr)


def promising(promise: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("codec", [c for c in EXAMPLES if promise in c.promises], ids=repr)


@each_codec
def test_a_codec_is_a_value(codec: Codec) -> None:
    contract.check_value(codec)
    assert codec.promises <= PROMISES
    assert CODECS[codec.name] is type(codec)
    assert sum(codec == other for other in EXAMPLES) == 1


@each_codec
def test_round_trip(codec: Codec) -> None:
    for x in contract.samples(codec):
        contract.check_round_trip(codec, x)


@each_codec
def test_codes_do_not_depend_on_the_layout(codec: Codec) -> None:
    for x in contract.samples(codec):
        if x.dtype not in (torch.float16, torch.float64):  # two widths of element tell as much as four
            contract.check_layouts(codec, x)


@each_codec
def test_overlapping_tensors_are_refused(codec: Codec) -> None:
    for x in contract.samples(codec):
        contract.check_refusals(codec, x)


@each_codec
def test_the_seed_decides(codec: Codec) -> None:
    for x in contract.samples(codec):
        assert contract.same_code(contract.encode(codec, x, 1), contract.encode(codec, x, 1))
    largest = max(contract.samples(codec), key=Tensor.numel)
    codes = [contract.encode(codec, largest, seed) for seed in (1, 2, 1 + (1 << 32), -1)]
    if "unbiased" in codec.promises:
        assert not any(contract.same_code(a, b) for i, a in enumerate(codes) for b in codes[:i])


@each_codec
def test_a_part_that_needs_a_gradient_is_coded_without_one(codec: Codec) -> None:
    x = max(contract.samples(codec), key=Tensor.numel)
    if x.is_floating_point():
        contract.check_parts(contract.encode(codec, x.clone().requires_grad_()), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@each_codec
def test_the_default_dtype_changes_nothing(codec: Codec, dtype: torch.dtype) -> None:
    found = []
    for default in (torch.float32, dtype):
        xs = contract.samples(codec)
        torch.set_default_dtype(default)
        try:
            codes = [contract.encode(codec, x) for x in xs]
            found.append([(code, contract.decode(codec, code)) for code in codes])
        finally:
            torch.set_default_dtype(torch.float32)
    for (code, out), (other, again) in zip(*found, strict=True):
        assert contract.same_code(code, other)
        assert codec.name in contract.UNDEFINED or contract.same_bits(out, again)


@each_codec
def test_packed_bytes_are_those_of_the_formula(codec: Codec) -> None:
    for x in contract.samples(codec):
        contract.check_bytes(codec, x)


@promising("exact")
def test_exact(codec: Codec) -> None:
    for x in contract.samples(codec):
        assert contract.same_bits(contract.decode(codec, contract.encode(codec, x)), x)


@promising("bounded")
@pytest.mark.parametrize("name", statistics.VALUES)
def test_no_element_is_off_by_more_than_a_step(codec: Codec, name: str) -> None:
    for dtype in contract.FLOATS:
        statistics.check_bounded(codec, statistics.values(name, dtype), seed=6)


@promising("unbiased")
@pytest.mark.parametrize("name", statistics.VALUES)
def test_the_mean_over_seeds_is_the_input(codec: Codec, name: str) -> None:
    statistics.check_unbiased(codec, statistics.values(name, torch.float32))


@promising("unbiased")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_mean_over_seeds_is_the_input_to_16_bits(codec: Codec, dtype: torch.dtype) -> None:
    statistics.check_unbiased(codec, statistics.values("relu", dtype))


@promising("equivariant")
@pytest.mark.parametrize("exponent", [-20, 13])
def test_scaling_by_a_power_of_two_scales_the_result(codec: Codec, exponent: int) -> None:
    for x in contract.samples(codec):
        # Half precision has too few exponents: what it overflows to is not a multiple of anything.
        if x.is_floating_point() and x.dtype != torch.float16:
            scaled = contract.decode(codec, contract.encode(codec, x * 2.0**exponent, 9))
            assert contract.same_bits(scaled, contract.decode(codec, contract.encode(codec, x, 9)) * 2.0**exponent)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(ValueError, match=r"got codec 'duel', expected one of \[.*'dual'"):
        from_config({"codec": "duel"})
