"""Checkpoints: written whole or not at all, read only when undamaged, the one before kept."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from division.train.errors import CheckpointError
from division.train.files import write_atomically

CURRENT, PREVIOUS = "checkpoint.pt", "checkpoint.prev.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Writes `state` to checkpoint.pt; the file that was there becomes checkpoint.prev.pt.

    Raises:
        RunError: it could not be written; both files are as they were.
    """
    write_atomically(folder / CURRENT, lambda file: torch.save(state, file), keep=folder / PREVIOUS)


def load(folder: Path) -> dict[str, Any]:
    """The state of checkpoint.pt, all tensors on the CPU.

    A run stopped between the two renames of `save` has checkpoint.prev.pt alone, whole: that one is then read.

    Raises:
        CheckpointError: the checkpoint is damaged (every stored byte is checked against its checksum) or there is none.
    """
    path, previous = folder / CURRENT, folder / PREVIOUS
    if not path.exists():
        if not previous.exists():
            raise CheckpointError(f"no {CURRENT} in {folder}: nothing to resume, start anew in another folder")
        path = previous
    damage = _damage(path)
    if damage is None:
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
        except (RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError) as error:
            damage = str(error).strip().splitlines()[0]
    if path == previous or not previous.exists():
        advice = "there is no earlier one, start anew in another folder"
    else:
        advice = f"delete it to resume from the one before ({PREVIOUS}), or start anew in another folder"
    raise CheckpointError(f"{path} is damaged ({damage}): {advice}")


def _damage(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        return str(error)
    return None if broken is None else f"wrong checksum in {broken}"
