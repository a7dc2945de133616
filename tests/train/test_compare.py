import dataclasses
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from division.train import compare as comparing
from division.train import run, settings
from division.train.errors import RunError, SettingsError
from division.train.settings import TrainSettings

SMALL = TrainSettings(width=2, limit=32, batch_size=16, epochs=1)


@pytest.fixture
def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Runs trainings in this process instead of a fresh one, and tells which."""
    folders: list[Path] = []

    def in_process(command: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        folder = Path(command[-1])
        folders.append(folder)
        run.resume(settings.read(folder / "config.json"), folder)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", in_process)
    return folders


def test_rows_and_reuse(started: list[Path], quiet: Console, tmp_path: Path) -> None:
    rows = comparing.compare(SMALL, ["none", "division"], [0, 1], tmp_path, quiet)
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("none", 0), ("none", 1), ("division", 0), ("division", 1),
    ]  # fmt: skip
    assert all(tuple(row) == comparing.FIELDS + comparing.PROVENANCE for row in rows)
    assert all(row["ratio"] == 1 for row in rows[:2])
    assert all(row["ratio"] > 4 for row in rows[2:])
    assert len(started) == 4
    again = comparing.compare(SMALL, ["division", "none"], [0, 1], tmp_path, quiet)
    assert len(started) == 4
    assert again == [*rows[2:], *rows[:2]]
    comparing.compare(dataclasses.replace(SMALL, lr=0.2), ["none"], [0], tmp_path, quiet)
    assert len(started) == 5


def test_text_is_compared_in_bits_a_byte(started: list[Path], quiet: Console, tmp_path: Path) -> None:
    small = TrainSettings(data="text", model="gpt", width=32, limit=8, batch_size=4, epochs=1)
    rows = comparing.compare(small, ["none", "division"], [0], tmp_path, quiet)
    assert all(tuple(row) == comparing.fields("text") + comparing.PROVENANCE for row in rows)
    assert all(4 < row["bits_per_byte"] < 9 for row in rows)
    quiet.print(comparing.table(rows))
    assert "sequences/s" in quiet.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_in_a_fresh_process(quiet: Console, tmp_path: Path) -> None:
    (row,) = comparing.compare(SMALL, ["none"], [0], tmp_path, quiet)
    (folder,) = tmp_path.iterdir()
    assert row["top1"] == json.loads((folder / "summary.json").read_text())["top1"]
    assert row["peak_rss_bytes"] > 50e6


def test_a_failed_run_is_said(quiet: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, check: subprocess.CompletedProcess(command, 9))
    with pytest.raises(RunError, match="exit code 9"):
        comparing.compare(SMALL, ["none"], [0], tmp_path, quiet)


def test_every_wrong_method_is_said_before_anything_runs(started: list[Path], quiet: Console, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nonsense.*bits=0"):
        comparing.compare(SMALL, ["none", "nonsense", "fixed-0"], [0], tmp_path, quiet)
    for methods, seeds in (([], [0]), (["none"], []), (["none", "none"], [0])):
        with pytest.raises(SettingsError, match="at least one of both, each once"):
            comparing.compare(SMALL, methods, seeds, tmp_path, quiet)
    assert not started


def row(method: str, seed: int, top1: float) -> dict[str, Any]:
    return dict(zip(comparing.FIELDS, (method, seed, top1, 2_000_000, 500_000, 4.0, 10**8, 123.0), strict=True))


def test_table_shows_mean_spread_and_paired_difference() -> None:
    rows = [row("none", 0, 97.0), row("none", 1, 98.0), row("division", 0, 96.0), row("division", 1, 98.0)]
    console = Console(file=io.StringIO(), width=200)
    console.print(comparing.table(rows))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    line = next(line for line in shown.splitlines() if "division" in line)
    cells = [cell.strip() for cell in line.strip("│┃ ").split("│")]
    assert cells == ["division", "2", "97.00", "1.41", "-0.50 ± 0.50", "2.00", "0.50", "4.00", "100", "123"]
    gap = comparing.difference(rows, "division")
    assert (gap.mean, gap.standard_error) == (-0.5, 0.5)
