"""Rows of figures: one JSON object a line, each with what is needed to know where it comes from."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import division
from division.train.errors import SettingsError
from division.train.files import finite, write_atomically

Row = dict[str, Any]


def checkout() -> Path | None:
    """The source checkout that this package is imported from; None if it is installed elsewhere.

    Example:
        >>> root = checkout()
        >>> root is None or (root / "benchmarks").is_dir()
        True
    """
    root = Path(division.__file__).parents[2]
    return root if (root / "benchmarks" / "results").is_dir() and (root / "pyproject.toml").is_file() else None


def results(name: str) -> Path:
    """Where the rows of a measurement are kept in the source checkout.

    Raises:
        SettingsError: division does not run from one.
    """
    root = checkout()
    if root is None:
        here = Path(division.__file__).parent
        raise SettingsError(
            [f"--record writes into a source checkout, and {here} is in none: give --json FILE instead"]
        )
    return root / "benchmarks" / "results" / f"bench_{name}.jsonl"


def provenance(device: str = "cpu") -> Row:
    """Device, threads, versions, commit and time of a measurement.

    Args:
        device: cpu, cuda or cuda:1.

    Returns:
        `device` (its type), `device_name`, `threads`, `torch`, `triton` (None without), `division`, `python`, `commit`
        (with a ``+`` if the sources had changes; None outside a git checkout) and `time`.

    Example:
        >>> provenance()["device"]
        'cpu'
    """
    kind = torch.device(device).type
    return {
        "device": kind,
        "device_name": cpu_name() if kind == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "division": division.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def cpu_name() -> str:
    """The processor's own name for itself, or else the machine's."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it isn't."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def line(row: Row) -> str:
    r"""A row as one line of JSON; NaN and infinities become null.

    Example:
        >>> line({"op": "encode", "gbps": float("nan")})
        '{"op": "encode", "gbps": null}\n'
    """
    return json.dumps(finite(row), allow_nan=False) + "\n"


def significant(value: float) -> float:
    """A measured number to five significant digits, which is more than a time is good for.

    Example:
        >>> significant(0.01234567), significant(123456.7)
        (0.012346, 123460.0)
    """
    return float(f"{value:.5g}")


def read(path: Path) -> list[Row]:
    """The rows of a file, in its order; none where there is no such file."""
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def write(path: Path, rows: Iterable[Row]) -> None:
    """The rows become the file, whole or not at all.

    Raises:
        RunError: the system refused.
    """
    text = "".join(line(row) for row in rows)
    write_atomically(path, lambda file: file.write(text.encode()))


def replace(path: Path, rows: list[Row], by: Sequence[str] = ("device_name",)) -> None:
    """The rows take the place of those the file holds of the same `by`; others stay.

    Args:
        path: of the file, which needn't be there.
        rows: what was measured.
        by: the columns that tell what was measured anew.

    Raises:
        RunError: the system refused.
    """
    measured = {tuple(row[column] for column in by) for row in rows}
    write(path, [*(row for row in read(path) if tuple(row[column] for column in by) not in measured), *rows])


def _commit() -> str | None:
    root = checkout()
    head = _git(root, "rev-parse", "--short", "HEAD") if root else None
    return head + ("+" if _git(root, "status", "--porcelain", "src") else "") if root and head else None


def _git(root: Path | None, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
