import dataclasses
import errno
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from division.train import checkpoint, run
from division.train.errors import CheckpointError, RunError, SettingsError
from division.train.loop import Training
from division.train.settings import TrainSettings

TIMES = ("seconds", "total_seconds", "images_per_s")


class StoppedError(Exception):
    """Stands for the end of the process."""


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `steps` training steps pass and stops in the next one, random numbers drawn."""
    advance = Training.advance
    done: list[int] = []

    def counted(self: Training, indices: Tensor) -> None:
        if len(done) == steps:
            torch.rand(5)
            raise StoppedError
        done.append(1)
        advance(self, indices)

    monkeypatch.setattr(Training, "advance", counted)


def train_until(
    steps: int, settings: TrainSettings, folder: Path, checkpoint_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts a run, or goes on with it, and stops it after `steps` more steps."""
    act = run.resume if folder.exists() else run.start
    with monkeypatch.context() as patch:
        stop_after(steps, patch)
        with pytest.raises(StoppedError):
            act(settings, folder, checkpoint_steps=checkpoint_steps)


def timeless(value: Any) -> Any:
    """Without the fields that hold times."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in TIMES}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def assert_same(first: Any, second: Any) -> None:
    """Equal bit for bit, at any depth."""
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert_same(a, b)
    elif isinstance(first, Tensor):
        assert torch.equal(first, second)
    else:
        assert first == second


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", ["none", "division"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_a_stopped_run_resumes_to_the_same_result(
    method: str, steps: int, settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dataclasses.replace(settings, method=method)
    whole = run.start(settings, tmp_path / "whole")
    train_until(steps, settings, tmp_path / "stopped", 2, monkeypatch)
    assert not (tmp_path / "stopped" / "summary.json").exists()
    resumed = run.resume(settings, tmp_path / "stopped")
    expected, got = (checkpoint.load(tmp_path / name) for name in ("whole", "stopped"))
    assert_same(timeless(expected), timeless(got))
    assert timeless(lines(tmp_path / "whole")) == timeless(lines(tmp_path / "stopped"))
    for key in ("top1", "raw_bytes", "packed_bytes", "ratio", "settings"):
        assert whole[key] == resumed[key]


def test_a_step_changes_the_weights_and_depends_on_all_that_is_saved(settings: TrainSettings, tmp_path: Path) -> None:
    """What makes the test above able to fail: dropout, augmentation and noise each move the result."""
    weights = {}
    for name, change in {
        "base": {},
        "seed": {"seed": 1},
        "no augmentation": {"augment": False},
        "other noise": {"method": "none"},
    }.items():
        run.start(dataclasses.replace(settings, epochs=1, **change), tmp_path / name)  # type: ignore[arg-type]
        weights[name] = checkpoint.load(tmp_path / name)["model"]["6.weight"]
    for name in ("seed", "no augmentation", "other noise"):
        assert not torch.equal(weights["base"], weights[name])


def test_stopped_again_and_again(settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.start(settings, tmp_path / "whole")
    for _ in range(5):
        train_until(1, settings, tmp_path / "stopped", 1, monkeypatch)
    run.resume(settings, tmp_path / "stopped")
    expected, got = (checkpoint.load(tmp_path / name) for name in ("whole", "stopped"))
    assert_same(timeless(expected), timeless(got))


def test_from_the_earlier_checkpoint_when_the_last_is_damaged(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.start(settings, tmp_path / "whole")
    train_until(4, settings, tmp_path / "stopped", 1, monkeypatch)
    damaged = tmp_path / "stopped" / "checkpoint.pt"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=str(damaged)):
        run.resume(settings, tmp_path / "stopped")
    damaged.unlink()
    run.resume(settings, tmp_path / "stopped")
    expected, got = (checkpoint.load(tmp_path / name) for name in ("whole", "stopped"))
    assert_same(timeless(expected), timeless(got))


def test_global_random_state_is_the_callers(settings: TrainSettings, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    run.start(dataclasses.replace(settings, epochs=1), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_run_leaves(settings: TrainSettings, tmp_path: Path) -> None:
    summary = run.start(settings, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "config.json", "metrics.jsonl", "checkpoint.pt", "checkpoint.prev.pt", "summary.json",
    }  # fmt: skip
    assert summary["method"] == "division"
    assert summary["raw_bytes"] > summary["packed_bytes"] > 0
    assert summary["ratio"] == summary["raw_bytes"] / summary["packed_bytes"]
    assert summary["peak_rss_bytes"] > 50e6
    assert summary["images_per_s"] > 0
    assert summary["versions"]["torch"] == torch.__version__
    assert summary["settings"] == dataclasses.asdict(settings)
    assert [line["epoch"] for line in lines(tmp_path / "run")] == [1, 2]
    assert summary["top1"] == lines(tmp_path / "run")[-1]["top1"]


def test_learning_rate_is_a_cosine_to_zero(settings: TrainSettings, tmp_path: Path) -> None:
    run.start(settings, tmp_path / "run")
    rates = [line["lr"] for line in lines(tmp_path / "run")]  # of steps 2 and 5 of 6
    assert rates == pytest.approx([0.1 * 0.75, 0.1 * (1 - 3**0.5 / 2) / 2])


def test_a_complete_run_is_only_read(settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = run.start(dataclasses.replace(settings, epochs=1), tmp_path / "run")
    stop_after(0, monkeypatch)
    assert run.resume(dataclasses.replace(settings, epochs=1), tmp_path / "run") == summary


def test_other_settings_are_listed(settings: TrainSettings, tmp_path: Path) -> None:
    run.start(dataclasses.replace(settings, epochs=1), tmp_path / "run")
    with pytest.raises(RunError, match=r"epochs: 1, then 2; lr: 0\.1, then 0\.2"):
        run.resume(dataclasses.replace(settings, lr=0.2), tmp_path / "run")
    moved = dataclasses.replace(settings, epochs=1, data_dir=str(tmp_path))
    assert run.resume(moved, tmp_path / "run")["top1"] >= 0


def test_a_taken_folder_is_refused_and_left_alone(settings: TrainSettings, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="--resume"):
        run.start(settings, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(RunError, match="not empty"):
        run.start(settings, tmp_path / "notes.txt")


def test_nothing_to_resume(settings: TrainSettings, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="missing"):
        run.resume(settings, tmp_path / "nothing")
    run.start(dataclasses.replace(settings, epochs=1), tmp_path / "run")
    for name in ("checkpoint.pt", "checkpoint.prev.pt", "summary.json"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(CheckpointError, match="nothing to resume"):
        run.resume(dataclasses.replace(settings, epochs=1), tmp_path / "run")


def test_wrong_settings_leave_nothing(settings: TrainSettings, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="epochs"):
        run.start(dataclasses.replace(settings, epochs=0), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_few_images_for_one_batch(settings: TrainSettings, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="4000 training images"):
        run.start(dataclasses.replace(settings, limit=None, batch_size=4001), tmp_path / "run")


def test_a_full_disk_in_the_middle_loses_nothing(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.start(settings, tmp_path / "whole")
    save, calls = torch.save, []

    def refused(state: Any, file: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(state, file)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", refused)
        with pytest.raises(RunError, match=r"No space left on device.*--resume"):
            run.start(settings, tmp_path / "full")
    shutil.copytree(tmp_path / "full", tmp_path / "copy")
    run.resume(settings, tmp_path / "full")
    expected, got = (checkpoint.load(tmp_path / name) for name in ("whole", "full"))
    assert_same(timeless(expected), timeless(got))
    assert len(lines(tmp_path / "copy")) == 2  # the second epoch was logged, its checkpoint was not
    assert timeless(lines(tmp_path / "full")) == timeless(lines(tmp_path / "whole"))


def test_a_killed_process_resumes_to_the_same_result(tmp_path: Path) -> None:
    settings = TrainSettings(width=2, limit=48, batch_size=16, epochs=3)
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(settings)))
    with subprocess.Popen([sys.executable, "-m", "division.train", str(folder)]) as process:
        metrics = folder / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.01)
        process.kill()
    assert not (folder / "summary.json").exists()
    run.resume(settings, folder)
    run.start(settings, tmp_path / "whole")
    expected, got = (checkpoint.load(tmp_path / name) for name in ("whole", "killed"))
    assert_same(timeless(expected), timeless(got))
