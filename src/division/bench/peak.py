"""The most memory a training step holds: in a process of its own on the CPU, by the allocator on a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from division.bench import malloc
from division.bench.baselines import BASELINES
from division.bench.lifetimes import traced
from division.bench.rows import Row, significant
from division.bench.settings import Workload
from division.bench.work import Work, tf32
from division.train import machine
from division.train.errors import RunError

STEPS = 2
MODULE = "division.bench.peak"  # run with -m
_PROCESS = Path("/proc/self")


def measure(workload: Workload, method: str, work: Work | None = None) -> Row:
    """What a step of one method holds at most, and the parts of it: the columns that `docs/benchmarks.md` names.

    Args:
        workload: already checked.
        method: one of its methods.
        work: on a GPU, what to measure with; the CPU takes a process of its own.

    Raises:
        RunError: the process ended without a result.
    """
    if torch.device(workload.device).type == "cuda":
        return _on_gpu(work or Work(workload), method)
    request = json.dumps({"workload": dataclasses.asdict(workload), "method": method})
    command = [sys.executable, "-m", MODULE]
    # Torch's profiler talks on stderr; it is shown only where something failed.
    done = subprocess.run(
        command, input=request, capture_output=True, text=True, check=False, env=os.environ | malloc.GIVE_BACK
    )
    if done.returncode:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        where = f"{method} on {workload.title}"
        raise RunError(f"measuring the peak of {where} ended with exit code {done.returncode}, saying: {said}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def here(workload: Workload, method: str) -> Row:
    """The same on the CPU, in this process: right only in a fresh one."""
    work = Work(workload)
    work.step(method)  # makes the momentum, and what torch makes once
    accounts = work.accounts(method) if method not in BASELINES else (None, None)
    base, peaks, resets = _settled(), [], []
    for _ in range(STEPS):
        resets.append(_reset_peak())
        work.step(method)
        peaks.append(machine.peaks("cpu")["peak_rss_bytes"] or 0)
    peak, sizes = max(peaks), work.sizes()
    parts = traced(work, method)
    row: Row = {
        "peak_bytes": peak or None,
        "base_bytes": base,
        "peak_spread": significant((peak - min(peaks)) / peak) if peak else None,
        "peak_since_start": not all(resets),
        "report_raw_bytes": accounts[0],
        "report_packed_bytes": accounts[1],
        **sizes,
    }
    if base is not None:
        row["process_bytes"] = base - sum(sizes.values())
    if parts is not None:
        row |= {
            "kept_bytes": parts.kept,
            "saved_bytes": parts.saved,
            "gradient_bytes": parts.gradients,
            "transient_bytes": parts.transient,
            "peak_phase": parts.phase,
            "peak_within": parts.within,
            "transient_blocks": parts.transient_blocks,
            "largest_transient_bytes": parts.most_transient,
        }
    if parts is not None and base is not None and peak:
        seen = parts.saved + parts.gradients + parts.transient
        row["outside_bytes"] = peak - base - seen
        packed = parts.kept if accounts[1] is None else accounts[1]
        row["explained"] = significant((base + parts.gradients + packed + parts.most_transient) / peak)
    return row


def _on_gpu(work: Work, method: str) -> Row:
    device = torch.device(work.workload.device)
    work.step(method)
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    kept = 0

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        nonlocal kept
        yield
        if name == "forward":
            kept = torch.cuda.memory_allocated(device) - base

    work.step(method, phase)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    return {"peak_bytes": peak, "base_bytes": base, "kept_bytes": kept, **work.sizes()}


def _settled() -> int | None:
    """Resident bytes, with all that is free given back."""
    gc.collect()
    malloc.trim()
    status = _PROCESS / "status"
    lines = status.read_text().splitlines() if status.exists() else []
    found = [line for line in lines if line.startswith("VmRSS:")]
    return int(found[0].split()[1]) * 1024 if found else None


def _reset_peak() -> bool:
    """Let the peak begin at what is resident now; False where the system can't."""
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    wanted = Workload(**{**asked["workload"], "methods": tuple(asked["workload"]["methods"])})
    with tf32(wanted):
        sys.stdout.write(json.dumps(here(wanted, asked["method"])) + "\n")
