"""Training under autocast, with a scaler for float16, and with each optimizer."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import division
from division.train import amp, checkpoint, data, models, run
from division.train.loop import Training, train
from division.train.progress import TrainProgress
from division.train.settings import TrainSettings
from tests.train.test_run import assert_same, lines, timeless, train_until

COMPUTED = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def training_of(settings: TrainSettings, **change: Any) -> Training:
    return Training(dataclasses.replace(settings, **change), data.load("digits", limit=48))


def poison(training: Training, steps: tuple[int, ...]) -> None:
    """An activation overflows in the forward of these training steps, counted from 0."""
    count = iter(range(1000))

    def overflow(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * float("inf") if module.training and next(count) in steps else output

    training.model[6].register_forward_hook(overflow)  # type: ignore[index, operator, union-attr]


@pytest.mark.parametrize("name", amp.DTYPES)
def test_forward_computes_in_the_dtype_and_the_rest_in_float32(name: str, settings: TrainSettings) -> None:
    training = training_of(settings, amp=name)
    seen: list[tuple[bool, torch.dtype]] = []
    for layer in (0, 6):  # the convolution and the linear layer
        training.model[layer].register_forward_hook(  # type: ignore[index, operator, union-attr]
            lambda module, args, output: seen.append((module.training, output.dtype))
        )
    training.advance(torch.arange(16))
    assert seen == [(True, COMPUTED[name])] * 2
    training.evaluate()
    assert seen[2:] == [(False, COMPUTED[name])] * 2
    for weight in training.model.parameters():
        assert weight.grad is not None
        assert weight.dtype == weight.grad.dtype == torch.float32
    assert training.scaler.is_enabled() == (name == "fp16")


@pytest.mark.parametrize("method", ["none", "division"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", amp.DTYPES)
def test_steps_are_those_of_plain_pytorch(name: str, optimizer: str, method: str, settings: TrainSettings) -> None:
    settings = dataclasses.replace(settings, method=method, optimizer=optimizer, amp=name, augment=False)
    training, model = training_of(settings), training_of(settings).model
    chosen: torch.optim.Optimizer
    if optimizer == "sgd":
        chosen = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    else:
        chosen = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.999), weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=name == "fp16")
    context = division.compress(method, seed=settings.seed)
    for indices in (torch.arange(16), torch.arange(16, 32)):
        images, labels = training.data.train.batch(indices)
        torch.manual_seed(7)
        training.advance(indices)
        torch.manual_seed(7)
        chosen.param_groups[0]["lr"] = training.optimizer.param_groups[0]["lr"]
        chosen.zero_grad()
        with context, torch.autocast("cpu", COMPUTED[name], enabled=name != "none"):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(chosen)
        scaler.update()
    assert_same(training.model.state_dict(), model.state_dict())
    assert_same(training.optimizer.state_dict(), chosen.state_dict())
    assert training.compression.report.packed_bytes == context.report.packed_bytes
    assert training.position.skipped_steps == 0


def test_an_adamw_step_is_the_formula(settings: TrainSettings) -> None:
    training = training_of(settings, optimizer="adamw", lr=0.01, weight_decay=0.5, method="none")
    before = [p.detach().clone() for p in training.model.parameters()]
    training.advance(torch.arange(16))
    for old, new in zip(before, training.model.parameters(), strict=True):
        assert new.grad is not None
        # At the first step both moments, made unbiased, are those of the one gradient.
        expected = old * (1 - 0.01 * 0.5) - 0.01 * new.grad / (new.grad.abs() + 1e-8)
        torch.testing.assert_close(new.detach(), expected)


def test_learns_by_adamw(settings: TrainSettings) -> None:
    settings = dataclasses.replace(
        settings, optimizer="adamw", lr=0.01, limit=1000, epochs=3, batch_size=50, augment=False
    )
    training = Training(settings, data.load("digits", limit=1000))
    with TrainProgress("", 1, None) as progress:
        train(training, progress, lambda: None, lambda entry: None)
    assert training.position.history[-1]["top1"] > 60


@pytest.mark.parametrize("method", ["none", "division"])
def test_bytes_are_those_of_half_the_width(method: str) -> None:
    """Of the real network: what is saved takes half; DIVISION's codes of it are as long as ever."""
    settings = TrainSettings(method=method, width=4, batch_size=8, limit=8)
    raw, packed, coded = {}, {}, {}
    for name in amp.DTYPES:
        training = Training(dataclasses.replace(settings, amp=name), data.load("digits", limit=8))
        training.advance(torch.arange(8))
        report = training.compression.report
        raw[name], packed[name] = report.raw_bytes, report.packed_bytes
        maps = [r for r in report.records if r.node == "ConvolutionBackward0" and r.field == "input" and r.use]
        assert {r.dtype for r in maps} == {COMPUTED[name]}
        coded[name] = sum(r.packed_bytes for r in maps)
    assert raw["bf16"] == raw["fp16"]
    assert 0.5 <= raw["bf16"] / raw["none"] < 0.51
    if method == "none":
        assert packed == raw
    else:
        assert coded["bf16"] == coded["fp16"] > 0
        assert packed["bf16"] <= packed["none"] < raw["bf16"]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", amp.DTYPES)
def test_a_stopped_run_resumes_to_the_same_result(
    name: str, optimizer: str, settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So soon does the scale grow that the result tells whether scale and count of the scaler were restored.
    monkeypatch.setattr(
        amp, "scaler", lambda *_: torch.amp.GradScaler("cpu", 2.0**10, growth_interval=3, enabled=name == "fp16")
    )
    settings = dataclasses.replace(settings, amp=name, optimizer=optimizer)
    run.start(settings, tmp_path / "whole")
    train_until(2, settings, tmp_path / "stopped", 1, monkeypatch)
    run.resume(settings, tmp_path / "stopped")
    expected, got = (checkpoint.load(tmp_path / folder) for folder in ("whole", "stopped"))
    assert_same(timeless(expected), timeless(got))
    assert timeless(lines(tmp_path / "whole")) == timeless(lines(tmp_path / "stopped"))
    assert all(("skipped_steps" in line) == (name == "fp16") for line in lines(tmp_path / "whole"))
    if name == "fp16":
        assert expected["scaler"]["scale"] == 2.0**12
    else:
        assert expected["scaler"] == {}


@pytest.mark.parametrize("method", ["none", "division"])
def test_steps_that_overflow_are_skipped_and_counted(method: str, settings: TrainSettings) -> None:
    training = training_of(settings, amp="fp16", method=method, augment=False)
    poison(training, steps=(1, 2, 4))
    scales, moved = [training.scaler.get_scale()], []
    for epoch in range(2):
        for step in range(3):
            before = [p.detach().clone() for p in training.model.parameters()]
            training.advance(torch.arange(16) + 16 * step)
            moved.append(not all(map(torch.equal, before, training.model.parameters())))
            scales.append(training.scaler.get_scale())
        assert training.state_dict()["position"]["skipped_steps"] == (2, 1)[epoch]
        assert training.finish_epoch()["skipped_steps"] == (2, 1)[epoch]
    assert moved == [True, False, False, True, False, True]
    assert [scale / scales[0] for scale in scales] == [1, 1, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert all(torch.isfinite(p).all() for p in training.model.parameters())


def test_steps_are_counted_as_skipped_after_the_scale_has_come_to_nothing(settings: TrainSettings) -> None:
    training = training_of(settings, amp="fp16")
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-149)
    poison(training, steps=(0, 1))
    for step in range(2):
        training.advance(torch.arange(16) + 16 * step)
    assert training.scaler.get_scale() == 0
    assert training.position.skipped_steps == 2


def test_skipped_steps_are_shown_and_summed(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(channels: int, classes: int, width: int) -> nn.Module:
        model = build(channels, classes, width)
        model.register_forward_hook(lambda module, args, output: output * (float("inf") if module.training else 1))
        return model

    build = models.OWN["tiny"]
    monkeypatch.setitem(models.OWN, "tiny", poisoned)
    text = io.StringIO()
    console = Console(file=text, width=200)
    summary = run.start(dataclasses.replace(settings, amp="fp16"), tmp_path / "run", console)
    assert summary["skipped_steps"] == 6
    assert text.getvalue().count("3 steps skipped") == 2
    assert [line["skipped_steps"] for line in lines(tmp_path / "run")] == [3, 3]


def test_a_run_of_before_there_was_a_choice_goes_on(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.start(settings, tmp_path / "whole")
    train_until(2, settings, tmp_path / "old", 1, monkeypatch)
    config = tmp_path / "old" / "config.json"
    fields = json.loads(config.read_text()) | {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0005}
    config.write_text(json.dumps({k: v for k, v in fields.items() if k not in ("amp", "optimizer")}))
    state = checkpoint.load(tmp_path / "old")
    del state["scaler"], state["position"]["skipped_steps"]
    checkpoint.save(tmp_path / "old", state)
    run.resume(settings, tmp_path / "old")
    expected, got = (checkpoint.load(tmp_path / folder) for folder in ("whole", "old"))
    assert_same(timeless(expected), timeless(got))
