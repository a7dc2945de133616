"""Render the tables of README and docs from recorded rows. Run: ``python -m benchmarks.tables`` (``--check`` in tests).

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``; ``TABLES`` says how each name is made.
"""

import csv
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev

from benchmarks.rows import recorded

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "methods.md", ROOT / "docs" / "memory.md")
GIB = 2**30


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def memory() -> str:
    """Predicted against logged memory of the paper's networks."""
    with (Path(__file__).parent / "paper" / "memory.csv").open() as file:
        paper = {(row["model"], int(row["batch_size"])): row for row in csv.DictReader(file)}
    rows = []
    for row in (r for r in recorded("memory") if r["method"] == "division"):
        logged = paper[row["model"], row["batch_size"]]
        normal, packed = row["normal_bytes"] / GIB, row["packed_bytes"] / GIB
        cells = (normal, float(logged["normal_gib"]), packed, float(logged["division_gib"]))
        rows.append([row["model"], str(row["batch_size"]), *(f"{x:.2f}" for x in cells), f"{row['ratio']:.1f}"])
    head = ["network", "batch", "normal, GiB", "paper", "DIVISION, GiB", "paper", "ratio"]
    return _markdown(head, rows)


def headline() -> str:
    """What a step of the paper's networks keeps, for the README."""
    chosen = [r for r in recorded("memory") if r["method"] == "division" and r["batch_size"] == 256]
    rows = []
    for row in chosen:
        normal, packed = row["normal_bytes"] / GIB, row["packed_bytes"] / GIB
        rows.append(
            [f"{row['model']}, batch 256", f"{normal:.2f} GiB", f"{packed:.2f} GiB", f"{row['ratio']:.1f} times less"]
        )
    return _markdown(["a training step keeps for backward", "PyTorch", "DIVISION", ""], rows)


def linear_inputs() -> str:
    """Gradient error of the candidates for tensors without spatial dims."""
    found: dict[str, dict[tuple[str, int], dict[str, float]]] = {}
    for row in recorded("linear_inputs"):
        found.setdefault(row["candidate"], {})[row["norm"], row["steps"]] = row
    settings = list(next(iter(found.values())))
    names = {"none": "no norm", "batch": "batch norm", "layer": "layer norm"}
    head = ["code", "bits an element", *(f"{names[norm]}, {steps} steps" for norm, steps in settings)]
    rows = [
        [name, f"{by[settings[0]]['bits']:.2f}", *(f"{by[s]['relative_error']:.3f}" for s in settings)]
        for name, by in found.items()
    ]
    device = recorded("linear_inputs")[0]
    return f"{_markdown(head, rows)}\n\nRecorded on {device['device_name']}, torch {device['torch']}."


def _compared(name: str) -> str:
    by_method: dict[str, list[dict[str, float]]] = {}
    for row in recorded(name):
        by_method.setdefault(row["method"], []).append(row)
    base = {row["seed"]: row["top1"] for row in by_method["none"]}
    rows = []
    for method, runs in by_method.items():
        top1 = [run["top1"] for run in runs]
        gaps = [run["top1"] - base[run["seed"]] for run in runs]
        error = stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
        gap = "" if method == "none" else f"{mean(gaps):+.2f} ± {error:.2f}"
        raw, packed = mean(run["raw_bytes"] for run in runs), mean(run["packed_bytes"] for run in runs)
        spread = f" ± {stdev(top1):.2f}" if len(top1) > 1 else ""
        rows.append([f"`{method}`", f"{mean(top1):.2f}{spread}", gap, f"{packed / 2**20:.1f}", f"{raw / packed:.1f}"])
    return _markdown(["method", "top-1, %", "difference to `none`", "kept for backward, MiB", "ratio"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "memory": memory,
    "linear_inputs": linear_inputs,
    "digits": lambda: _compared("digits"),
}


def rendered(page: str) -> str:
    """The page with every marked table made anew."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)


def stale() -> list[Path]:
    """Pages whose tables differ from what the rows say."""
    return [page for page in PAGES if rendered(page.read_text()) != page.read_text()]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(f"tables out of date: {', '.join(map(str, stale()))}" if stale() else 0)
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
