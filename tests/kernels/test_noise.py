"""The noise: uniform, uncorrelated, and the same words in every version."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from division.kernels import noise
from tests.codecs import naive

#: u * 65536 - 1/2 by (seed, row, element).
KNOWN = {
    (0, 0, 0): 9141,
    (0, 0, 1): 1794,
    (0, 0, 8): 41860,
    (1, 0, 0): 14255,
    (0, 1, 0): 5674,
    (-1, 3, 17): 28197,
    (2**63 - 1, 2**32 + 5, 100): 49060,
    (12345, 2**40, 31): 44262,
    (-(2**63), 2**32 - 1, 4000): 31424,
}


@pytest.mark.parametrize(("where", "half"), KNOWN.items())
def test_known_answers(where: tuple[int, int, int], half: int) -> None:
    seed, row, element = where
    assert float(noise.uniform(seed, row, 1, element + 1)[0, element]) == (half + 0.5) / 65536


@settings(max_examples=60)
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    row=st.one_of(st.integers(0, 100), st.integers(2**31 - 3, 2**33), st.integers(2**40, 2**62)),
    element=st.integers(0, 300),
)
def test_noise_is_the_stated_hash(seed: int, row: int, element: int) -> None:
    assert float(noise.uniform(seed, row, 2, element + 3)[0, element]) == naive.noise(seed, row, element)
    assert float(noise.uniform(seed, row - 1, 2, element + 1)[1, element] if row else 0.0) == (
        naive.noise(seed, row, element) if row else 0.0
    )


def test_any_piece_is_the_same() -> None:
    whole = noise.uniform(9, 2**32 - 2, 6, 75)
    assert whole.shape == (6, 75)
    assert whole.dtype == torch.float32
    for first in range(6):
        for elements in (1, 8, 15, 16, 17, 75):
            assert torch.equal(noise.uniform(9, 2**32 - 2 + first, 1, elements)[0], whole[first, :elements])
    assert noise.uniform(9, 0, 0, 5).shape == (0, 5)
    assert noise.uniform(9, 0, 5, 0).shape == (5, 0)


def test_global_generators_are_not_used() -> None:
    before = torch.get_rng_state()
    noise.uniform(1, 2, 3, 40)
    assert torch.equal(torch.get_rng_state(), before)


def test_values_lie_in_the_middle_of_their_steps() -> None:
    u = noise.uniform(1, 0, 64, 4096)
    half = u.double() * 65536 - 0.5
    assert torch.equal(half, half.round())
    assert float(u.min()) >= 2.0**-17
    assert float(u.max()) <= 1 - 2.0**-17
    assert len(half.unique()) > 60000


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, 12345])
def test_uniform(seed: int) -> None:
    """Chi-square over 256 bins of the high and of the low byte, mean and variance."""
    u = noise.uniform(seed, 0, 128, 2048).double().flatten()
    n = u.numel()
    half = (u * 65536 - 0.5).long()
    for byte in (half >> 8, half & 0xFF):
        expected = n / 256
        chi2 = float(((byte.bincount(minlength=256) - expected) ** 2 / expected).sum())
        assert abs(chi2 - 255) < 5 * (2 * 255) ** 0.5
    assert abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / n) ** 0.5
    assert abs(float(u.var()) - 1 / 12) < 5 * (1 / 180 / n) ** 0.5


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """In standard errors."""
    a, b = a.double().flatten() - 0.5, b.double().flatten() - 0.5
    return float((a * b).mean() * 12 * a.numel() ** 0.5)


@pytest.mark.parametrize("lag", [1, 2, 7, 8, 9, 15, 16, 32, 56, 128, 1024])
def test_elements_are_uncorrelated(lag: int) -> None:
    u = noise.uniform(3, 0, 256, 2048)
    assert abs(correlation(u[:, lag:], u[:, :-lag])) < 5


@pytest.mark.parametrize("lag", [1, 2, 3, 16, 64, 128])
def test_rows_are_uncorrelated(lag: int) -> None:
    u = noise.uniform(3, 2**32 - 100, 256, 1024)
    assert abs(correlation(u[lag:], u[:-lag])) < 5


@pytest.mark.parametrize("other", [1, 2, 3, 255, 2**16, 2**31, 2**32, 2**63 - 1, -1, -2])
def test_seeds_share_nothing(other: int) -> None:
    """Neither in place, nor with the rows in another order: no two rows of two seeds are one."""
    a, b = noise.uniform(0, 0, 256, 512), noise.uniform(other, 0, 256, 512)
    assert abs(correlation(a, b)) < 5
    for shift in (1, 2, 3, 128):
        assert abs(correlation(a, b.roll(shift, 0))) < 5
    keys = torch.cat((noise.row_keys(0, 0, 4096), noise.row_keys(other, 0, 4096)))
    assert len(keys.unique()) > len(keys) - 6  # chance alone: 0.008 in 8192 of 2^32


def test_row_keys_beyond_32_bits() -> None:
    starts = (0, 2**31 - 512, 2**32 - 512, 2**33, 2**40, 2**62)
    keys = torch.cat([noise.row_keys(5, start, 1024) for start in starts])
    assert keys.dtype == torch.int32
    assert len(keys.unique()) > len(keys) - 4


def test_planes_of_a_tensor_average_out() -> None:
    """The mean over rows at one element, and over elements in one row, is as near 1/2 as chance has it."""
    u = noise.uniform(17, 0, 1024, 1024).double()
    for means in (u.mean(0), u.mean(1)):
        z = (means - 0.5) * (12 * 1024) ** 0.5
        assert float(z.abs().max()) < 5
        assert abs(float(z.square().mean()) - 1) < 5 * (2 / 1024) ** 0.5
