import dataclasses
import io
import math

import pytest
import torch
from rich.console import Console

from division.train import data
from division.train.loop import Training, train
from division.train.progress import TrainProgress
from division.train.settings import TrainSettings


def test_evaluation_is_exact_and_sees_each_image_once(settings: TrainSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(settings, data.load("digits", limit=300))
    monkeypatch.setattr("division.train.loop.EVALUATION_BATCH", 70)
    statistics = training.model[1].running_mean.clone()  # type: ignore[index, union-attr, operator]
    images, labels = training.data.val.batch(torch.arange(300))
    training.model.eval()
    right = int((training.model(images).argmax(1) == labels).sum())
    training.model.train()
    assert training.evaluate().top1 == 100 * right / 300
    assert torch.equal(training.model[1].running_mean, statistics)  # type: ignore[index, union-attr, arg-type]
    assert training.model.training


def test_one_step_is_that_of_plain_pytorch(settings: TrainSettings) -> None:
    settings = dataclasses.replace(settings, method="none", augment=False)
    training = Training(settings, data.load("digits", limit=48))
    torch.manual_seed(settings.seed)
    model = Training(settings, data.load("digits", limit=48)).model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    for indices in (torch.arange(16), torch.arange(16, 32)):
        images, labels = training.data.train.batch(indices)
        torch.manual_seed(7)
        training.advance(indices)
        torch.manual_seed(7)
        optimizer.param_groups[0]["lr"] = training.optimizer.param_groups[0]["lr"]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    for mine, plain in zip(training.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, plain)
    assert training.compression.report.raw_bytes == training.compression.report.packed_bytes > 0


@pytest.mark.parametrize(("method", "sizes"), [("none", [16, 16]), ("division", [16, 32]), ("checkpoint", [16, 16])])
def test_a_batch_grows_into_what_plain_training_needs(method: str, sizes: list[int]) -> None:
    """What is kept and what comes on top while a part is run again: together within it."""
    settings = TrainSettings(method=method, grow=4, width=2, limit=32, epochs=2, batch_size=16)
    training = Training(settings, data.load("digits", limit=32))
    budget = 0
    while not training.done:
        for indices in torch.arange(32).split(training.batch_size):
            training.advance(indices)
        report = training.compression.report
        budget = budget or report.raw_bytes
        assert report.packed_bytes + report.recomputed_bytes <= budget
        training.finish_epoch()
    assert [entry["batch_size"] for entry in training.position.history] == sizes


def test_equal_seeds_start_equal_whatever_the_method(settings: TrainSettings) -> None:
    images = data.load("digits", limit=48)
    first, second = (
        Training(dataclasses.replace(settings, method=method), images).model.state_dict()
        for method in ("none", "division")
    )
    for name, value in first.items():
        assert torch.equal(value, second[name])


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_says_loss_accuracy_and_speed(terminal: bool, settings: TrainSettings) -> None:
    text = io.StringIO()
    training = Training(settings, data.load("digits", limit=96))
    console = Console(file=text, force_terminal=terminal, width=120)
    with TrainProgress("title", 12, console) as progress:
        train(training, progress, lambda: None, lambda entry: None)
    shown = text.getvalue()
    assert "epoch 2/2" in shown
    assert "images/s" in shown
    assert ("title" in shown) == terminal
    assert training.done


@pytest.mark.parametrize("method", ["none", "division"])
def test_learns(method: str, settings: TrainSettings) -> None:
    settings = dataclasses.replace(settings, method=method, limit=1000, epochs=3, batch_size=50, augment=False)
    training = Training(settings, data.load("digits", limit=1000))
    with TrainProgress("", 1, None) as progress:
        train(training, progress, lambda: None, lambda entry: None)
    accuracy = [entry["top1"] for entry in training.position.history]
    assert accuracy[-1] > 60
    assert accuracy[-1] > accuracy[0]


TEXT = TrainSettings(data="text", model="gpt", width=32, limit=32, batch_size=8, epochs=2)


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_learns_text(model: str) -> None:
    settings = dataclasses.replace(TEXT, model=model)
    training = Training(settings, data.load("text", limit=settings.limit))
    untrained = training.evaluate()
    with TrainProgress("", 1, None) as progress:
        train(training, progress, lambda: None, lambda entry: None)
    bits = [entry["bits_per_byte"] for entry in training.position.history]
    assert bits[-1] < bits[0] < untrained.loss / math.log(2)
    assert abs(untrained.loss / math.log(2) - 8) < 0.2
    report = training.compression.report
    assert report.packed_bytes < report.raw_bytes / 2


def test_text_is_scored_over_every_byte() -> None:
    training = Training(TEXT, data.load("text", limit=32))
    inputs, labels = training.data.val.batch(torch.arange(32))
    with torch.no_grad():
        logits = training.model(inputs)
    scores = training.evaluate()
    assert scores.top1 == 100 * int((logits.argmax(-1) == labels).sum()) / labels.numel()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert scores.loss == pytest.approx(float(expected), rel=1e-5)
    for step in range(training.steps):
        training.advance(torch.arange(8) + 8 * step)
    seen = training.counted()
    entry = training.finish_epoch()
    assert entry["train_top1"] == 100 * seen[1] / (32 * 128)
    assert entry["train_loss"] == seen[0] / 32
    assert entry["sequences_per_s"] > 0
    assert "images_per_s" not in entry


def test_the_lines_of_text_say_bits_a_byte() -> None:
    text = io.StringIO()
    training = Training(dataclasses.replace(TEXT, epochs=1), data.load("text", limit=32))
    with TrainProgress("title", 4, Console(file=text, force_terminal=True, width=120)) as progress:
        train(training, progress, lambda: None, lambda entry: None)
    assert f"{training.position.history[0]['bits_per_byte']:.3f} bits a byte" in text.getvalue()
    assert "sequences/s" in text.getvalue()
    assert "images" not in text.getvalue()
