from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import cast

import torch
from hypothesis import given
from hypothesis import strategies as st

from division.bench.lifetimes import MOST_BLOCKS, Change, Lifetimes, lifetimes, traced
from division.bench.work import Work

ENDS = {"forward": 100, "backward": 200, "update": 300}
KIB = 1 << 10


def test_a_step_by_hand() -> None:
    found = lifetimes(
        [
            Change(10, 1, 50),  # saved
            Change(20, 2, 30),  # an output between two operations
            Change(25, 3, 20),  # saved
            Change(30, 2, -30),
            Change(110, 2, 8),  # a gradient
            Change(120, 4, 40, "Conv"),  # decoded
            Change(125, 5, 5, "Conv"),
            Change(130, 4, -40),
            Change(131, 5, -5),
            Change(140, 1, -50),
            Change(150, 9, -1000),  # was there before
            Change(160, 4, 70),
            Change(170, 4, -70),
            Change(180, 3, -20),
            Change(210, 6, 10),
            Change(220, 6, -10),
            Change(250, 2, -8),
            Change(310, 7, 9999),  # after the step
        ],
        ENDS,
    )
    assert found == Lifetimes(
        saved=70, gradients=8, transient=45, phase="backward", within="Conv", transient_blocks=(40, 5),
        kept=70, most_transient=70,
    )  # fmt: skip


def test_nothing_allocated() -> None:
    assert lifetimes([], ENDS) == Lifetimes(0, 0, 0, "forward", "", (), 0, 0)


def test_what_is_never_given_back_is_saved_or_a_gradient() -> None:
    found = lifetimes([Change(1, 1, 3), Change(150, 2, 5), Change(250, 3, 7)], ENDS)
    assert (found.saved, found.gradients, found.transient, found.phase) == (3, 5, 7, "update")


@st.composite
def blocks(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(taken, given back, size) of blocks, all times different."""
    count = draw(st.integers(1, 12))
    times = draw(st.permutations(range(1, 300)))[: 2 * count]
    return [
        (min(pair), max(pair), draw(st.integers(1, 1000))) for pair in zip(times[:count], times[count:], strict=True)
    ]


@given(blocks())
def test_every_moment_against_counting_anew(lives: list[tuple[int, int, int]]) -> None:
    changes = [Change(taken, i, size) for i, (taken, _, size) in enumerate(lives)]
    changes += [Change(back, i, -size) for i, (_, back, size) in enumerate(lives)]
    found = lifetimes(sorted(changes, key=lambda change: change.time), ENDS)

    def kind(taken: int, back: int) -> str:
        for name, end in (("saved", 100), ("gradients", 200)):
            if taken <= end:
                return name if back > end else "transient"
        return "transient"

    def held(moment: int, wanted: str) -> int:
        return sum(s for taken, back, s in lives if taken <= moment < back and kind(taken, back) == wanted)

    kinds = ("saved", "gradients", "transient")
    totals = {moment: sum(held(moment, k) for k in kinds) for moment in range(300)}
    assert found.saved + found.gradients + found.transient == max(totals.values())
    first = min(moment for moment in totals if totals[moment] == max(totals.values()))
    assert (found.saved, found.gradients, found.transient) == tuple(held(first, k) for k in kinds)
    assert found.most_transient == max(held(moment, "transient") for moment in range(300))
    assert found.kept == held(100, "saved")
    assert sum(found.transient_blocks) == found.transient or len(found.transient_blocks) == MOST_BLOCKS


class Steps:
    """Takes memory of known sizes in a step."""

    def __init__(self) -> None:
        self.weight = torch.zeros(4)

    def step(self, method: str, phase: Callable[[str], AbstractContextManager[object]]) -> None:
        with phase("forward"):
            saved = [torch.empty(300 * KIB, dtype=torch.uint8)]
            torch.empty(100 * KIB, dtype=torch.uint8)
        with phase("backward"):
            gradient = torch.empty(50 * KIB, dtype=torch.uint8)
            decoded = torch.ones(200 * KIB, dtype=torch.uint8)
            del decoded
            saved.clear()
        with phase("update"):
            del gradient


def test_the_profiler_tells_what_a_real_step_takes() -> None:
    found = traced(cast(Work, Steps()), "none")
    assert found is not None
    assert (found.saved, found.gradients, found.transient) == (300 * KIB, 50 * KIB, 200 * KIB)
    assert (found.phase, found.within, found.transient_blocks) == ("backward", "aten::ones", (200 * KIB,))
    assert (found.kept, found.most_transient) == (300 * KIB, 200 * KIB)
