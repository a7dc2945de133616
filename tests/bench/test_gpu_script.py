import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from division.bench import rows
from division.bench.subjects import SUBJECTS
from division.kernels.cpu import library


def test_same_is_bit_for_bit_but_for_nan() -> None:
    nan, other = torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")])
    other.view(torch.int32)[1] += 1
    assert bool(other[1].isnan())
    assert gpu.same(nan, other)
    assert not gpu.same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not gpu.same(torch.tensor([1.0]), torch.tensor([float("nan")]))
    assert gpu.same(torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor([1.5], dtype=torch.bfloat16))
    assert not gpu.same(torch.tensor([1]), torch.tensor([1], dtype=torch.int32))
    assert not gpu.same(torch.zeros(2, 3), torch.zeros(3, 2).t())


def test_special_values_are_among_the_inputs() -> None:
    usual, special = gpu.inputs(SUBJECTS[0], (2, 3, 5, 4), "float32", "channels_last")
    assert usual.isfinite().all()
    assert special.isnan().any()
    assert special.isinf().any()
    assert special[-1].unique().tolist() == [pytest.approx(0.3)]
    assert special.stride() == usual.stride()


def test_parity_finds_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PARITY_SHAPES", ((1, 2, 8, 8),))
    assert gpu.differences("cpu", 60.0) == []
    decode = torch.ops.division.dual_decode.default

    def wrong(*arguments: object) -> torch.Tensor:
        out = decode(*arguments)
        return out if library.body() == library.REFERENCE else out + 1

    monkeypatch.setattr("division.codecs.dual._decode", wrong)
    if library.body() != library.REFERENCE:
        found = gpu.differences("cpu", 60.0)
        assert found
        assert all(line.startswith("dual") for line in found)


def test_no_time_no_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.differences("cpu", -1.0) == []
    assert f"0 of 0 cases differ, {len(list(gpu.parity_cases()))} left out" in capsys.readouterr().out


def test_each_row_is_on_the_disk_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench_kernels.jsonl").write_text("old\n")
    into = gpu.Rows("kernels", tmp_path)
    for n in (1, 2):
        into.add({"device_name": "gpu", "n": n})
        assert len(rows.read(tmp_path / "bench_kernels.jsonl")) == n
    results = tmp_path / "results.jsonl"
    monkeypatch.setattr(rows, "results", lambda name: results)
    rows.write(results, [{"device_name": "cpu", "n": 0}, {"device_name": "gpu", "n": 0}])
    monkeypatch.setattr(sys, "argv", ["gpu", "--keep", str(tmp_path)])
    assert gpu.main() == 0
    assert [(row["device_name"], row["n"]) for row in rows.read(results)] == [("cpu", 0), ("gpu", 1), ("gpu", 2)]
    straight = gpu.Rows("kernels", None)
    straight.add({"device_name": "gpu", "n": 3})
    assert json.loads(results.read_text().splitlines()[-1])["n"] == 3
    assert len(rows.read(results)) == 2


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 1
    assert "no GPU is visible" in capsys.readouterr().out
