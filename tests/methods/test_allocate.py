"""The allocation of bits against a search of everything."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from division.methods.actnn import _ladder, _left
from division.methods.allocate import INTEGERS, allocate, error


def brute(c: list[float], w: list[float], budget: float, ladder: tuple[float, ...]) -> float:
    best = math.inf
    for widths in product(ladder, repeat=len(c)):
        if math.fsum(a * b for a, b in zip(w, widths, strict=True)) <= budget:
            best = min(best, math.fsum(x * error(b) for x, b in zip(c, widths, strict=True)))
    return best


sensitivities = st.one_of(st.just(0.0), st.floats(-30, 30).map(lambda e: 10.0**e), st.floats(0.1, 10))
weights = st.one_of(st.integers(1, 9).map(float), st.floats(0, 6).map(lambda e: 10.0**e))
averages = st.integers(4, 32).map(lambda quarters: quarters / 4) | st.floats(1, 8)
LADDERS = (INTEGERS, (1, 2, 4, 8), (1, 1.25, 1.5, 1.75, 2, 2.25), (3,))


@settings(max_examples=150)
@given(
    items=st.lists(st.tuples(sensitivities, weights), min_size=1, max_size=4),
    ladder=st.sampled_from(LADDERS),
    share=st.floats(0, 1),
)
def test_within_a_thousandth_of_the_optimum(
    items: list[tuple[float, float]], ladder: tuple[float, ...], share: float
) -> None:
    c, w = [c for c, _ in items], [w for _, w in items]
    budget = math.fsum(w) * (ladder[0] + share * (ladder[-1] - ladder[0]))
    found = allocate(c, w, budget, ladder)
    budget = max(budget, math.fsum(w) * ladder[0])
    best = brute(c, w, budget, ladder)
    assert found.total <= budget or set(found.widths) == {ladder[0]}
    assert found.total == pytest.approx(math.fsum(a * b for a, b in zip(w, found.widths, strict=True)), rel=1e-12)
    assert found.objective == pytest.approx(math.fsum(x * error(b) for x, b in zip(c, found.widths, strict=True)))
    assert found.objective <= best * 1.001
    assert found.bound <= best * (1 + 1e-9)
    assert found.objective <= found.bound * 1.001


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6), count=st.integers(5, 60), spread=st.floats(0, 6), heavy=st.floats(0, 3),
    bits=st.floats(1, 8),
)  # fmt: skip
def test_the_bound_is_met_for_networks(seed: int, count: int, spread: float, heavy: float, bits: float) -> None:
    random = np.random.default_rng(seed)
    c, w = 10 ** random.uniform(0, spread, count), np.ceil(10 ** random.uniform(0, heavy, count))
    budget = float(w.sum()) * bits
    found = allocate(c.tolist(), w.tolist(), budget)
    assert found.total <= budget
    assert found.bound <= found.objective <= found.bound * 1.001


def test_greed_alone_is_not_enough() -> None:
    """The step that gains most does not fit; two that gain less do."""
    c, w = [100.0, 60.0, 60.0], [3.0, 2.0, 2.0]
    found = allocate(c, w, 7 + 4, (1, 2))
    assert list(found.widths) == [1, 2, 2]
    assert found.objective == brute(c, w, 11, (1, 2))


@settings(max_examples=40)
@given(
    items=st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.1, 10)), min_size=1, max_size=4), share=st.floats(0, 1)
)
def test_other_errors(items: list[tuple[float, float]], share: float) -> None:
    c, w = [c for c, _ in items], [w for _, w in items]
    ladder, errors = (1, 1.5, 2, 3), (9.0, 5.0, 1.0, 0.5)
    budget = math.fsum(w) * (1.001 + 1.999 * share)
    found = allocate(c, w, budget, ladder, errors=errors)
    best = min(
        math.fsum(x * errors[k] for x, k in zip(c, choice, strict=True))
        for choice in product(range(4), repeat=len(c))
        if math.fsum(a * ladder[k] for a, k in zip(w, choice, strict=True)) <= budget
    )
    assert found.bound <= best * (1 + 1e-9)
    assert found.objective <= best * 1.001


@pytest.mark.parametrize(
    ("samples", "average", "budget"), [(100, 1.25, 1280.0), (8, 2.0, 1300.0), (7, 3.3, 3400.0), (3, 1.5, 2000.0)]
)
def test_steps_that_gain_alike_stay_in_order(samples: int, average: float, budget: float) -> None:
    """Levels between two whole numbers gain the same for each bit, but for rounding."""
    ladder = _ladder(samples, average)
    found = allocate([1.0], [1024], budget, ladder, errors=[_left(width) for width in ladder])
    assert found.widths == (max(width for width in ladder if 1024 * width <= budget),)
    assert found.total <= budget


@settings(max_examples=150)
@example(items=[(0.0, 1.0), (1.0, 1.0), (1.0, 1.0)], samples=202, average=1.5, share=None)  # fits to the last bit
@given(
    items=st.lists(st.tuples(sensitivities, weights), min_size=1, max_size=3),
    samples=st.integers(1, 300), average=averages, share=st.floats(0, 1) | st.none(),
)  # fmt: skip
def test_ladders_of_actnn(items: list[tuple[float, float]], samples: int, average: float, share: float | None) -> None:
    c, w = (np.array(each) for each in zip(*items, strict=True))
    ladder = _ladder(samples, average)
    errors = np.array([_left(width) for width in ladder])
    budget = math.fsum(w) * (average if share is None else ladder[0] + share * (ladder[-1] - ladder[0]))
    found = allocate(c.tolist(), w.tolist(), budget, ladder, errors=errors.tolist())
    assert found.total <= budget or set(found.widths) == {ladder[0]}
    assert found.total == pytest.approx(math.fsum(w * found.widths), rel=1e-12)
    cost, total = np.zeros(()), np.zeros(())
    for own, weight in items:
        cost, total = np.add.outer(cost, own * errors), np.add.outer(total, weight * np.array(ladder))
    for choice in np.argwhere(abs(total - budget) <= 8 * math.ulp(budget)):  # sums as `found.total` is one
        total[tuple(choice)] = math.fsum(weight * ladder[k] for (_, weight), k in zip(items, choice, strict=True))
    best = cost[total <= max(budget, total.min())].min()
    assert found.objective <= best * 1.001
    assert found.bound <= best * (1 + 1e-9)
    assert found.objective <= found.bound * 1.001


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6), count=st.integers(4, 60), samples=st.integers(1, 300), average=averages,
    heavy=st.floats(0, 6),
)  # fmt: skip
def test_networks_with_ladders_of_actnn(seed: int, count: int, samples: int, average: float, heavy: float) -> None:
    random = np.random.default_rng(seed)
    c, w = 10 ** random.uniform(0, 6, count), np.ceil(10 ** random.uniform(0, heavy, count))
    budget, ladder = float(w.sum()) * average, _ladder(samples, average)
    found = allocate(c.tolist(), w.tolist(), budget, ladder, errors=[_left(width) for width in ladder])
    assert found.total <= budget
    assert found.bound <= found.objective <= found.bound * 1.001


def test_what_is_left_is_spent() -> None:
    assert allocate([0.0, 0.0, 0.0], [1, 1, 1], 7).widths == (3, 2, 2)
    assert allocate([0.0, 5.0], [10, 1], 22).widths[1] > 1
    assert allocate([1.0, 1.0], [0, 1], 2).widths == (8, 2)


def test_ends_of_the_budget() -> None:
    assert allocate([1.0, 2.0], [0.1, 0.2], 0.1 + 0.2).widths == (1, 1)
    assert allocate([1.0, 2.0], [0.1, 0.2], (0.1 + 0.2) * 8).widths == (8, 8)
    below = allocate([1.0, 2.0, 3.0], [0.1, 0.2, 0.0], (0.1 + 0.2) * (1 - 1e-13))
    assert list(below.widths) == [1, 1, 8]
    assert below.bound == below.objective


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([], [], 1), "got 0 sensitivities and 0 weights"),
        (([1.0], [1, 2], 3), "got 1 sensitivities and 2 weights"),
        (([math.nan], [1], 3), "got nan among the sensitivities"),
        (([-1.0], [1], 3), "got -1.0 among the sensitivities"),
        (([1.0], [math.inf], 3), "got inf among the weights"),
        (([1.0, 1.0], [3, 5], 7), "got a budget of 7 bits, expected 8 to 64: 1 to 8 for each of 8 elements"),
        (([1.0, 1.0], [3, 5], 65), "got a budget of 65 bits"),
        (([1.0], [1], math.nan), "got a budget of nan bits"),
        (([1.0], [1], 3, ()), "got ladder=()"),
        (([1.0], [1], 3, (2, 1)), r"got ladder=\(2, 1\), expected ascending"),
        (([1.0], [1], 3, (0, 1)), r"got ladder=\(0, 1\)"),
        (([1.0], [1], 3, (1, 8), 1), "got tolerance=1"),
        (([1.0], [1], 3, (1, 8), 0.1, [1.0]), r"got errors=\[1.0\], expected 2 finite numbers"),
        (
            ([1.0], [1], 3, (1, 2, 3), 0.1, [3.0, 2.0, 0.5]),
            "expected numbers that fall with the width, ever more slowly",
        ),
        (([1.0], [1], 3, (1, 2, 3), 0.1, [3.0, 4.0, 4.5]), "expected numbers that fall"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        allocate(*arguments)
