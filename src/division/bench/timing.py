"""Alternating runs, so that a machine's moods fall on all alike; medians and spreads of their times."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

#: Written before each timed run on a GPU: more than any L2 holds, and long enough to hide the launch of what follows.
FLUSH_BYTES = 1 << 30


class Clock(Protocol):
    """Takes the time of work on one device."""

    def ready(self) -> None:
        """Called before each timed run, outside of its time."""

    def mark(self) -> Any:
        """A point in time, on the device."""

    def settle(self) -> None:
        """Wait until every mark can be read."""

    def between(self, start: Any, end: Any) -> float:
        """Seconds from one mark to another."""


class Wall:
    """The clock of the CPU, where a call that has returned is done."""

    def ready(self) -> None:
        """Nothing to do."""

    def mark(self) -> float:
        """Seconds since some moment."""
        return time.perf_counter()

    def settle(self) -> None:
        """Nothing to wait for."""

    def between(self, start: float, end: float) -> float:
        """Seconds from one mark to another."""
        return end - start


class Events:
    """CUDA events: the GPU's own time between two points of its queue.

    Args:
        device: cuda or cuda:1.
        flush: write a large buffer before each run: the L2 holds nothing of use, and the queue is never empty when the
            run is launched.
    """

    def __init__(self, device: str, flush: bool) -> None:
        self._device = torch.device(device)
        self._buffer = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device) if flush else None

    def ready(self) -> None:
        """Empty the L2."""
        if self._buffer is not None:
            self._buffer.zero_()

    def mark(self) -> Any:
        """An event at the end of the queue."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)

    def between(self, start: Any, end: Any) -> float:
        """Seconds from one mark to another."""
        return float(start.elapsed_time(end)) / 1e3


def clock_of(device: str, flush: bool = False) -> Clock:
    """The clock for a device; see `Events` for `flush`, which only a GPU takes."""
    return Events(device, flush) if torch.device(device).type == "cuda" else Wall()


@dataclass(frozen=True)
class Times:
    """Seconds of each run of one thing.

    Example:
        >>> times = Times((3.0, 1.0, 2.0))
        >>> times.median, times.spread
        (2.0, 0.5)
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The middle half's width as a share of the median: 0.02 where half of the runs lie within ±1 % or so."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median


def alternate(
    works: Mapping[str, Callable[[], object]],
    clock: Clock,
    *,
    most: int,
    least: int = 5,
    seconds: float = float("inf"),
    warm_up: int = 1,
) -> dict[str, Times]:
    """Runs the works in turn, round by round, and takes the time of each run.

    Every round begins with another of them, so that none always follows the same one. What a run returns is let go of
    after its time is taken. Python's cyclic garbage collection waits until the end.

    Args:
        works: what to run, by name.
        clock: of the device it runs on.
        most: rounds at most.
        least: rounds at least.
        seconds: after `least` rounds, stop once the timed runs have taken so long together.
        warm_up: untimed rounds before.

    Returns:
        the times of each, one a round.

    Example:
        >>> x = torch.randn(1000)
        >>> times = alternate({"clone": x.clone, "double": lambda: x + x}, Wall(), most=5)
        >>> len(times["clone"].seconds)
        5
    """
    names = list(works)
    taken: dict[str, list[float]] = {name: [] for name in names}
    spent = 0.0
    with _without_collection():
        for _ in range(warm_up):
            for name in names:
                works[name]()
        clock.settle()
        for turn in range(most):
            start = turn % len(names)
            marks = [(name, *_timed(works[name], clock)) for name in names[start:] + names[:start]]
            clock.settle()
            for name, begin, end in marks:
                taken[name].append(clock.between(begin, end))
                spent += taken[name][-1]
            if turn + 1 >= least and spent >= seconds:
                break
    return {name: Times(tuple(values)) for name, values in taken.items()}


def _timed(work: Callable[[], object], clock: Clock) -> tuple[Any, Any]:
    clock.ready()
    begin = clock.mark()
    result = work()  # alive until the end is marked
    end = clock.mark()
    del result
    return begin, end


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
