"""The tables in README and docs say what the recorded rows say."""

from typing import Any

import pytest

from benchmarks import rows
from benchmarks.tables import NOTHING, TABLES, autocast, compared, rendered, stale


def test_no_page_differs_from_its_rows() -> None:
    assert stale() == []


def test_a_table_that_says_something_else_is_found() -> None:
    page = "<!-- table: memory -->\n| a lie |\n<!-- end -->"
    assert rendered(page) != page
    assert TABLES["memory"]() in rendered(page)


def run(method: str, amp: str | None, seed: int, top1: float) -> dict[str, Any]:
    """A recorded training; without an amp, one of before there was a choice."""
    size = 2**20 if method == "division" else 8 * 2**20 if amp == "bf16" else 16 * 2**20
    return {
        "device": "cpu", "device_name": "a CPU", "threads": 1, "torch": "2", "method": method, "seed": seed, "top1": top1,
        "raw_bytes": 8 * 2**20 if amp == "bf16" else 16 * 2**20, "packed_bytes": size,
        "images_per_s": 100.0 + seed, "settings": {} if amp is None else {"amp": amp},
    }  # fmt: skip


RUNS = [
    run("none", None, 0, 98.0), run("none", None, 1, 97.0), run("lossless", None, 0, 98.0), run("lossless", None, 1, 97.0),
    run("division", "none", 0, 97.0), run("division", "none", 1, 97.0),
    run("division", "bf16", 0, 97.5), run("division", "bf16", 1, 96.0),
]  # fmt: skip


def test_autocast_is_shown_beside_float32_by_seed() -> None:
    lines = [line.strip("| ").split(" | ") for line in autocast(RUNS).splitlines()]
    assert lines[2:4] == [
        ["`division`", "none", "97.0", "97.0", "97.00", "", "16.0", "1.0"],
        ["`division`", "bf16", "97.5", "96.0", "96.75", "-0.25 ± 0.75", "8.0", "1.0"],
    ]
    assert len(lines) == 6
    assert autocast(RUNS[:6]) == NOTHING


def test_the_comparison_of_methods_is_that_of_float32() -> None:
    assert compared(RUNS) == compared(RUNS[:6])
    assert "lossless" not in compared(RUNS, ["none", "division"])
    assert compared([]) == NOTHING
    assert "| `division` | 97.00 ± 0.00 | -0.50 ± 0.50 | 1.0 | 16.0 | 100 |" in compared(RUNS)


def test_rows_replace_those_of_the_same_key(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    rows.record("digits", RUNS)
    new = [run("none", "none", 0, 90.0), run("none", "bf16", 0, 91.0)]
    rows.replace("digits", new, lambda row: (row["method"], rows.amp_of(row)))
    assert rows.recorded("digits") == [new[0], *RUNS[2:], new[1]]
