"""Recorded rows: one JSON object a line, with what is needed to know where a figure comes from."""

import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import division

RESULTS = Path(__file__).parent / "results"


def provenance(device: str = "cpu") -> dict[str, Any]:
    """Device, versions, commit (with a ``+`` if the tree had changes) and time of a measurement."""
    return {
        "device": device,
        "device_name": _cpu_name() if device == "cpu" else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "division": division.__version__,
        "python": platform.python_version(),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "src") else ""),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def record(name: str, rows: list[dict[str, Any]]) -> Path:
    """Replace the rows of one measurement: ``results/<name>.jsonl``."""
    path = RESULTS / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recorded(name: str) -> list[dict[str, Any]]:
    """The rows of one measurement, in the order they were recorded."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()
