"""What a run ran on, and the most memory it used."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

STATUS = Path("/proc/self/status")


def peaks(device: str) -> dict[str, int | None]:
    """The most memory this process ever held: `peak_rss_bytes` resident, `peak_device_bytes` allocated on a GPU.

    Both grow only, so a run to be compared needs a process of its own. None where the system doesn't tell.
    """
    on_gpu = torch.device(device).type == "cuda"
    return {
        "peak_rss_bytes": _peak_rss_bytes(),
        "peak_device_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
    }


def describe(device: str) -> dict[str, Any]:
    """`device` with its name and number of threads, and the `versions` of python, torch and division."""
    on_gpu = torch.device(device).type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else f"{platform.machine()}, {torch.get_num_threads()} threads"
    versions = {"python": platform.python_version(), "torch": torch.__version__, "division": version("division")}
    return {"device": f"{device} ({name})", "versions": versions}


def _peak_rss_bytes() -> int | None:
    # On Linux a child's ru_maxrss begins at its parent's size; VmHWM is the process's own.
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
