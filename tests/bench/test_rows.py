import json
import subprocess
from pathlib import Path

import pytest

from division.bench import rows
from division.train.errors import SettingsError

PROVENANCE = ("device", "device_name", "threads", "torch", "triton", "division", "python", "commit", "time")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "src" / "division").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "src" / "division" / "__init__.py").touch()
    monkeypatch.setattr("division.__file__", str(tmp_path / "src" / "division" / "__init__.py"))
    return tmp_path


def test_provenance_names_machine_and_versions() -> None:
    row = rows.provenance()
    assert tuple(row) == PROVENANCE
    assert row["device"] == "cpu"
    assert row["device_name"] == rows.cpu_name() != ""
    assert rows.provenance("cpu:0")["device"] == "cpu"


def test_commit_is_marked_where_sources_have_changes(checkout: Path) -> None:
    assert rows.provenance()["commit"] is None
    git(checkout, "init")
    assert rows.provenance()["commit"] is None
    git(checkout, "add", ".")
    git(checkout, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-m", "first")
    head = git(checkout, "rev-parse", "--short", "HEAD")
    assert rows.provenance()["commit"] == head
    (checkout / "notes").touch()
    assert rows.provenance()["commit"] == head
    (checkout / "src" / "division" / "new.py").touch()
    assert rows.provenance()["commit"] == head + "+"


def test_results_are_in_the_checkout(checkout: Path) -> None:
    assert rows.results("step") == checkout / "benchmarks" / "results" / "bench_step.jsonl"
    (checkout / "pyproject.toml").unlink()
    with pytest.raises(SettingsError, match="give --json FILE"):
        rows.results("step")
    assert rows.provenance()["commit"] is None


def test_rows_of_other_devices_stay(tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"
    assert rows.read(target) == []
    first = [{"device_name": "a", "n": 1}, {"device_name": "b", "n": 2}, {"device_name": "a", "n": 3}]
    rows.replace(target, first)
    assert rows.read(target) == first
    rows.replace(target, [{"device_name": "a", "n": 4}])
    assert rows.read(target) == [{"device_name": "b", "n": 2}, {"device_name": "a", "n": 4}]
    rows.replace(target, [])
    assert len(rows.read(target)) == 2


def test_a_row_is_one_line_of_json(tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"
    rows.write(target, [{"device_name": "µ", "gbps": float("inf")}, {"device_name": "b\nc"}])
    assert [json.loads(line) for line in target.read_text().splitlines()] == [
        {"device_name": "µ", "gbps": None},
        {"device_name": "b\nc"},
    ]
