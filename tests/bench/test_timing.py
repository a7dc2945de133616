import gc
import time

import pytest

from division.bench.timing import Times, Wall, alternate, clock_of
from tests.bench.clock import Scripted


def test_median_and_spread() -> None:
    times = Times((4.0, 1.0, 3.0, 2.0, 100.0))
    assert times.median == 3.0
    assert times.spread == (4.0 - 2.0) / 3.0
    assert Times((2.0,)).spread == 0.0


def test_rounds_take_turns_at_being_first() -> None:
    ran: list[str] = []
    works = {name: lambda name=name: ran.append(name) for name in ("a", "b", "c")}
    clock = Scripted(float)
    times = alternate(works, clock, most=4, warm_up=2)
    assert "".join(ran) == "abc" * 2 + "abc" + "bca" + "cab" + "abc"
    assert times["a"].seconds == (0.0, 5.0, 7.0, 9.0)
    assert times["b"].seconds == (1.0, 3.0, 8.0, 10.0)
    assert times["c"].seconds == (2.0, 4.0, 6.0, 11.0)
    assert clock.readied == 12
    assert clock.settled == 5


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 3), (7.9, 4), (8.0, 4), (8.1, 5), (1e9, 6)])
def test_it_stops_when_the_time_is_spent_but_not_before_the_least(seconds: float, rounds: int) -> None:
    works = {"a": int, "b": int}
    times = alternate(works, Scripted(lambda _: 1.0), most=6, least=3, seconds=seconds)
    assert [len(each.seconds) for each in times.values()] == [rounds, rounds]


def test_a_result_lives_until_its_time_is_taken() -> None:
    class Result:
        def __del__(self) -> None:
            events.append("freed")

    class Noting(Scripted):
        def mark(self) -> int:
            events.append("mark")
            return super().mark()

    events: list[str] = []
    alternate({"a": Result}, Noting(float), most=1, warm_up=0)
    assert events == ["mark", "mark", "freed"]


def test_collection_waits_and_comes_back() -> None:
    enabled: list[bool] = []
    alternate({"a": lambda: enabled.append(gc.isenabled())}, Wall(), most=2)
    assert enabled == [False] * 3
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        alternate({"a": lambda: 1 / 0}, Wall(), most=2)
    assert gc.isenabled()


def test_the_clock_of_the_cpu_is_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of("cpu", flush=True)
    ticks = iter((1.0, 3.5))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert clock.between(clock.mark(), clock.mark()) == 2.5
