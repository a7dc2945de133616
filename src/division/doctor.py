"""What this installation does here: the body of each op on each device, why not a faster one, and what to do about it."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

import division
from division.bench.rows import cpu_name, version_of
from division.kernels import ops
from division.kernels.bodies import body_of
from division.kernels.cpu import library
from division.nodes import HAS_HOOK
from division.train.errors import SettingsError

#: Environment variables that change what happens.
VARIABLES = (library.VARIABLE, "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES")


def check_environment() -> None:
    """Refuses an environment that asks for what is not here.

    Raises:
        SettingsError: `DIVISION_KERNELS` names no body that runs here.
    """
    try:
        library.body()
    except ValueError as error:
        raise SettingsError([str(error)]) from error


def examine() -> dict[str, Any]:
    """Everything `division doctor` says, as plain data.

    Returns:
        `versions`, `devices` (name by device), `bodies` (one entry an op and device: op, device, body, why),
        `compiled` (whether the compiled library is here, and which bodies of it this processor runs), `nodes` (how
        autograd's nodes are found), `threads`, `environment` and `advice` (lines, none if all is well).

    Example:
        >>> found = examine()
        >>> found["devices"]["cpu"] == cpu_name(), found["threads"] == torch.get_num_threads()
        (True, True)
    """
    devices = {"cpu": cpu_name()}
    if torch.cuda.is_available():
        devices |= {f"cuda:{i}": torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    bodies = [
        {"op": op, "device": device, "body": found.body, "why": found.why}
        for device in devices
        for op in ops.names()
        for found in (body_of(op, device),)
    ]
    return {
        "versions": {
            "division": division.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": version_of("triton"),
        },
        "devices": devices,
        "bodies": bodies,
        "compiled": {"here": len(library.RUNNABLE) > 1, "bodies": list(library.RUNNABLE[1:])},
        "nodes": "node_creation_hook" if HAS_HOOK else "walking",
        "threads": torch.get_num_threads(),
        "environment": {name: os.environ.get(name) for name in VARIABLES},
        "advice": advice(bodies, HAS_HOOK, cuda=len(devices) > 1),
    }


def advice(bodies: list[dict[str, str]], hook: bool, *, cuda: bool) -> list[str]:
    """What could be better here, and how: one line each.

    Args:
        bodies: as in :func:`examine`.
        hook: whether torch tells of new nodes itself.
        cuda: whether there is a GPU.

    Example:
        >>> advice([{"op": "dual_encode", "device": "cpu", "body": "avx2", "why": ""}], hook=True, cuda=False)
        []
    """
    slow: dict[tuple[str, str], list[str]] = {}
    for body in bodies:
        if body["body"] == library.REFERENCE:
            reason = "there is no faster body" if body["op"] in body["why"].split() else body["why"]
            slow.setdefault((body["device"], reason), []).append(body["op"])
    lines = []
    for (device, reason), names in slow.items():
        what = "every op runs" if len(names) == len(ops.names()) else f"{', '.join(names)} run{'s' * (len(names) == 1)}"
        lines.append(f"{device}: {what} in plain PyTorch, several times slower: {reason}")
    fastest = library.RUNNABLE[-1]
    lines += {
        f"cpu: {body['body']} is used where {fastest} runs too: {body['why']}": None
        for body in bodies
        if body["device"] == "cpu" and body["why"] and body["body"] not in (library.REFERENCE, fastest)
    }
    if not hook:
        lines.append(
            f"torch {torch.__version__} does not tell of new autograd nodes, so the graph is walked after each call: "
            "torch 2.14 or newer does, at less cost"
        )
    if cuda and version_of("triton") is None:
        lines.append("a GPU is here and Triton is not: pip install triton")
    return lines
