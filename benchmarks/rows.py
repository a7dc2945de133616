"""Recorded rows: one JSON object a line, with what is needed to know where a figure comes from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from division.bench.rows import provenance, read, write

__all__ = ["RESULTS", "amp_of", "provenance", "record", "recorded", "replace"]

RESULTS = Path(__file__).parent / "results"


def record(name: str, rows: list[dict[str, Any]]) -> Path:
    """Replace the rows of one measurement: ``results/<name>.jsonl``."""
    path = RESULTS / f"{name}.jsonl"
    write(path, rows)
    return path


def replace(name: str, rows: list[dict[str, Any]], by: Callable[[dict[str, Any]], object]) -> Path:
    """The rows take the place of those of the same ``by``, or come last; others stay."""
    measured, old = {by(row) for row in rows}, recorded(name)
    order = list(dict.fromkeys(by(row) for row in (*old, *rows)))
    found = [*(row for row in old if by(row) not in measured), *rows]
    return record(name, sorted(found, key=lambda row: order.index(by(row))))


def amp_of(row: dict[str, Any]) -> str:
    """The autocast that a training ran under; rows of before there was a choice ran under none."""
    return str(row.get("settings", {}).get("amp", "none"))


def recorded(name: str) -> list[dict[str, Any]]:
    """The rows of one measurement, in the order they were recorded; none if it never was."""
    return read(RESULTS / f"{name}.jsonl")
