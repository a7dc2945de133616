import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from division.train.statistics import Difference, mean_and_spread, paired_difference

values = st.lists(st.floats(-100, 100), min_size=2, max_size=9)


def test_known_answer() -> None:
    gap = paired_difference({0: 96.0, 1: 97.5, 2: 98.0}, {2: 97.0, 0: 97.0, 1: 97.0})
    assert gap.count == 3
    assert gap.mean == pytest.approx(0.5 / 3)
    # Differences -1, 0.5, 1: squares about their mean sum to 13/6, over 2 is 13/12, over 3 is 13/36.
    assert gap.standard_error == pytest.approx(math.sqrt(13 / 36))


@given(values)
def test_difference_to_itself_is_nothing(xs: list[float]) -> None:
    by_seed = dict(enumerate(xs))
    gap = paired_difference(by_seed, by_seed)
    assert gap == Difference(0.0, 0.0, len(xs))
    assert gap.within(0)
    assert not gap.lower


@given(values, st.floats(-50, 50))
def test_a_constant_shift_has_no_error(xs: list[float], shift: float) -> None:
    gap = paired_difference({i: x + shift for i, x in enumerate(xs)}, dict(enumerate(xs)))
    assert gap.mean == pytest.approx(shift, abs=1e-9)
    assert gap.standard_error == pytest.approx(0, abs=1e-9)


def test_within_and_lower_at_their_limits() -> None:
    assert Difference(-0.9, 0.2, 3).within(0.5)
    assert not Difference(-0.91, 0.2, 3).within(0.5)
    assert Difference(3.0, 0.0, 3).within(0.5)
    assert Difference(-0.41, 0.2, 3).lower
    assert not Difference(-0.4, 0.2, 3).lower
    assert not Difference(1.0, 0.2, 3).lower


def test_one_pair_allows_no_claim() -> None:
    gap = paired_difference({0: 96.0}, {0: 97.0})
    assert gap.mean == -1
    assert math.isnan(gap.standard_error)
    with pytest.raises(ValueError, match="two seeds"):
        gap.within(0.5)
    with pytest.raises(ValueError, match="two seeds"):
        _ = gap.lower


def test_seeds_must_pair() -> None:
    with pytest.raises(ValueError, match=r"\[0\] and \[1\]"):
        paired_difference({0: 1.0}, {1: 1.0})
    with pytest.raises(ValueError, match="at least one"):
        paired_difference({}, {})
    with pytest.raises(ValueError, match="margin"):
        Difference(0.0, 0.1, 2).within(-1)
    with pytest.raises(ValueError, match="no values"):
        mean_and_spread([])
