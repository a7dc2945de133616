"""What the recorded rows of `bench fidelity` must show: gradients no further off than promised."""

from collections.abc import Iterator
from statistics import mean, stdev
from typing import Any

import pytest

from benchmarks.rows import recorded
from division.bench import tasks
from division.bench.released import NAME, ROWS

Errors = dict[str, list[float]]
ROW_KEYS = ("device_name", "model", "steps")


def compared() -> Iterator[tuple[str, dict[str, list[dict[str, Any]]]]]:
    """Of each device, network and number of steps: the rows of each method."""
    found: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in recorded("bench_fidelity"):
        by = found.setdefault(tuple(row[key] for key in ROW_KEYS), {})
        by.setdefault(row["method"], []).append(row)
    for key, by in found.items():
        yield f"{key[1]} after {key[2]} steps on {key[0]}", by


def standard_error(values: list[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


COMPARED = dict(compared())


def test_every_network_is_recorded_at_initialisation_and_after_training() -> None:
    names = {(row["model"], row["steps"]) for row in recorded("bench_fidelity") if row["method"] == "division"}
    assert names == {(name, steps) for name in tasks.TASKS for steps in (0, 300)}


@pytest.mark.parametrize("case", COMPARED)
def test_division_is_no_further_off_than_the_released_algorithm(case: str) -> None:
    """Beyond two standard errors. Where that leaves most bytes as they are, those of linear layers: with these on."""
    by = COMPARED[case]
    released = by[NAME]
    if all(row["packed_bytes"] > row["raw_bytes"] / 2 for row in released):
        released = by[ROWS]
    ours, theirs = ([row["relative_error"] for row in rows] for rows in (by["division"], released))
    assert mean(ours) <= mean(theirs) + 2 * (standard_error(ours) ** 2 + standard_error(theirs) ** 2) ** 0.5


@pytest.mark.parametrize("model", ["vit_b_16", "swin_t", "gpt", "llama"])
def test_gradients_of_trained_transformers_are_nearer_than_half_their_length(model: str) -> None:
    errors = [
        row["relative_error"]
        for row in recorded("bench_fidelity")
        if (row["model"], row["method"], row["steps"]) == (model, "division", 300)
    ]
    assert errors
    assert max(errors) <= 0.5
