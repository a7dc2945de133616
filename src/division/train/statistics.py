"""Differences between two methods, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, its standard error, and how many pairs there were.

    `standard_error` is the sample standard deviation (divided by count - 1) over the root of the count; it is NaN for
    one pair, and no claim can then be made.
    """

    mean: float
    standard_error: float
    count: int

    def within(self, margin: float) -> bool:
        """Whether the first is at most `margin` below the second: mean >= -margin - 2 standard errors.

        Raises:
            ValueError: a negative margin, or fewer than two pairs.
        """
        if not margin >= 0:
            raise ValueError(f"margin is {margin}: expected 0 or more, in the unit of the values")
        return self.mean >= -margin - 2 * self._error()

    @property
    def lower(self) -> bool:
        """Whether the first is lower: mean < -2 standard errors (ValueError for fewer than two pairs)."""
        return self.mean < -2 * self._error()

    def _error(self) -> float:
        if self.count < 2:
            raise ValueError(f"{self.count} pair gives no standard error: compare over at least two seeds")
        return self.standard_error


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """The mean and the sample standard deviation (NaN for one value).

    Example:
        >>> mean_and_spread([1.0, 2.0, 3.0])
        (2.0, 1.0)
    """
    if not values:
        raise ValueError("got no values: expected at least one")
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """First minus second, seed by seed.

    Args:
        first: the value by seed; each finite.
        second: the same seeds.

    Raises:
        ValueError: no seeds, or not the same ones.

    Example:
        >>> paired_difference({0: 95.0, 1: 97.0}, {0: 97.0, 1: 97.0})
        Difference(mean=-1.0, standard_error=1.0, count=2)
    """
    if not first or first.keys() != second.keys():
        raise ValueError(
            f"got seeds {sorted(first)} and {sorted(second)}: expected the same seeds on both sides, at least one"
        )
    mean, spread = mean_and_spread([first[seed] - second[seed] for seed in sorted(first)])
    return Difference(mean, spread / math.sqrt(len(first)), len(first))
