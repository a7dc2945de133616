import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from division import cli
from division.bench import networks, peak, rows
from tests.bench.tiny import Tiny


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["division", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    monkeypatch.setattr(rows, "checkout", lambda: tmp_path)
    return folder


def test_kernels_shows_and_writes_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "rows.jsonl"
    target.write_text("what was there before\n")
    arguments = ["--codecs", "dual,mask", "--bits", "1,2", "--shapes", "2x3x8x8", "--layouts", "contiguous"]
    assert run(monkeypatch, "bench", "kernels", "--quick", *arguments, "--json", str(target)) == 0
    found = lines(target)
    assert [(row["op"], row["codec"], row["bits"], row["dtype"]) for row in found] == [
        *((op, "dual", bits, "float32") for bits in (2, 1) for op in ("encode", "decode")),
        ("encode", "mask", 1, "float32"),
        ("decode", "mask", 1, "float32"),
        ("clone", "clone", 32, "float32"),
        ("encode", "mask", 1, "bool"),
        ("decode", "mask", 1, "bool"),
        ("clone", "clone", 8, "bool"),
    ]
    shown = capsys.readouterr()
    assert f"{found[0]['time_ratio']:.2f}" in shown.out
    assert "2x3x8x8" in shown.out
    assert shown.err == ""


def test_recording_replaces_the_rows_of_this_device(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = checkout / "bench_kernels.jsonl"
    rows.write(target, [{"device_name": "another", "n": 1}, {"device_name": rows.cpu_name(), "n": 2}])
    arguments = ["--codecs", "dual", "--bits", "2", "--dtypes", "float32", "--repeats", "2"]
    assert run(monkeypatch, "bench", "kernels", *arguments, "--shapes", "1x2x8x8", "--record") == 0
    found = lines(target)
    assert found[0] == {"device_name": "another", "n": 1}
    assert [row["op"] for row in found[1:]] == ["encode", "decode", "clone"] * 2
    assert {row["device_name"] for row in found[1:]} == {rows.cpu_name()}
    assert f"recorded: {target}" in " ".join(capsys.readouterr().out.split())


def test_step_shows_and_writes_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ("base", "process", "weight", "momentum", "batch", "saved", "gradient", "transient", "outside")
    measured: dict[str, object] = {f"{part}_bytes": 1 << 20 for part in parts}
    measured |= {
        "peak_bytes": 12_345 << 20,
        "kept_bytes": 777 << 20,
        "largest_transient_bytes": 1,
        "explained": 0.99,
        "peak_within": "ReluBackward0",
    }
    monkeypatch.setattr(peak, "measure", lambda *_: dict(measured))
    monkeypatch.setattr(networks, "build", lambda *_: Tiny())
    target = tmp_path / "rows.jsonl"
    assert run(monkeypatch, "bench", "step", "--quick", "--methods", "lossless", "--json", str(target)) == 0
    found = lines(target)
    assert [row["method"] for row in found] == ["none", "lossless"]
    assert {row["model"] for row in found} == {"resnet18"}
    out = capsys.readouterr().out
    assert f"{found[1]['throughput_ratio']:.3f}" in out
    assert "12345.0" in out
    assert out.count("777.0") == 2, "measured, for either method"
    assert "ReluBackward0" in out
    without = ["bench", "step", "--quick", "--methods", "none", "--no-peak", "--amp", "bf16", "--channels-last"]
    assert run(monkeypatch, *without, "--json", str(target)) == 0
    (row,) = lines(target)
    assert (row["peak_bytes"], row["amp"], row["layout"]) == (None, "bf16", "channels_last")


def test_hook_writes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [{"model": "tiny", "overhead": 0.02, "us_per_tensor": 12.0, "time": "now"}]
    monkeypatch.setattr("division.bench.hook.measure", lambda **_: found)
    target = tmp_path / "rows.jsonl"
    assert run(monkeypatch, "bench", "hook", "--json", str(target)) == 0
    assert lines(target) == [{**rows.provenance(), **found[0]}]


def test_rows_so_far_outlive_an_interruption(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        yield {"device_name": "a", "n": 1}
        raise ZeroDivisionError

    monkeypatch.setattr("division.bench.kernels.measure", broken)
    monkeypatch.setattr(sys, "argv", ["division", "bench", "kernels", "--record", "--json", str(tmp_path / "r.jsonl")])
    with pytest.raises(ZeroDivisionError):
        cli.main()
    assert lines(tmp_path / "r.jsonl") == [{"device_name": "a", "n": 1}]
    assert list(checkout.iterdir()) == [], "recorded whole or not at all"


def test_a_bar_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "stderr", Console(stderr=True, force_terminal=True, width=100))
    arguments = ["--codecs", "bits", "--shapes", "4x4", "--dtypes", "float32"]
    assert run(monkeypatch, "bench", "kernels", "--quick", *arguments) == 0
    assert "bits 1 bits, 4x4 float32 contiguous" in capsys.readouterr().err


def test_doctor_shows_and_writes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "doctor.json"
    assert run(monkeypatch, "doctor", "--json", str(target)) == 0
    found = json.loads(target.read_text())
    out = capsys.readouterr().out
    for body in found["bodies"]:
        assert body["op"] in out
        assert body["body"] in out
    assert found["devices"]["cpu"] in out
    assert " ".join((found["advice"] or ["nothing to improve"])[0].split()) in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kernels", "--codecs", "triple"], "codec is 'triple'"),
        (["kernels", "--bits", "2,3", "--codecs", "dual"], "bits is 3: expected some of 1, 2, 4, 8, the widths"),
        (["kernels", "--bits", "4", "--codecs", "window", "--shapes", "4x4"], "nothing to measure"),
        (["kernels", "--device", "mps"], "device is 'mps', which the command line does not support"),
        (["kernels", "--bits", "x"], "bits is 'x'"),
        (["kernels", "--shapes", "2x"], "shape is '2x'"),
        (["kernels", "--dtypes", "int8"], "dtype is 'int8'"),
        (["kernels", "--bits", ""], "no bits are given"),
        (["kernels", "--layouts", ""], "no layout is given"),
        (["kernels", "--device", "cuda:9"], "cuda:9"),
        (["kernels", "--body", "mmx", "--quick"], "body is 'mmx': expected one that runs here, reference"),
        (["kernels", "--repeats", "0"], "repeats is 0"),
        (["kernels", "--quick", "--record"], "--record with --quick"),
        (["kernels", "--json", "nowhere/x.jsonl"], "nowhere/x.jsonl"),
        (["step", "--models", "resnet51"], "resnet51"),
        (["step", "--methods", "recompute"], "recompute"),
        (["step", "--batch-size", "0"], "batch size is 0"),
        (["step", "--amp", "fp8"], "amp is 'fp8'"),
        (["step", "--models", "vgg11", "--image-size", "32", "--batch-size", "2"], "leave checkpoint out"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "bench", *arguments) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_recording_needs_a_checkout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rows, "checkout", lambda: None)
    assert run(monkeypatch, "bench", "kernels", "--record") == 2
    assert "give --json FILE instead" in capsys.readouterr().err
