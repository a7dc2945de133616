"""The dual codec against its definition, its formula, and the edges of the number formats."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from division.codecs import Dual
from division.kernels.cpu import library
from division.kernels.reference import chunks
from tests.codecs import contract, naive, statistics
from tests.codecs.contract import decode, encode, same_bits, same_code

BITS = (1, 2, 4, 8)


def formula(shape: tuple[int, ...], block: int, bits: int) -> int:
    blocks = math.prod(math.ceil(n / block) for n in shape[2:])
    return shape[0] * shape[1] * (2 * blocks + math.ceil(math.prod(shape[2:]) * bits / 8) + 4)


def check_against_naive(x: Tensor, codec: Dual, seed: int) -> None:
    packed = encode(codec, x, seed)
    lfc, codes, scale = packed.parts
    out = decode(codec, packed, torch.float32).flatten(0, 1)
    planes = x.flatten(0, 1).to(torch.float32).numpy()
    with np.errstate(all="ignore"):
        for row, plane in enumerate(planes):
            slow = naive.dual_plane(plane, row, codec.block, codec.bits, seed)
            assert same_bits(lfc[row].float(), torch.tensor(np.array(slow.lfc)))
            assert bytes(codes[row].tolist()) == slow.codes
            np.testing.assert_array_equal(scale[row].float().numpy(), [slow.offset, slow.step])
            np.testing.assert_array_equal(out[row].numpy(), slow.decoded)


@settings(max_examples=40)
@given(data=st.data(), block=st.integers(1, 14), bits=st.sampled_from(BITS), seed=st.integers(-(2**63), 2**63 - 1))
def test_codes_are_those_of_the_definition(data: st.DataObject, block: int, bits: int, seed: int) -> None:
    spatial = data.draw(st.lists(st.integers(1, 11), min_size=1, max_size=3).filter(lambda s: math.prod(s) <= 200))
    dtype = data.draw(st.sampled_from(contract.FLOATS))
    scale = data.draw(st.sampled_from([2.0**-10, 1.0, 3000.0]))
    torch.manual_seed(seed % 2**32)
    x = (torch.randn(2, 2, *spatial, dtype=torch.float64) * scale).to(dtype)
    x[0, 1] = x[0, 1].relu()
    check_against_naive(x, Dual(block, bits), seed)


@pytest.mark.parametrize("bits", BITS)
def test_special_planes_are_those_of_the_definition(bits: int) -> None:
    planes = [
        torch.zeros(7, 9),
        -torch.zeros(7, 9),
        torch.full((7, 9), 1.2345678),
        torch.randn(7, 9).index_fill_(1, torch.tensor([3]), math.nan),
        torch.randn(7, 9).index_fill_(0, torch.tensor([2]), -math.inf),
        torch.randn(7, 9) * 2.0**-130,  # subnormal
        torch.randn(7, 9) * 2.0**115,
        torch.randn(7, 9) + 1e4,
        torch.arange(63.0).view(7, 9),
        torch.zeros(7, 9).index_fill_(1, torch.tensor([8]), 1.0),
    ]
    check_against_naive(torch.stack(planes)[:, None], Dual(4, bits), 11)


def test_a_plane_that_spans_less_than_what_is_left_of_it_is_kept_without_its_block_means() -> None:
    """A ReLU's zeros then are a code's own value, and come back as zeros; a smooth plane keeps its block means."""
    torch.manual_seed(3)
    sparse = torch.randn(2, 3, 24, 24).relu()
    sparse[0, 0, 3, 5] = sparse[0, 0].max() + 1
    low, _, scale = encode(Dual(8, 2), sparse).parts
    assert (low == 0).all()
    assert (scale[:, 0] == 0).all()
    steps = sparse.flatten(2).amax(-1).flatten() / 3
    assert ((scale[:, 1] >= steps) & (scale[:, 1] <= steps * 1.01)).all()
    out = decode(Dual(8, 2), encode(Dual(8, 2), sparse))
    assert (out[sparse == 0] == 0).all()
    smooth = torch.linspace(0, 9, 24).expand(2, 3, 24, 24) + torch.rand(2, 3, 24, 24)
    low, _, scale = encode(Dual(8, 2), smooth).parts
    assert torch.equal(low.float(), nn.functional.avg_pool2d(smooth, 8).flatten(0, 1).flatten(1).bfloat16().float())
    assert (scale[:, 1] < 2).all()


@settings(max_examples=60)
@given(bits=st.sampled_from(BITS), block=st.integers(1, 9), seed=st.integers(0, 2**32), shift=st.floats(-3, 3))
def test_the_block_means_are_left_out_by_rule_and_the_step_fits_what_is_left(
    bits: int, block: int, seed: int, shift: float
) -> None:
    torch.manual_seed(seed)
    x = (torch.randn(1, 8, 11, 13) + shift).relu() if seed % 2 else torch.randn(1, 8, 11, 13).abs() + shift
    low, _, scale = encode(Dual(block, bits), x).parts
    means = Dual(block, bits, "low")
    mean, rest = encode(means, x).parts[0], (x - decode(means, encode(means, x))).flatten(2)[0]
    own, left = (each.amax(-1) - each.amin(-1) for each in (x.flatten(2)[0], rest))
    factor = torch.where(x.flatten(2)[0].amin(-1) == 0, 1.25, 1.0)
    out = (own < factor * left) if mean.shape[1] > 1 else torch.zeros(8, dtype=torch.bool)
    assert torch.equal(low, torch.where(out[:, None], 0.0, mean))
    chosen, size = torch.where(out, own, left), x.flatten(2)[0].abs().amax(-1)
    assert (scale[:, 1].float() * (2**bits - 1) <= chosen * 1.01 + size / 100).all()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("bits", BITS)
def test_the_high_part_is_all_that_the_block_means_leave(bits: int, layout: torch.memory_format) -> None:
    """The rounding of a mean of 1,000 to bfloat16 included; where both are kept, its codes are those of both."""
    torch.manual_seed(2)
    x = (torch.linspace(996, 1004, 24).expand(2, 3, 24, 24) + torch.rand(2, 3, 24, 24)).contiguous(memory_format=layout)
    low, high, both = (Dual(8, bits, part) for part in ("low", "high", "both"))  # type: ignore[arg-type]
    means, codes, scale = encode(both, x).parts
    packed = encode(high, x)
    assert means.all()
    assert torch.equal(packed.parts[0], codes)
    assert torch.equal(packed.parts[1], scale)
    step = scale[:, 1].float().view(2, 3, 1, 1)
    assert ((decode(low, encode(low, x)) + decode(high, packed) - x).abs() <= step * 1.001).all()
    sparse = (x - 1000).relu()
    step = encode(high, sparse).parts[1][:, 1].float().view(2, 3, 1, 1)
    off = decode(low, encode(low, sparse)) + decode(high, encode(high, sparse)) - sparse
    assert (off.abs() <= step * 1.001).all()


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    spatial=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    block=st.integers(1, 20),
    bits=st.sampled_from(BITS),
)
def test_packed_bytes(shape: tuple[int, int], spatial: list[int], block: int, bits: int) -> None:
    codec, size = Dual(block, bits), (*shape, *spatial)
    x = torch.randn(size)
    assert encode(codec, x).nbytes == codec.packed_bytes(size, x.dtype) == formula(size, block, bits)
    parts = [encode(Dual(block, bits, part), x).nbytes for part in ("low", "high")]  # type: ignore[arg-type]
    assert sum(parts) == formula(size, block, bits)


def test_known_sizes() -> None:
    assert Dual(8, 2).packed_bytes((64, 256, 56, 56), torch.float32) == 64 * 256 * (2 * 49 + 784 + 4)
    assert Dual(8, 1).packed_bytes((1, 1, 9, 9), torch.float16) == 2 * 4 + 11 + 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("bits", BITS)
def test_constant_planes_are_exact(dtype: torch.dtype, bits: int) -> None:
    """Any value of the dtype, in any block: three bfloat16 parts hold the 24 bits of a float32."""
    values = torch.randn(400, 1, 1, 1, dtype=torch.float64) * 2.0 ** torch.randint(-12, 13, (400, 1, 1, 1))
    values[:4] = torch.tensor([0.0, -0.0, torch.finfo(dtype).max, -torch.finfo(dtype).max]).view(4, 1, 1, 1)
    values[4:6] = torch.tensor([torch.finfo(torch.float16).tiny, 2.0**-24]).view(2, 1, 1, 1)
    x = values.to(dtype).repeat(1, 1, 5, 7)
    for block in (1, 2, 5, 9):
        out = decode(Dual(block, bits), encode(Dual(block, bits), x))
        assert torch.equal(out, x)
        assert not torch.signbit(out[1]).any(), "-0 comes back as 0"


def test_constants_of_float32_are_exact_down_to_2_to_the_minus_110() -> None:
    """Below, the third part would need more than the exponents of bfloat16; the error stays under the least step."""
    torch.manual_seed(2)
    mantissa = 1 + torch.rand(300, 1, 1)
    for exponent in (100, 60, 0, -60, -109, -110):
        x = (mantissa * 2.0**exponent).expand(300, 1, 6).contiguous()
        assert torch.equal(decode(Dual(), encode(Dual(), x)), x), exponent
    for exponent in (-118, -126, -140):
        x = (mantissa * 2.0**exponent).expand(300, 1, 6).contiguous()
        assert float((decode(Dual(), encode(Dual(), x)) - x).abs().max()) <= 2.0**-126


def test_negative_zero_has_the_code_of_zero() -> None:
    zero = torch.zeros(1, 2, 5, 5)
    assert same_code(encode(Dual(), -zero), encode(Dual(), zero))
    mixed = zero.clone()
    mixed[0, 0, ::2] = -0.0
    assert same_code(encode(Dual(), mixed), encode(Dual(), zero))


@pytest.mark.parametrize("dtype", contract.FLOATS, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["both", "low", "high"])
def test_a_plane_with_a_value_that_is_not_finite_decodes_to_nan(dtype: torch.dtype, value: float, part: str) -> None:
    codec = Dual(4, 2, part)  # type: ignore[arg-type]
    x = torch.randn(3, 2, 9, 6).to(dtype)
    plain = decode(codec, encode(codec, x, 1))
    x[1, 0, 8, 5] = value
    out = decode(codec, encode(codec, x, 1))
    assert out[1, 0].isnan().all()
    out[1, 0] = plain[1, 0]
    assert same_bits(out, plain)


@pytest.mark.parametrize("codec", Dual.examples(), ids=repr)
@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_the_largest_values_of_float16_stay_finite(codec: Dual, low: float) -> None:
    x = torch.linspace(low, 1, 2 * 3 * 20 * 20, dtype=torch.float64).mul(65504).to(torch.float16).view(2, 3, 20, 20)
    x = x.flatten()[torch.randperm(x.numel())].view_as(x)
    assert decode(codec, encode(codec, x)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_values_of_2_to_the_118_stay_finite(dtype: torch.dtype) -> None:
    """Far enough from the end of float32 that a block of 64 has a sum."""
    x = (torch.rand(2, 3, 20, 20) * 2 - 1).mul(2.0**118).to(dtype)
    for codec in Dual.examples():
        assert decode(codec, encode(codec, x)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("bits", BITS)
def test_a_range_beyond_float32_is_seen(dtype: torch.dtype, bits: int) -> None:
    """Nearer the end, a plane decodes to within a step, or to NaN as a whole: never to something else."""
    codec, largest = Dual(8, bits), torch.finfo(dtype).max
    for low, high in ((-1.0, 1.0), (0.0, 1.0), (-1.0, 0.0), (-0.1, 0.2)):
        x = torch.linspace(low, high, 81, dtype=torch.float64).mul(largest).to(dtype).view(1, 1, 9, 9)
        packed = encode(codec, x)
        out = decode(codec, packed, torch.float32)
        step = float(packed.parts[2][0, 1])
        assert out.isnan().all() or float((out.double() - x.double()).abs().max()) <= step * 1.01


def test_every_element_is_unbiased() -> None:
    """Two thousand copies of a plane, each with its own noise."""
    torch.manual_seed(3)
    plane = torch.randn(9, 10).relu() + 0.1 * torch.randn(9, 10)
    x = plane.expand(2000, 1, 9, 10).contiguous()
    for bits in BITS:
        packed = encode(Dual(8, bits), x, 4)
        step = float(packed.parts[2][0, 1])
        bias = decode(Dual(8, bits), packed).double().mean(0)[0] - plane.double()
        assert float(bias.abs().max()) <= 4.5 * step / (2 * 2000**0.5) + step * 2.0**-16


@library.forced("reference")
def test_codes_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 4, 9, 10)
    codec = Dual(4, 2)
    whole = encode(codec, x, 6)
    out = decode(codec, whole)
    for limit in (1, 91, 180, 400, 1000):
        monkeypatch.setattr(chunks, "_CPU_ELEMENTS", limit)
        for name, moved in contract.layouts(x):
            assert same_code(encode(codec, moved, 6), whole), (limit, name)
        assert same_bits(decode(codec, whole), out)


@settings(max_examples=30)
@given(
    size=st.lists(st.integers(1, 7), min_size=3, max_size=5),
    block=st.integers(1, 9),
    make=st.sampled_from(["permuted", "gapped"]),
    data=st.data(),
)
def test_any_layout(size: list[int], block: int, make: str, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(size))))
    stored = [size[d] + (make == "gapped") for d in order]
    base = torch.randn(stored).permute(sorted(range(len(size)), key=order.__getitem__))
    x = base[tuple(slice(n) for n in size)]
    codec = Dual(block, 4)
    assert same_code(encode(codec, x, 8), encode(codec, x.contiguous(), 8))
    contract.check_stride(x, decode(codec, encode(codec, x)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dual(bits=3), r"got bits=3 for dual, expected one of \(1, 2, 4, 8\)"),
        (lambda: Dual(bits=2.0), "got bits=2.0"),  # type: ignore[arg-type]
        (lambda: Dual(block=0), "got block=0, expected an integer of at least 1"),
        (lambda: Dual(block=2.5), "got block=2.5"),  # type: ignore[arg-type]
        (lambda: Dual(part="middle"), "got part='middle', expected 'both', 'low' or 'high'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Dual], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_what_it_takes() -> None:
    assert Dual().why_not(torch.zeros(2, 3)) == "2 dims, not a map (N, C, *spatial)"
    assert Dual().why_not(torch.zeros(2, 3, 4, dtype=torch.int32)) == "dtype torch.int32"
    assert Dual().why_not(torch.zeros(2, 3, 4, dtype=torch.complex64)) == "dtype torch.complex64"
    assert Dual().why_not(torch.zeros(1).expand(2, 3, 4)) == "overlapping layout"
    assert Dual().why_not(torch.zeros(2, 3, 4)) is None


def test_the_step_of_the_statistics_is_that_of_the_plane() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    packed = encode(Dual(1, 1), x)
    assert statistics.step_of(Dual(1, 1), packed).shape == (2, 3, 1)


@pytest.mark.parametrize(
    ("plane", "mean"),
    [
        ([[2.0**25, 1.0, -(2.0**25), 1.0]], 0.5),  # (0 + 2) before / 4: columns two apart go first
        ([[2.0**25, -(2.0**25), 1.0, 1.0]], 0.0),
        ([[2.0**25], [-(2.0**25)], [1.0], [1.0]], 0.5),  # rows one after the other
        ([[2.0**25], [1.0], [-(2.0**25)], [1.0]], 0.25),
        ([[2.0**25, 0.0], [1.0, -(2.0**25)], [0.0, 2.0]], 2.0 / 6),  # rows before columns
    ],
)
def test_blocks_are_summed_in_the_stated_order(plane: list[list[float]], mean: float) -> None:
    x = torch.tensor([[plane]])
    expected = torch.tensor(mean).to(torch.bfloat16)
    assert torch.equal(encode(Dual(8, 2), x).parts[0][0, 0], expected)
    check_against_naive(x, Dual(8, 2), 1)
