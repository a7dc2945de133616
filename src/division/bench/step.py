"""Whole training steps, method against method: throughput, bytes kept, and the most memory held."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import torch

from division.bench import peak
from division.bench.baselines import BASELINES
from division.bench.rows import Row, provenance, significant
from division.bench.settings import StepSettings, Workload
from division.bench.timing import Clock, Times, alternate, clock_of
from division.bench.work import Work, tf32

Tell = Callable[[int, str], object]


def units(settings: StepSettings) -> int:
    """What :func:`measure` counts up to: one for the times of a workload, one for each peak."""
    return sum(1 + len(workload.methods) * settings.peak for workload in settings.workloads)


def measure(settings: StepSettings, tell: Tell = lambda done, what: None, clock: Clock | None = None) -> Iterator[Row]:
    """Measures training steps, each workload's methods in turn.

    Args:
        settings: checked before anything is measured.
        tell: called with the units done and what is measured next.
        clock: for the times; by default that of the device.

    Yields:
        one row a method, with the columns that `docs/benchmarks.md` names; a workload's rows come together.

    Raises:
        SettingsError: with every problem of the settings.
        RunError: the process that measures a peak failed.
    """
    settings.check()
    done = 0
    for workload in settings.workloads:
        tell(done, f"{workload.title}: steps")
        work = Work(workload)
        with tf32(workload):
            rows = _timed(work, settings, clock or clock_of(workload.device))
            done += 1
            # The CPU's peaks are taken in other processes, for which this one makes room.
            kept = work if torch.device(workload.device).type == "cuda" else None
            del work
            gc.collect()
            for row in rows if settings.peak else ():
                tell(done, f"{workload.title}: peak of {row['method']}")
                row.update(_measured_peak(workload, row, kept))
                done += 1
            del kept
        yield from rows


def _timed(work: Work, settings: StepSettings, clock: Clock) -> list[Row]:
    workload = work.workload

    def step_of(method: str) -> Callable[[], None]:
        return lambda: work.step(method)

    steps = {method: step_of(method) for method in workload.methods}
    gc.collect()
    times = alternate(steps, clock, most=settings.repeats, least=min(3, settings.repeats), seconds=settings.seconds)
    raw = work.accounts("none")[0]
    source = provenance(workload.device)
    return [{**_row(workload, method, times), **_kept(work, method, raw), **source} for method in workload.methods]


def _row(workload: Workload, method: str, times: dict[str, Times]) -> Row:
    own = times[method]
    return {
        "model": workload.model,
        "image_size": workload.image_size,
        "batch_size": workload.batch_size,
        "method": method,
        "amp": workload.amp,
        "layout": "channels_last" if workload.channels_last else "contiguous",
        "tf32": workload.tf32,
        "throughput_ratio": significant(times["none"].median / own.median),
        "images_per_s": significant(workload.batch_size / own.median),
        "seconds": significant(own.median),
        "spread": significant(own.spread),
        "repeats": len(own.seconds),
        "peak_bytes": None,
    }


def _kept(work: Work, method: str, raw: int) -> Row:
    """Raw and packed bytes by the report; what a baseline keeps, the report can't see."""
    return {"raw_bytes": raw, "packed_bytes": None if method in BASELINES else work.accounts(method)[1]}


def _measured_peak(workload: Workload, row: Row, work: Work | None) -> Row:
    found = peak.measure(workload, row["method"], work)
    if row["packed_bytes"] is None:
        found["packed_bytes"] = found.get("kept_bytes")
    return found
