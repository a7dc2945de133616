"""The frequency codec against a direct cosine transform in float64, its bounds, and the edges of the number formats."""

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.codecs import Frequency, from_config
from division.kernels.reference import chunks
from division.kernels.reference.frequency import cuts
from tests.codecs import contract
from tests.codecs.contract import decode, encode, same_bits, same_code

FINEST = Frequency(1e9)


def block_slices(spatial: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """The blocks of a plane, row-major."""
    along = []
    for dim in spatial:
        lengths = [len(part) for part in np.array_split(np.arange(dim), math.ceil(dim / 8))]
        ends = np.cumsum(lengths)
        along.append([slice(int(end - n), int(end)) for n, end in zip(lengths, ends, strict=True)])
    return list(product(*along))


def direct(block: np.ndarray) -> np.ndarray:
    """The orthonormal DCT-II of a block by its definition, one sum after another, float64."""
    for axis, n in enumerate(block.shape):
        k, i = np.arange(n)[:, None], np.arange(n)
        matrix = np.sqrt(np.where(k == 0, 1, 2) / n) * np.cos(np.pi * k * (2 * i + 1) / (2 * n))
        block = np.moveaxis(np.tensordot(matrix, block, (1, axis)), 0, axis)
    return block


def steps_of(shape: tuple[int, ...], codec: Frequency) -> np.ndarray:
    """The documented steps of a block, as parts of the peak."""
    frequency = sum(8 * k / n for k, n in zip(np.indices(shape), shape, strict=True))
    return np.maximum((1 + codec.slope * frequency) / codec.quality, math.sqrt(math.prod(shape)) / 127)


def coefficients(plane: np.ndarray) -> np.ndarray:
    """All coefficients of a plane in the order in which they are kept."""
    return np.concatenate([direct(plane[at]).ravel() for at in block_slices(plane.shape)])


def all_steps(spatial: tuple[int, ...], codec: Frequency) -> np.ndarray:
    sizes = [tuple(s.stop - s.start for s in at) for at in block_slices(spatial)]
    return np.concatenate([steps_of(size, codec).ravel() for size in sizes])


def kept(x: Tensor, codec: Frequency) -> np.ndarray:
    """int ``[planes, elements]``: the rounded coefficients that a code holds."""
    masks, values, _ = encode(codec, x).parts
    elements = math.prod(x.shape[2:])
    bits = np.unpackbits(masks.numpy(), axis=1, bitorder="little", count=elements).astype(bool)
    q = np.zeros(bits.shape, dtype=int)
    q[bits] = values.numpy()
    return q


@pytest.mark.parametrize("dim", [1, 2, 7, 8, 9, 14, 15, 16, 17, 28, 56, 112, 1001])
def test_blocks_are_as_even_as_can_be(dim: int) -> None:
    lengths = cuts(dim)
    assert sum(lengths) == dim
    assert len(lengths) == math.ceil(dim / 8)
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) <= 8
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("codec", [Frequency(), Frequency(3.0, 0.0), Frequency(20.0, 1.0), FINEST], ids=str)
@pytest.mark.parametrize("spatial", [(37,), (7, 7), (14, 14), (9, 19), (8, 16), (5, 4, 9), (1, 1), (1, 8)], ids=str)
def test_coefficients_are_those_of_a_direct_transform(spatial: tuple[int, ...], codec: Frequency) -> None:
    x = torch.randn(2, 3, *spatial, generator=torch.Generator().manual_seed(5)).cumsum(-1)
    peaks = x.abs().transpose(0, 1).flatten(1).amax(1)
    assert torch.equal(encode(codec, x).parts[2], peaks)
    q = kept(x, codec)
    for plane, (n, c) in enumerate(product(range(2), range(3))):
        exact = coefficients(x[n, c].double().numpy()) / (float(peaks[c]) * all_steps(spatial, codec))
        near_half = np.abs(np.abs(exact - np.floor(exact)) - 0.5) < 1e-4
        assert near_half.mean() < 0.05
        assert np.array_equal(q[plane][~near_half], np.round(exact)[~near_half])
        assert np.abs(q[plane] - exact).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("spatial", [(8,), (7, 7), (8, 8), (4, 6, 3)], ids=str)
def test_a_constant_block_has_one_coefficient_and_a_cosine_one(spatial: tuple[int, ...]) -> None:
    for frequency in product(*(sorted({0, 1, n - 1}) for n in spatial)):
        x = torch.ones(spatial, dtype=torch.float64)
        for d, (k, n) in enumerate(zip(frequency, spatial, strict=True)):
            wave = torch.cos(torch.pi * k * (2 * torch.arange(n, dtype=torch.float64) + 1) / (2 * n))
            x = x * wave.view(*(-1 if e == d else 1 for e in range(len(spatial))))
        q = kept(x.to(torch.float32)[None, None], FINEST)[0]
        assert np.flatnonzero(q).tolist() == [np.ravel_multi_index(frequency, spatial)]
        assert q.max() == (127 if not any(frequency) else q.max())
        out = decode(FINEST, encode(FINEST, x.to(torch.float32)[None, None]))
        assert float((out - x).abs().max()) < 2e-6 if not any(frequency) else 0.05


@settings(max_examples=60)
@given(
    spatial=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    quality=st.floats(0.1, 200.0),
    slope=st.floats(0.0, 3.0),
    dtype=st.sampled_from(contract.FLOATS),
    seed=st.integers(0, 1 << 16),
)
def test_errors_keep_within_the_steps(
    spatial: list[int], quality: float, slope: float, dtype: torch.dtype, seed: int
) -> None:
    """Parseval: the squared error of a block is that of its coefficients, each at most half a step."""
    codec = Frequency(quality, slope)
    x = torch.randn(2, 2, *spatial, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    x *= 10.0 ** torch.randint(-3, 4, (2, 2, *(1,) * len(spatial)), generator=torch.Generator().manual_seed(seed))
    packed = encode(codec, x)
    error = (decode(codec, packed, torch.float32).double() - x.double()).numpy()
    for n, c in product(range(2), range(2)):
        peak = float(packed.parts[2][c])
        for at in block_slices(tuple(spatial)):
            block = error[n, c][at]
            half = steps_of(block.shape, codec) * peak / 2
            slack = 1e-5 * peak * math.sqrt(block.size)
            assert np.abs(direct(block)).max() <= half.max() + slack
            assert (np.abs(direct(block)) <= half + slack).all()
            assert np.linalg.norm(block) <= np.linalg.norm(half) + slack


@pytest.mark.parametrize("spatial", [(16, 16), (100,), (4, 4, 4)], ids=str)
def test_finer_steps_bring_the_tensor_back(spatial: tuple[int, ...]) -> None:
    x = torch.randn(4, 2, *spatial, generator=torch.Generator().manual_seed(1)).cumsum(-1)
    codes = [encode(Frequency(quality, 0.0), x) for quality in (0.5, 2.0, 8.0, 1e9)]
    errors = [
        float((decode(Frequency(q, 0.0), p) - x).norm()) for q, p in zip((0.5, 2.0, 8.0, 1e9), codes, strict=True)
    ]
    assert all(fine < coarse for coarse, fine in pairwise(errors))
    assert all(fine.nbytes > coarse.nbytes for coarse, fine in pairwise(codes))
    # Of a step, the root mean square of what is rounded off is at most a half.
    n = math.prod(min(8, dim) for dim in spatial)
    assert errors[-1] <= math.sqrt(n) / 127 / 2 * float(x.abs().max()) * math.sqrt(x.numel())
    assert same_code(codes[-1], encode(Frequency(1e12, 3.0), x))


def test_bytes_are_those_of_the_formula() -> None:
    x = torch.randn(3, 5, 14, 14, generator=torch.Generator().manual_seed(2))
    codec = Frequency()
    packed = encode(codec, x)
    assert packed.nbytes == 15 * 25 + int(np.count_nonzero(kept(x, codec))) + 4 * 5
    assert codec.least_bytes(x.shape, x.dtype) == 15 * 25 + 20 == encode(codec, x * 0).nbytes
    assert codec.packed_bytes(x.shape, x.dtype) == 15 * 25 + 15 * 196 + 20


def test_zeros_stay_zeros() -> None:
    x = torch.randn(2, 3, 9, 9)
    x[0] = 0.0
    x[:, 2] = -0.0
    out = decode(Frequency(), encode(Frequency(), x))
    for plane in (out[0], out[:, 2]):
        assert same_bits(plane, torch.zeros_like(plane))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", contract.FLOATS, ids=str)
def test_planes_that_are_not_finite_are_lost_as_a_whole_and_alone(bad: float, dtype: torch.dtype) -> None:
    x = torch.randn(3, 2, 9, 11, generator=torch.Generator().manual_seed(3)).to(dtype)
    x[1, 0] *= 100.0
    clean = x.clone()
    clean[1, 0] = 0.0
    x[1, 0, 8, 10] = bad
    out = decode(Frequency(), encode(Frequency(), x))
    assert out[1, 0].isnan().all()
    expected = decode(Frequency(), encode(Frequency(), clean))
    expected[1, 0] = out[1, 0]
    assert torch.equal(out.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_a_tensor_without_a_finite_plane_decodes_to_nan() -> None:
    x = torch.full((2, 3, 4, 4), math.inf)
    assert decode(Frequency(), encode(Frequency(), x)).isnan().all()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.float32, torch.finfo(torch.float32).max), (torch.bfloat16, 3.3895e38), (torch.float16, 65504.0)],
    ids=str,
)
def test_the_greatest_values_stay_finite(dtype: torch.dtype, value: float) -> None:
    """No sum of a transform overflows, and what overshoots is held within the dtype's range."""
    signs = torch.randint(0, 2, (2, 2, 8, 8), generator=torch.Generator().manual_seed(4)) * 2 - 1
    for x in (torch.full((1, 1, 8, 8), value), signs * value):
        out = decode(Frequency(), encode(Frequency(), x.to(dtype)))
        assert out.isfinite().all()
        assert float((out.double() / value - x.double() / value).abs().max()) < 0.7


def test_values_below_the_least_normal_are_nothing() -> None:
    x = torch.full((1, 1, 8, 8), 2.0**-140)
    x[0, 0, 0, 0] = 2.0**-127
    out = decode(Frequency(), encode(Frequency(), x))
    assert float((out - x).abs().max()) <= 2.0**-126


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    from division.kernels.cpu import library

    x = torch.randn(3, 5, 9, 10, generator=torch.Generator().manual_seed(6))
    with library.forced("reference"):
        whole = encode(Frequency(), x)
        out = decode(Frequency(), whole)
        monkeypatch.setattr(chunks, "_CPU_ELEMENTS", 200)
        assert same_code(encode(Frequency(), x), whole)
        assert same_bits(decode(Frequency(), whole), out)


@pytest.mark.parametrize(
    "setting",
    [{"quality": 0}, {"quality": -1.0}, {"quality": math.nan}, {"quality": math.inf}, {"quality": "8"}, {"slope": -0.1},
     {"slope": math.nan}, {"slope": None}, {"quality": True}],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"got .*{next(iter(setting))}=.*expected"):
        Frequency(**setting)


def test_config_and_name() -> None:
    codec = Frequency(quality=4, slope=0.5)
    assert from_config(codec.config()) == codec
    assert str(codec) == "frequency(quality=4, slope=0.5)"
    assert str(Frequency()) == "frequency"


def test_what_is_no_map_is_refused() -> None:
    assert Frequency().why_not(torch.zeros(4, 5)) == "2 dims, not a map (N, C, *spatial)"
    assert Frequency().why_not(torch.zeros(1, 1, 4, dtype=torch.int32)) == "dtype torch.int32"
