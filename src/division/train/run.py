"""A run directory: config.json, metrics.jsonl, checkpoint.pt with checkpoint.prev.pt, and at the end summary.json."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from division.train import checkpoint, data, machine, settings
from division.train.errors import RunError
from division.train.files import append_json_line, finite, write_atomically, write_json
from division.train.loop import Training, train
from division.train.progress import TrainProgress
from division.train.settings import TrainSettings

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"


def start(
    wanted: TrainSettings, folder: Path, console: Console | None = None, checkpoint_steps: int | None = None
) -> dict[str, Any]:
    """Trains in a new run directory.

    Args:
        wanted: checked before anything is made.
        folder: must not exist, or be empty.
        console: where progress is shown, if anywhere.
        checkpoint_steps: also save every so many steps, not only after every epoch.

    Returns:
        the summary, as written to summary.json.

    Raises:
        SettingsError: with every problem of the settings.
        DataNotFoundError: the data set is not there.
        RunError: the folder is taken or can't be written.
    """
    wanted.check()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} is not empty: add --resume to go on with the run in it, or give another --out")
    with _own_random(wanted.device):
        training = _prepared(wanted)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"could not make {folder}: {error.strerror}; give another --out") from error
        write_json(folder / CONFIG, dataclasses.asdict(wanted))
        return _finish(training, folder, console, checkpoint_steps)


def resume(
    wanted: TrainSettings, folder: Path, console: Console | None = None, checkpoint_steps: int | None = None
) -> dict[str, Any]:
    """Goes on with a run that was stopped; one that is complete is only read.

    The weights become the same, bit for bit, as if the run had never been stopped: on the CPU with the same number of
    threads, on a GPU as far as its kernels are deterministic. Arguments and result as for `start`.

    Raises:
        RunError: no run in `folder`, or one with other settings, listing the differences.
        CheckpointError: its checkpoint is damaged or missing.
    """
    wanted.check()
    differences = settings.read(folder / CONFIG).differences(wanted)
    if differences:
        raise RunError(
            f"{folder} was started with other settings ({'; '.join(differences)}): leave these out, or give another --out"
        )
    finished = summary(folder)
    if finished is not None:
        if console is not None:
            console.print(f"{folder} is complete: nothing to go on with")
        return finished
    with _own_random(wanted.device):
        training = _prepared(wanted)
        _go_on(training, folder, console)
        return _finish(training, folder, console, checkpoint_steps)


def summary(folder: Path) -> dict[str, Any] | None:
    """What a complete run in `folder` wrote to summary.json; None where there is none."""
    path = folder / SUMMARY
    if not path.exists():
        return None
    try:
        result: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}): delete it and resume the run to write it again") from error
    return result


def _prepared(wanted: TrainSettings) -> Training:
    return Training(wanted, data.load(wanted.data, Path(wanted.data_dir) if wanted.data_dir else None, wanted.limit))


@contextlib.contextmanager
def _own_random(device: str) -> Iterator[None]:
    """Torch's global generators and cuDNN's choices are a run's own while it runs, and the caller's afterwards."""
    gpus = [torch.device(device).index or 0] if torch.device(device).type == "cuda" else []
    cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    with torch.random.fork_rng(devices=gpus), cudnn:
        yield


def _go_on(training: Training, folder: Path, console: Console | None) -> None:
    if not any((folder / name).exists() for name in (METRICS, checkpoint.CURRENT, checkpoint.PREVIOUS)):
        return  # stopped before its first step, or only prepared: nothing is lost by starting there
    training.load_state_dict(checkpoint.load(folder))
    if console is not None:
        where = training.position
        console.print(
            f"resuming {folder} at epoch {where.epoch + 1}, step {where.step}", highlight=False, soft_wrap=True
        )


def _finish(training: Training, folder: Path, console: Console | None, checkpoint_steps: int | None) -> dict[str, Any]:
    def save() -> None:
        checkpoint.save(folder, training.state_dict())

    def log(entry: dict[str, Any]) -> None:
        append_json_line(folder / METRICS, entry)

    if training.steps_done == 0:
        save()
    # Whatever was logged after the checkpoint will be done, and logged, again.
    lines = "".join(json.dumps(finite(entry)) + "\n" for entry in training.position.history)
    write_atomically(folder / METRICS, lambda file: file.write(lines.encode()))
    title = f"{training.settings.method}, seed {training.settings.seed}"
    with TrainProgress(title, training.steps * training.settings.epochs, console) as progress:
        train(training, progress, save, log, checkpoint_steps)
    result = _summarise(training)
    write_json(folder / SUMMARY, result)
    return result


def _summarise(training: Training) -> dict[str, Any]:
    wanted, where, unit = training.settings, training.position, training.kind.unit
    last = where.history[-1]
    bits = {"bits_per_byte": last["bits_per_byte"]} if training.kind.text else {}
    scaled = "skipped_steps" in last
    skipped = {"skipped_steps": sum(entry["skipped_steps"] for entry in where.history)} if scaled else {}
    grown = {"batch_size": last["batch_size"]} if "batch_size" in last else {}
    return {
        "method": wanted.method,
        "seed": wanted.seed,
        "top1": last["top1"],
        **bits,
        **skipped,
        **grown,
        "raw_bytes": last["raw_bytes"],
        "packed_bytes": last["packed_bytes"],
        "ratio": last["raw_bytes"] / max(1, last["packed_bytes"]),
        f"{unit}_per_s": where.seen / where.total_seconds,
        **machine.peaks(wanted.device),
        **machine.describe(wanted.device),
        "settings": dataclasses.asdict(wanted),
    }
