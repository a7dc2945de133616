"""Recorded rows: one JSON object a line, with what is needed to know where a figure comes from."""

from pathlib import Path
from typing import Any

from division.bench.rows import provenance, read, write

__all__ = ["RESULTS", "provenance", "record", "recorded"]

RESULTS = Path(__file__).parent / "results"


def record(name: str, rows: list[dict[str, Any]]) -> Path:
    """Replace the rows of one measurement: ``results/<name>.jsonl``."""
    path = RESULTS / f"{name}.jsonl"
    write(path, rows)
    return path


def recorded(name: str) -> list[dict[str, Any]]:
    """The rows of one measurement, in the order they were recorded; none if it never was."""
    return read(RESULTS / f"{name}.jsonl")
