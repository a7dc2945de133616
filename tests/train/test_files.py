import contextlib
import errno
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import torch

from division.train import checkpoint
from division.train.errors import CheckpointError, RunError
from division.train.files import append_json_line, write_atomically, write_json


@contextlib.contextmanager
def little_space() -> Iterator[None]:
    """No file may grow beyond 20,000 bytes: the system itself refuses, in the middle of a write.

    Inside a test alone: the limit holds for the file that pytest's own output may go to as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def full(file: IO[bytes]) -> None:
    file.write(b"half of")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_file_and_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    with pytest.raises(RunError, match=r"a\.json: No space left on device.*--resume"):
        write_atomically(path, full)
    assert json.loads(path.read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_another_error_passes_unchanged(tmp_path: Path) -> None:
    def fail(file: IO[bytes]) -> None:
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault") as caught:
        write_atomically(tmp_path / "a", fail)
    assert not isinstance(caught.value, RunError)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_does_not_fit_leaves_both_earlier_ones(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, {"step": step})
    with little_space(), pytest.raises(RunError, match=r"checkpoint\.pt: File too large"):
        checkpoint.save(tmp_path, {"step": 3, "weights": torch.zeros(100_000)})
    assert checkpoint.load(tmp_path) == {"step": 2}
    assert torch.load(tmp_path / "checkpoint.prev.pt") == {"step": 1}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_line_that_does_not_fit_is_said(tmp_path: Path) -> None:
    with little_space(), pytest.raises(RunError, match=r"metrics\.jsonl: File too large"):
        append_json_line(tmp_path / "metrics.jsonl", {"x": "y" * 30_000})


def test_checkpoint_round_trip_is_exact(tmp_path: Path) -> None:
    state = {"a": torch.randn(3, 4), "b": {"c": [1, 2.5, "x", None]}}
    checkpoint.save(tmp_path, state)
    loaded = checkpoint.load(tmp_path)
    assert torch.equal(loaded["a"], state["a"])  # type: ignore[arg-type]
    assert loaded["b"] == state["b"]


@pytest.mark.parametrize("damage", ["cut", "empty", "bit", "text"])
def test_damage_is_found_and_the_way_out_works(damage: str, tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, {"step": step, "weights": torch.full((1000,), float(step))})
    path = tmp_path / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = bytearray()
    elif damage == "text":
        content = bytearray(b"not a checkpoint")
    else:
        content[content.index(torch.full((8,), 2.0).numpy().tobytes()) + 400] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt is damaged .*delete it to resume from the one before"):
        checkpoint.load(tmp_path)
    path.unlink()
    assert checkpoint.load(tmp_path)["step"] == 1


def test_the_only_checkpoint_damaged(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="no earlier one"):
        checkpoint.load(tmp_path)
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(CheckpointError, match="nothing to resume"):
        checkpoint.load(tmp_path)


def test_not_a_number_becomes_null(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"loss": float("nan"), "xs": [float("inf"), 1.5]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"loss": None, "xs": [None, 1.5]}
