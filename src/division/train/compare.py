"""Several methods over the same seeds, each run in a process of its own so that its peak memory is its own."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from division.train import data, run
from division.train.errors import RunError, SettingsError
from division.train.files import write_json
from division.train.settings import TrainSettings
from division.train.statistics import Difference, mean_and_spread, paired_difference

BASELINE = "none"
FIELDS = ("method", "seed", "top1", "raw_bytes", "packed_bytes", "ratio", "peak_rss_bytes", "images_per_s")
PROVENANCE = ("settings", "device", "versions")

Row = dict[str, Any]


def fields(name: str) -> tuple[str, ...]:
    """What the rows of a data set tell, besides where and with what they were made: `FIELDS`, in the terms of text.

    Example:
        >>> sorted(set(fields("text")) - set(fields("digits")))
        ['bits_per_byte', 'sequences_per_s']
    """
    kind = data.SETS[name]
    return (*FIELDS[:-1], f"{kind.unit}_per_s", "bits_per_byte") if kind.text else FIELDS


def compare(
    base: TrainSettings, methods: Sequence[str], seeds: Sequence[int], folder: Path, console: Console
) -> list[Row]:
    """Trains every method with every seed, one after another, and keeps each run in a folder named by its settings.

    A run that `folder` holds already is read instead, one that was stopped is resumed: the same command goes on.

    Args:
        base: the settings that all runs share.
        methods: names of `division.methods`.
        seeds: the same for every method, so that differences can be paired.
        folder: holds the runs.
        console: where progress is shown.

    Returns:
        one row a run with the keys `fields` of the data set and `PROVENANCE`.

    Raises:
        SettingsError: before anything is trained, with every problem of every method.
        RunError: a run failed.
    """
    if not methods or not seeds or len(set(methods)) < len(methods) or len(set(seeds)) < len(seeds):
        got = f"methods are {', '.join(methods) or 'missing'}, seeds are {', '.join(map(str, seeds)) or 'missing'}"
        raise SettingsError([f"{got}: expected at least one of both, each once"])
    runs = [dataclasses.replace(base, method=method, seed=seed) for seed in seeds for method in methods]
    problems: dict[str, None] = {}
    for settings in runs[: len(methods)]:
        try:
            settings.check()
        except SettingsError as error:
            problems.update(dict.fromkeys(error.problems))
    if problems:
        raise SettingsError(list(problems))
    rows = []
    for number, settings in enumerate(runs, 1):
        console.print(f"run {number} of {len(runs)}: {settings.method}, seed {settings.seed}", highlight=False)
        summary = _finished(settings, folder / settings.name)
        rows.append({key: summary[key] for key in fields(base.data) + PROVENANCE})
    return sorted(rows, key=lambda row: (methods.index(row["method"]), row["seed"]))


def _finished(settings: TrainSettings, folder: Path) -> dict[str, Any]:
    summary = run.summary(folder)
    if summary is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"could not make {folder}: {error.strerror}; give another --out") from error
        if not (folder / run.CONFIG).exists():
            write_json(folder / run.CONFIG, dataclasses.asdict(settings))
        code = subprocess.run([sys.executable, "-m", "division.train", str(folder)], check=False).returncode
        summary = run.summary(folder)
        if code or summary is None:
            raise RunError(f"the run in {folder} ended with exit code {code}: see above; the same command goes on")
    return summary


def difference(rows: Sequence[Row], method: str, baseline: str = BASELINE) -> Difference:
    """The difference in top-1 (points) between a method and the baseline, paired by seed."""
    by_seed = [{row["seed"]: row["top1"] for row in rows if row["method"] == name} for name in (method, baseline)]
    return paired_difference(*by_seed)


def table(rows: Sequence[Row]) -> Table:
    """Mean and spread (standard deviation over the seeds) by method, and the paired difference to `none`."""
    shown = Table(title="top-1 in percent, over the seeds", title_justify="left")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    unit = next(key for key in rows[0] if key.endswith("_per_s")).removesuffix("_per_s")
    measured = "raw MB", "packed MB", "ratio", "peak MB", f"{unit}/s"
    heads = "seeds", "top-1", "spread", f"difference to {BASELINE}", *measured
    shown.add_column("method")
    for head in heads:
        shown.add_column(head, justify="right")
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        top1, spread = mean_and_spread([row["top1"] for row in own])
        gap = "" if method == BASELINE or BASELINE not in methods else _signed(difference(rows, method))
        raw, packed, ratio, peak, speed = (_mean(own, key) for key in (*FIELDS[3:-1], f"{unit}_per_s"))
        shown.add_row(
            method, str(len(own)), f"{top1:.2f}", _or_dash(spread), gap,
            f"{raw / 1e6:.2f}", f"{packed / 1e6:.2f}", f"{ratio:.2f}", f"{peak / 1e6:.0f}", f"{speed:.0f}",
        )  # fmt: skip
    return shown


def _mean(rows: Sequence[Row], key: str) -> float:
    values = [row[key] for row in rows if row[key] is not None]
    return mean_and_spread(values)[0] if values else math.nan


def _signed(gap: Difference) -> str:
    return f"{gap.mean:+.2f} ± {_or_dash(gap.standard_error)}"


def _or_dash(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
