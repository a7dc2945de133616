import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from division.train import settings as reading
from division.train.errors import RunError, SettingsError
from division.train.settings import TrainSettings


def test_defaults_are_valid() -> None:
    TrainSettings().check()
    TrainSettings(data="text", model="llama").check()
    for amp in ("none", "bf16", "fp16"):
        TrainSettings(amp=amp, optimizer="adamw", lr=0.01, weight_decay=0.0).check()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": 0}, "epochs is 0: expected 1 or more"),
        ({"batch_size": 0}, "batch size is 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"lr": -0.1}, "lr is -0.1"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"weight_decay": -1.0}, "weight decay is -1.0"),
        ({"seed": -1}, "seed is -1"),
        ({"limit": 10}, "limit is 10 images: expected at least one batch of 64"),
        ({"data": "mnist"}, "expected one of digits, photos"),
        ({"data": "cifar10"}, "--data-dir"),
        ({"data": "cifar10", "data_dir": "/no/such/folder"}, "/no/such/folder"),
        ({"model": "resnet17"}, "resnet17"),
        ({"model": "resnet18", "width": 8}, "width is 8"),
        ({"model": "alexnet"}, r"\(64, 1, 32, 32\)"),
        ({"model": "gpt"}, "reads text"),
        ({"data": "text"}, "model is 'resnet18-cifar' with data of text: expected gpt, llama"),
        ({"data": "text", "model": "gpt", "width": 33}, "multiple of 32"),
        ({"data": "text", "model": "gpt", "limit": 10}, "limit is 10 sequences"),
        ({"method": "divison"}, "division"),
        ({"bits": 3}, "3"),
        ({"block": 0}, "0"),
        ({"optimizer": "adam"}, "optimizer is 'adam': expected one of sgd, adamw"),
        (
            {"optimizer": "adamw", "momentum": 0.9},
            "momentum is 0.9 with optimizer 'adamw': expected none, only sgd takes one",
        ),
        ({"optimizer": "adamw", "lr": 0.0}, "lr is 0.0"),
        ({"optimizer": "adamw", "weight_decay": float("inf")}, "weight decay is inf"),
        ({"amp": "fp8"}, "amp is 'fp8': expected one of none, bf16, fp16"),
        ({"amp": "bfloat16"}, "amp is 'bfloat16'"),
        ({"device": "tpu"}, "tpu"),
        ({"device": "cuda:99"}, "cuda:99"),
    ],
)
def test_each_problem_is_named(change: dict[str, object], said: str) -> None:
    settings = dataclasses.replace(TrainSettings(), **change)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=said):
        settings.check()


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        TrainSettings(epochs=0, lr=0.0, data="mnist", model="nothing", method="nothing", device="tpu").check()
    assert len(caught.value.problems) == 6


def test_check_draws_nothing_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    TrainSettings().check()
    assert torch.equal(torch.get_rng_state(), before)


def test_name_tells_settings_apart_but_not_where_the_data_lie() -> None:
    base = TrainSettings()
    assert dataclasses.replace(base, data_dir="/elsewhere").name == base.name
    changes: tuple[dict[str, Any], ...] = (
        {"lr": 0.2}, {"epochs": 9}, {"seed": 1}, {"bits": 4}, {"augment": False}, {"amp": "bf16"}, {"amp": "fp16"},
        {"optimizer": "adamw"}, {"weight_decay": 0.0}, {"momentum": 0.0},
    )  # fmt: skip
    for change in changes:
        assert dataclasses.replace(base, **change).name != base.name


def test_defaults_of_the_optimizer_are_the_same_settings_as_the_same_numbers() -> None:
    plain = TrainSettings()
    spelt = TrainSettings(lr=0.1, momentum=0.9, weight_decay=5e-4, amp="none", optimizer="sgd")
    assert (plain.name, plain.differences(spelt)) == (spelt.name, [])
    adam = TrainSettings(optimizer="adamw")
    assert (adam.identity["lr"], adam.identity["weight_decay"], adam.identity["momentum"]) == (1e-3, 0.01, None)
    assert adam.differences(TrainSettings(optimizer="adamw", lr=1e-3, weight_decay=0.01)) == []
    assert plain.differences(adam) == [
        "lr: 0.1, then 0.001", "momentum: 0.9, then None", "weight_decay: 0.0005, then 0.01",
        "optimizer: 'sgd', then 'adamw'",
    ]  # fmt: skip
    assert "optimizer: 'adam', then 'sgd'" in TrainSettings(optimizer="adam").differences(plain)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (TrainSettings(), "digits-resnet18-cifar-division-seed0-d10ed52b"),
        (TrainSettings(lr=0.2), "digits-resnet18-cifar-division-seed0-821fa985"),
        (TrainSettings(weight_decay=0.0), "digits-resnet18-cifar-division-seed0-6b14ffc3"),
        (TrainSettings(data="text", model="gpt", width=32, bits=4), "text-gpt-division-seed0-8bbcba89"),
    ],
)
def test_runs_of_before_there_was_a_choice_keep_their_names(settings: TrainSettings, name: str) -> None:
    assert settings.name == name


def test_read_takes_a_config_of_before_there_was_a_choice(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"method": "none", "epochs": 3, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0005}')
    read = reading.read(path)
    assert (read.amp, read.optimizer) == ("none", "sgd")
    assert read.differences(TrainSettings(method="none", epochs=3)) == []


def test_read_gives_back_what_was_written(tmp_path: Path) -> None:
    written = TrainSettings(bits=4, lr=0.3, data_dir="x", amp="fp16", optimizer="adamw")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dataclasses.asdict(written)))
    assert reading.read(path) == written


@pytest.mark.parametrize("text", ["{", "[1]", '{"colour": 1}'])
def test_read_refuses_what_is_no_config(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RunError, match=r"config\.json"):
        reading.read(tmp_path / "config.json")
    with pytest.raises(RunError, match="missing"):
        reading.read(tmp_path / "other.json")
