"""How many bits each of several items gets under one budget, with a proof of how good that is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
INTEGERS = (1, 2, 3, 4, 5, 6, 7, 8)
#: Sums of the same numbers may differ by so much, relatively.
ROUNDING = 1e-12
_MOST_STATES = 5_000


@dataclass(frozen=True)
class Allocation:
    """Widths, and what they cost.

    Attributes:
        widths: of each item.
        objective: the sum of ``sensitivity / (2**width - 1)**2``.
        bound: what no allocation within the budget can be below: proven.
        total: the sum of ``weight * width``.
    """

    widths: tuple[float, ...]
    objective: float
    bound: float
    total: float


def allocate(
    sensitivities: Sequence[float], weights: Sequence[float], budget: float, ladder: Sequence[float] = INTEGERS,
    tolerance: float = 5e-4, errors: Sequence[float] | None = None,
) -> Allocation:  # fmt: skip
    """The widths that minimise ``sum of sensitivity / (2**width - 1)**2`` at ``sum of weight * width <= budget``.

    What an item gains by its next step up shrinks with each, so that the relaxed problem, in which one step may be taken
    in part, is solved by taking the steps that gain most for their weight. Its value bounds all others from below (it is
    the Lagrangian dual's). The gap between it and the whole steps that fit is closed by dynamic programming over the
    (weight, cost) that no other has both less of, without whatever the bound rules out.

    Source: ActNN (Chen et al., ICML 2021), section 4.2, states the problem; its code takes bits from the least harmed
    item until the budget is met, without a bound.

    Args:
        sensitivities: at least 0.
        weights: at least 0: elements.
        budget: in bits, never exceeded. What is left of it is spent where a step fits.
        ladder: the widths to choose from, ascending, above 0.
        tolerance: how far above the bound the objective may stay, relatively, where it takes long to get closer.
        errors: what each width of the ladder leaves instead of ``1 / (2**width - 1)**2``: positive, falling ever more slowly.

    Raises:
        ValueError: an argument out of range, or a budget for less than the least width or more than the greatest.

    Example:
        >>> found = allocate([441.0, 18.0, 1.0], [1, 1, 2], 9)
        >>> found.widths, found.objective <= 1.0005 * found.bound, found.total
        ((4, 3, 1), True, 9.0)
    """
    c, w, steps = _checked(sensitivities, weights, budget, ladder, tolerance)
    problem = _Problem(c, w, steps, _checked_errors(steps, errors), budget)
    best, bound = problem.relaxed()
    objective = problem.objective(best)
    if objective > bound * (1 + tolerance):
        best, bound = problem.closer(best, bound, tolerance)
        objective = problem.objective(best)
    best = problem.filled(best)
    objective = problem.objective(best)
    widths = tuple(ladder[k] for k in best)
    return Allocation(widths, objective, min(bound, objective), problem.total(best))


def error(width: float) -> float:
    """The variance that a width leaves, in units of a sensitivity: ``1 / (2**width - 1)**2``."""
    return 1 / (2.0**width - 1) ** 2


def _checked(
    sensitivities: Sequence[float], weights: Sequence[float], budget: float, ladder: Sequence[float], tolerance: float
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    c, w, steps = (np.asarray(values, np.float64) for values in (sensitivities, weights, ladder))
    if not len(c) or c.ndim != 1 or c.shape != w.shape:
        raise ValueError(
            f"got {c.size} sensitivities and {w.size} weights, expected one of each for every item, at least one"
        )
    for values, what in ((c, "sensitivities"), (w, "weights")):
        if not (np.isfinite(values) & (values >= 0)).all():
            bad = values[~(np.isfinite(values) & (values >= 0))][0]
            raise ValueError(f"got {bad} among the {what}, expected finite numbers of at least 0")
    if not len(steps) or not (np.isfinite(steps).all() and steps[0] > 0 and (np.diff(steps) > 0).all()):
        raise ValueError(f"got ladder={tuple(ladder)}, expected ascending widths above 0")
    if not 0 <= tolerance < 1:
        raise ValueError(f"got tolerance={tolerance!r}, expected a share from 0 to below 1")
    least, most = (math.fsum(w * step) for step in (steps[0], steps[-1]))
    if not least <= budget * (1 + ROUNDING) or not budget <= most * (1 + ROUNDING):
        raise ValueError(
            f"got a budget of {budget} bits, expected {least:.10g} to {most:.10g}: {steps[0]:g} to {steps[-1]:g} for each"
            f" of {math.fsum(w):.10g} elements"
        )
    return c, w, steps


def _checked_errors(steps: Floats, errors: Sequence[float] | None) -> Floats:
    left = np.array([error(b) for b in steps]) if errors is None else np.asarray(errors, np.float64)
    if left.shape != steps.shape or not (np.isfinite(left) & (left > 0)).all():
        raise ValueError(
            f"got errors={errors}, expected {len(steps)} finite numbers above 0, one a width of the ladder"
        )
    slopes = np.diff(left) / np.diff(steps)
    if (slopes > 0).any() or (np.diff(slopes) < -1e-9 * np.abs(slopes[:-1])).any():
        raise ValueError(f"got errors={errors}, expected numbers that fall with the width, ever more slowly")
    return left


@dataclass
class _Problem:
    """Sensitivities, weights and widths as arrays; a choice is an index into the ladder for each item."""

    c: Floats
    w: Floats
    steps: Floats
    errors: Floats
    budget: float

    def __post_init__(self) -> None:
        self.cost = self.c[:, None] * self.errors  # [items, widths]
        self.weight = self.w[:, None] * self.steps
        self.gain = self.cost[:, :-1] - self.cost[:, 1:]
        self.price = np.diff(self.weight, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(self.price > 0, self.gain / self.price, np.inf)
        # Steps of one item that gain alike differ by rounding, and still have to come one after the other.
        rate = np.minimum.accumulate(rate, axis=1)
        item, level = (index.ravel() for index in np.indices(self.gain.shape))
        self.order = np.lexsort((item, level, -rate.ravel()))
        self.item, self.level, self.rate = item[self.order], level[self.order], rate.ravel()[self.order]
        self.rows = np.arange(len(self.c))
        self.budget = max(self.budget, math.fsum(self.weight[:, 0]))

    def objective(self, choice: NDArray[np.int64]) -> float:
        return math.fsum(self.cost[self.rows, choice])

    def total(self, choice: NDArray[np.int64]) -> float:
        return math.fsum(self.weight[self.rows, choice])

    def relaxed(self) -> tuple[NDArray[np.int64], float]:
        """Whole steps that fit, and the value of the dual at the multiplier where they end: a bound in any order."""
        choice = np.zeros(len(self.c), np.int64)
        prices = self.price[self.item, self.level]
        split = int(np.searchsorted(np.cumsum(prices), self.budget - math.fsum(self.weight[:, 0]), side="right"))
        np.maximum.at(choice, self.item[:split], self.level[:split] + 1)
        while split and self.total(choice) > self.budget:  # by what rounding makes of the sums
            split -= 1
            choice[self.item[split]] -= 1
        self.floor, self.rest = choice.copy(), max(self.budget - self.total(choice), 0.0)
        self.multiplier = float(self.rate[split]) if split < len(prices) else 0.0
        reduced = self.cost - self.cost[self.rows, choice][:, None]
        reduced = reduced + self.multiplier * (self.weight - self.weight[self.rows, choice][:, None])
        least = reduced.min(axis=1)  # 0, but for rounding
        self.reduced = reduced - least[:, None]
        bound = max(self.objective(choice) - self.multiplier * self.rest + math.fsum(least), 0.0)
        return self.filled(choice), bound

    def filled(self, choice: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same with what is left of the budget spent, on the steps that gain most for their weight first."""
        choice = choice.copy()
        left = self.budget - self.total(choice)
        slim = self.price.min() if self.price.size else 0.0
        for item, level in zip(self.item, self.level, strict=True):
            if left < slim:
                break
            if level == choice[item] and self.price[item, level] <= left * (1 + ROUNDING):
                choice[item] += 1
                exact = self.budget - self.total(choice)
                if exact < 0:
                    choice[item] -= 1
                else:
                    left = exact
        return choice

    def closer(self, best: NDArray[np.int64], bound: float, tolerance: float) -> tuple[NDArray[np.int64], float]:
        """A choice nearer to the optimum, if there is one, and a bound that comes near it.

        With the multiplier fixed, any choice costs ``bound + its reduced costs + multiplier * what it leaves of the
        budget``. Whatever reduced costs alone bring within ``slack`` of the best known is no gain.
        """
        slack = tolerance * bound / 2
        room = self.objective(best) - bound - slack
        options = [np.union1d(np.flatnonzero(row < room), at) for row, at in zip(self.reduced, self.floor, strict=True)]
        active = sorted((i for i, own in enumerate(options) if len(own) > 1), key=lambda i: -self.w[i])
        weight, cost = np.zeros(1), np.zeros(1)  # of the states: over those of the floor; the latter reduced
        spans = [self.weight[i, options[i][[0, -1]]] - self.weight[i, self.floor[i]] for i in active]
        lows, highs = (np.append(np.cumsum([span[e] for span in spans][::-1])[::-1], 0.0) for e in (0, 1))
        grain, lost = slack / max(len(active), 1), 0.0
        most = self.rest + 4 * math.ulp(self.budget)  # whether it fits to the last bit, its total tells in the end
        trail: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        for n, i in enumerate(active):
            own = options[i]
            extra = self.weight[i, own] - self.weight[i, self.floor[i]]
            weights = (weight[:, None] + extra).ravel()
            costs = (cost[:, None] + self.reduced[i, own]).ravel()
            unused = np.maximum(self.rest - weights - highs[n + 1], 0.0)
            kept = np.flatnonzero((weights + lows[n + 1] <= most) & (costs + self.multiplier * unused < room))
            if not len(kept):
                return best, max(bound, self.objective(best) - slack - lost)
            kept, taken = self._undominated(weights, costs, kept, grain)
            lost += taken
            trail.append((kept // len(own), own[kept % len(own)]))
            weight, cost = weights[kept], costs[kept]
        final = cost + self.multiplier * np.maximum(self.rest - weight, 0.0)
        for state in map(int, np.flatnonzero(weight > 2 * self.rest - most)):  # as near the budget as rounding comes
            if self.total(self._choice(state, trail, active)) > self.budget:
                final[state] = np.inf
        state = int(final.argmin())
        bound = max(bound, min(bound + float(final[state]) - lost, self.objective(best) - slack - lost))
        if not np.isfinite(final[state]):
            return best, bound
        choice = self._choice(state, trail, active)
        return (choice if self.objective(choice) < self.objective(best) else best), bound

    def _choice(
        self, state: int, trail: list[tuple[NDArray[np.int64], NDArray[np.int64]]], active: list[int]
    ) -> NDArray[np.int64]:
        """The choice that ends in a state, traced back."""
        choice = self.floor.copy()
        for (parents, picks), i in zip(reversed(trail), reversed(active), strict=True):
            choice[i], state = picks[state], int(parents[state])
        return choice

    def _undominated(
        self, weights: Floats, costs: Floats, kept: NDArray[np.int64], grain: float
    ) -> tuple[NDArray[np.int64], float]:
        """The states of which no other is lighter and, in steps of ``grain``, as cheap; and by how much that may err."""
        value = costs[kept] - self.multiplier * weights[kept]
        by_weight = np.lexsort((value, weights[kept]))
        kept, value = kept[by_weight], value[by_weight]
        while True:
            steps = np.floor((value - value.min()) / grain) if grain > 0 else value
            before = np.minimum.accumulate(steps)
            better = np.append(True, steps[1:] < before[:-1])
            if np.count_nonzero(better) <= _MOST_STATES:
                return kept[better], grain
            grain = max(grain * 2, (value.max() - value.min()) / (4 * _MOST_STATES))
