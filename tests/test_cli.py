import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import division
from division import cli
from division.train import compare as comparing
from division.train import run as train_run

SMALL = ["--width", "2", "--limit", "32", "--batch-size", "16", "--epochs", "1"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["division", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    code = caught.value.code
    assert code is None or isinstance(code, int)
    return code or 0


def test_train_prints_and_writes_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "result.json"
    assert run(monkeypatch, "train", *SMALL, "--out", str(tmp_path / "run"), "--json", str(target)) == 0
    result = json.loads(target.read_text())
    assert result == json.loads((tmp_path / "run" / "summary.json").read_text())
    shown = " ".join(capsys.readouterr().out.split())
    assert f"raw {result['raw_bytes']:,} bytes packed {result['packed_bytes']:,} bytes" in shown
    assert f"top-1 {result['top1']:.2f} %" in shown


def test_train_on_text_prints_bits_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, small = tmp_path / "result.json", ["--width", "32", *SMALL[2:]]
    arguments = ["train", "--data", "text", "--model", "gpt", *small, "--out", str(tmp_path / "run")]
    assert run(monkeypatch, *arguments, "--json", str(target)) == 0
    result = json.loads(target.read_text())
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{result['bits_per_byte']:.3f} bits a byte" in shown
    assert f"{result['sequences_per_s']:.0f} sequences/s" in shown
    assert run(monkeypatch, *arguments, "--resume") == 0


def test_train_by_adamw_under_autocast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert run(monkeypatch, "train", *SMALL, "--amp", "bf16", "--optimizer", "adamw", "--out", str(folder)) == 0
    stored = json.loads((folder / "config.json").read_text())
    assert (stored["amp"], stored["optimizer"], stored["lr"]) == ("bf16", "adamw", None)
    assert json.loads((folder / "metrics.jsonl").read_text())["lr"] == 1e-3 / 2
    resume = ["train", "--resume", "--out", str(folder)]
    assert run(monkeypatch, *resume, "--lr", "0.001") == 0
    assert run(monkeypatch, *resume, "--amp", "none") == 2
    assert "amp: 'bf16', then 'none'): leave these out" in capsys.readouterr().err


def test_train_makes_a_run_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "train", *SMALL, "--method", "none") == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "summary.json").exists()


def test_predict_writes_the_stable_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "p.json"
    arguments = ["predict", "resnet18", "--batch-size", "4", "--image-size", "64", "--method"]
    assert run(monkeypatch, *arguments, "none", "--json", str(target)) == 0
    plain = json.loads(target.read_text())
    assert plain["normal_bytes"] == plain["packed_bytes"]
    assert plain["ratio"] == 1
    assert run(monkeypatch, *arguments, "division", "--json", str(target)) == 0
    coded = json.loads(target.read_text())
    assert (coded["model"], coded["method"], coded["batch_size"]) == ("resnet18", "division", 4)
    assert coded["normal_bytes"] == plain["normal_bytes"]
    assert coded["ratio"] == coded["normal_bytes"] / coded["packed_bytes"] > 4
    assert coded["recomputed_bytes"] == coded["elsewhere_bytes"] == 0
    assert (coded["least_bytes"], coded["basis"]) == (coded["packed_bytes"], "shapes")


def test_predict_tells_both_bounds_where_the_values_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "p.json"
    arguments = ["predict", "resnet18", "--batch-size", "4", "--image-size", "64", "--method", "comet"]
    assert run(monkeypatch, *arguments, "--json", str(target)) == 0
    row = json.loads(target.read_text())
    assert row["basis"] == "interval"
    assert 0 < 2 * row["least_bytes"] < row["packed_bytes"] < row["normal_bytes"]
    assert row["ratio"] == row["normal_bytes"] / row["packed_bytes"]
    said = f"ratio {row['ratio']:.2f} to {row['normal_bytes'] / row['least_bytes']:.2f}, as the values decide"
    assert said in " ".join(capsys.readouterr().out.split())


def test_predict_tells_what_is_run_again_and_what_is_not_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "p.json"
    arguments = ["predict", "resnet50", "--batch-size", "256", "--json", str(target), "--method"]
    assert run(monkeypatch, *arguments, "checkpoint") == 0
    assert "more while blocks run again" in " ".join(capsys.readouterr().out.split())
    row = json.loads(target.read_text())
    assert row["packed_bytes"] < 3.6 * 2**30, "what is logged with the released code"
    assert row["packed_bytes"] < row["recomputed_bytes"] < row["normal_bytes"] / 2
    assert run(monkeypatch, *arguments, "swap") == 0
    assert "off the device" in " ".join(capsys.readouterr().out.split())
    row = json.loads(target.read_text())
    assert row["packed_bytes"] == row["normal_bytes"]
    assert 0 < row["normal_bytes"] - row["elsewhere_bytes"] < 0.15 * 2**30


@pytest.mark.parametrize(("model", "size"), [("inception_v3", 299), ("googlenet", 64), ("vit_b_16", 64)])
def test_predict_takes_auxiliary_outputs_and_transformers(
    model: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, "predict", model, "--batch-size", "2", "--image-size", str(size)) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--epochs", "0", "--lr", "-1"], "(1) epochs is 0: expected 1 or more; (2) lr is -1.0"),
        (["train", "--method", "nonsense"], "lossless"),
        (["train", "--bits", "3"], "3"),
        (["train", "--block", "0"], "0"),
        (["train", "--resume"], "--out"),
        (["train", "--resume", "--out", "nowhere"], "nowhere/config.json is missing"),
        (["train", "--data", "imagenet", "--data-dir", "nowhere"], "nowhere"),
        (
            ["train", "--device", "mps"],
            "device is 'mps', which the command line does not support: expected cpu or cuda",
        ),
        (["train", "--model", "vit"], "such as vit_b_16, vit_b_32"),
        (["train", "--json", "nowhere/x.json"], "nowhere/x.json"),
        (["train", "--amp", "fp8"], "amp is 'fp8': expected one of none, bf16, fp16"),
        (["train", "--optimizer", "adam"], "optimizer is 'adam': expected one of sgd, adamw"),
        (["compare", "--methods", "none", "--amp", "half"], "amp is 'half'"),
        (["compare", "--methods", "none,nonsense"], "nonsense"),
        (["compare", "--methods", "none,none"], "methods are none, none, seeds are 0, 1, 2"),
        (["compare", "--methods", ","], "methods are missing"),
        (["compare", "--seeds", "0"], "seeds"),
        (["predict", "resnet51"], "resnet51"),
        (["predict", "resnet18", "--batch-size", "0"], "batch size is 0"),
        (["predict", "inception_v3", "--image-size", "32"], "32"),
        (["predict", "resnet18", "--method", "division", "--bits", "3"], "3"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert not list(tmp_path.iterdir())


def test_resuming_takes_the_settings_that_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, "--method", "none", "--no-augment", "--lr", "0.05", "--out", str(tmp_path / "run")]
    assert run(monkeypatch, "train", *arguments) == 0
    summary = (tmp_path / "run" / "summary.json").read_text()
    (tmp_path / "run" / "summary.json").unlink()
    resume = ["train", "--resume", "--out", str(tmp_path / "run")]
    assert run(monkeypatch, *resume) == 0
    again = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert again["settings"] == json.loads(summary)["settings"]
    assert again["top1"] == json.loads(summary)["top1"]
    assert run(monkeypatch, *resume, "--method", "none", "--epochs", "1") == 0
    assert run(monkeypatch, *resume, "--epochs", str(cli.defaults.epochs), "--augment") == 2
    assert "augment: False, then True; epochs: 1, then 8): leave these out" in capsys.readouterr().err


def test_a_stop_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*args: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "my run"
    with monkeypatch.context() as patch:
        patch.setattr(train_run, "start", stopped)
        assert run(patch, "train", *SMALL, "--out", str(folder)) == 130
        assert capsys.readouterr().err == "division: stopped; nothing was written\n"
    with monkeypatch.context() as patch:
        patch.setattr(train_run, "train", stopped)
        assert run(patch, "train", *SMALL, "--out", str(folder), "--checkpoint-steps", "1") == 130
    command = f"division train --resume --out '{folder}' --checkpoint-steps 1"
    assert capsys.readouterr().err == f"division: stopped; the run is in {folder}, go on with: {command}\n"
    assert run(monkeypatch, *shlex.split(command)[1:]) == 0
    assert (folder / "summary.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "compare", stopped)
        assert run(patch, "compare", "--out", str(tmp_path / "runs")) == 130
    assert f"the runs are in {tmp_path / 'runs'}, the same command" in capsys.readouterr().err


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(train_run, "start", broken)
    monkeypatch.setattr(sys, "argv", ["division", "train", *SMALL, "--out", str(tmp_path / "run")])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_module_form_and_help() -> None:
    done = subprocess.run([sys.executable, "-m", "division", "--help"], capture_output=True, text=True, check=True)
    for command in ("train", "compare", "predict"):
        assert command in done.stdout


def test_the_version_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"division {division.__version__}, torch {torch.__version__}\n"


def test_an_unknown_body_in_the_environment_is_one_clear_line() -> None:
    command = [sys.executable, "-m", "division", "doctor"]
    environment = os.environ | {"DIVISION_KERNELS": "sse9"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("division: got DIVISION_KERNELS='sse9', expected one that runs here: reference")
    assert done.stderr.count("\n") == 1


def test_importing_the_library_brings_no_extra() -> None:
    extras = ("torchvision", "typer", "rich", "mlxtend", "skimage", "PIL")
    code = f"import sys, division; print([m for m in {extras} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
