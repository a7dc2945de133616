"""The fixed codec against its definition, exact signs, and the bins of a threshold."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from division.codecs import Fixed, Positive
from division.codecs.fixed import split_grid
from tests.codecs.contract import decode, encode


def rows_of(x: Tensor, axis: int) -> Tensor:
    return x.movedim(axis, 0).flatten(1)


def naive(row: Tensor, bits: int, rectified: bool) -> Tensor:
    """One channel, in float64."""
    x = row.double().numpy()
    mean, deviation = float(np.float32(x.mean())), float(np.float32(x.std()))
    count = 2**bits
    if rectified:
        lo, step, first = 0.0, (mean + 3 * deviation) / (count - 1), 1
        codes = np.clip(np.floor(x / step) + 1, 0, count - 1)
        codes = np.where(x > 0, np.maximum(codes, first), 0)
        return torch.from_numpy(np.where(codes > 0, lo + step * (codes - 0.5), 0.0))
    lo, step = mean - 3 * deviation, 6 * deviation / count
    codes = np.clip(np.floor((x - lo) / step), 0, count - 1)
    return torch.from_numpy(lo + step * (codes + 0.5))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize(("size", "axis"), [((8, 3, 5, 7), 1), ((40, 6), 1), ((4, 9, 6), -1), ((6, 33), 0), ((37,), 1)])
def test_it_is_its_definition(bits: int, rectified: bool, size: tuple[int, ...], axis: int) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(bits)) * 3 + 0.5
    x = x.relu() if rectified else x
    codec = Fixed(bits, axis, rectified)
    rows, found = (rows_of(t, axis) if t.dim() > 1 else t[None] for t in (x, decode(codec, encode(codec, x))))
    for row, out in zip(rows, found, strict=True):
        expected = naive(row, bits, rectified)
        off = (out.double() - expected).abs() / row.double().std()
        # An element that lies on a bin's edge, but for rounding, may fall to either side.
        assert off.quantile(0.97) < 1e-5
        assert off.max() < 6.1 / 2**bits


def test_bins_of_one_channel() -> None:
    x = torch.tensor([[-4.0], [-1.0], [-0.4], [0.0], [0.4], [1.0], [4.0], [0.0]])
    deviation = math.sqrt((2 * (16 + 1 + 0.16)) / 8)
    out = decode(Fixed(2), encode(Fixed(2), x)).flatten() / deviation
    assert out.tolist() == pytest.approx([-2.25, -0.75, -0.75, 0.75, 0.75, 0.75, 2.25, 0.75], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32, allow_infinity=False), min_size=1, max_size=40), st.sampled_from([2, 4, 8]))
def test_signs_of_rectified_tensors_are_exact(values: list[float], bits: int) -> None:
    x = torch.tensor(values)[:, None].relu()
    codec = Fixed(bits, rectified=True)
    packed = encode(codec, x)
    assert torch.equal(decode(Positive(codec), packed), (~(x <= 0)).float())
    out = decode(codec, packed)
    if math.isfinite(float(packed.parts[1].sum())):
        assert torch.equal(out > 0, x > 0)
        assert torch.equal(out[x == 0], x[x == 0])


@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_channel_with_a_value_that_is_not_finite_decodes_to_nan(rectified: bool, bad: float) -> None:
    x = torch.randn(4, 3, 5).relu()
    x[1, 2, 3] = bad
    out = decode(Fixed(4, 1, rectified), encode(Fixed(4, 1, rectified), x))
    assert out[:, 2].isnan().all()
    assert out[:, :2].isfinite().all()


def test_a_constant_channel_is_exact() -> None:
    x = torch.tensor([3.7, -1e-30, 0.0, 1e30]).expand(5, 4).clone()
    assert torch.equal(decode(Fixed(4), encode(Fixed(4), x)), x)


def test_a_large_mean_costs_no_precision() -> None:
    x = torch.randn(100, 2) + 1e4
    out = decode(Fixed(8), encode(Fixed(8), x))
    assert (out - x).abs().quantile(0.9) < 3.1 / 255 + 2**-10


@settings(max_examples=100, deadline=None)
@given(st.floats(-20, 20), st.sampled_from([2, 4, 8]))
def test_a_border_lies_on_the_threshold(threshold: float, bits: int) -> None:
    grid = split_grid(torch.tensor([threshold]), bits)
    lo, step, border = (float(part) for part in grid)
    count = 2**bits
    assert 1 <= border <= count - 1
    hi = lo + count * step
    if abs(threshold) <= 3:
        assert lo + border * step == pytest.approx(threshold, abs=1e-5)
        assert abs(lo + 3) <= step * 1.01
        assert abs(hi - 3) <= step * 1.01
    elif threshold < 0:
        assert border == 1
        assert (lo + step, hi) == pytest.approx((-3, 3), abs=1e-5)
    else:
        assert border == count - 1
        assert (lo, hi - step) == pytest.approx((-3, 3), abs=1e-5)


def test_without_a_threshold_all_is_below() -> None:
    assert float(split_grid(torch.tensor([math.nan]), 4).border) == 15


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor made inside, views left out."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not any(isinstance(x, Tensor) and out.data_ptr() == x.data_ptr() for x in args):
            self.bytes = max(self.bytes, out.nbytes)
        return out


def test_encoding_and_decoding_take_little_memory() -> None:
    x = torch.randn(64, 16, 32, 32).relu()
    codec = Fixed(4, rectified=True)
    with Largest() as made:
        packed = encode(codec, x)
    assert packed.parts[0].nbytes <= made.bytes <= x.nbytes / 8
    with Largest() as made:
        decode(codec, packed)
    assert made.bytes == x.nbytes  # the result


@pytest.mark.parametrize("setting", [{"bits": 3}, {"bits": 16}, {"axis": "channel"}])
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="for fixed, expected"):
        Fixed(**setting)
