"""What `bench fidelity` makes of draws of a gradient, its networks and data, and the released algorithm's emulation."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import division
from division.bench import fidelity, released, rows, tasks
from division.bench.released import Misaligned, Released
from division.bench.settings import FidelitySettings, changed
from division.bench.tasks import Task
from division.codecs import Dual
from division.train.errors import SettingsError
from tests.bench.test_commands import run


def test_known_figures() -> None:
    exact = torch.tensor([3.0, 4.0])
    same = fidelity.fidelity(exact, exact.repeat(3, 1))
    assert tuple(same) == pytest.approx((1, 0, 0))
    longer = fidelity.fidelity(exact, 3 * exact.repeat(2, 1))
    assert tuple(longer) == pytest.approx((1, 2, 2))
    turned = fidelity.fidelity(exact, torch.tensor([[-4.0, 3.0]] * 2))
    assert turned[:2] == pytest.approx((0, math.sqrt(2)))


def test_a_gradient_that_is_nan_is_not_called_unbiased() -> None:
    found = fidelity.fidelity(torch.ones(2), torch.tensor([[1.0, math.nan], [1.0, 1.0]]))
    assert all(math.isnan(value) for value in found)


def test_noise_without_bias_is_told_from_bias() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(20_000, generator=generator)
    noise = torch.randn(8, 20_000, generator=generator) * 0.5
    assert fidelity.fidelity(exact, exact + noise).bias < 0.02
    assert fidelity.fidelity(exact, exact + noise + 0.3 * exact).bias == pytest.approx(0.3, abs=0.02)
    assert fidelity.fidelity(exact, exact + noise).relative_error == pytest.approx(0.5, abs=0.02)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The convolutional network narrow and on few images."""
    monkeypatch.setitem(tasks.TASKS, "resnet18-cifar", Task("resnet18-cifar", 32, 4, 4))


@pytest.mark.usefixtures("small")
def test_rows_of_a_small_run() -> None:
    settings = FidelitySettings(("resnet18-cifar",), ("lossless", "fixed-1", "fixed-8"), (3,), (2, 0), draws=2)
    state = torch.get_rng_state()
    seen: list[str] = []
    found = list(fidelity.measure(settings, lambda done, what: seen.append(f"{done} {what}")))
    assert torch.equal(state, torch.get_rng_state())
    assert seen == ["0 resnet18-cifar, seed 3, 0 steps", "1 resnet18-cifar, seed 3, 2 steps"]
    assert fidelity.units(settings) == len(seen)
    assert [(r["steps"], r["method"]) for r in found] == [(n, m) for n in (0, 2) for m in settings.methods]
    for n in (0, 2):
        lossless, one, eight = (r for r in found if r["steps"] == n)
        assert (lossless["relative_error"], lossless["bias"]) == (0, 0)
        assert 0 < eight["relative_error"] < one["relative_error"]
        assert one["cosine"] < eight["cosine"] < lossless["cosine"] == pytest.approx(1)
        assert one["packed_bytes"] < eight["packed_bytes"] < lossless["packed_bytes"] < lossless["raw_bytes"]
    assert found[0]["loss"] is None
    assert found[-1]["loss"] > 0
    again = [{k: v for k, v in r.items() if k != "time"} for r in fidelity.measure(settings)]
    assert again == [{k: v for k, v in r.items() if k != "time"} for r in found], "the same seeds, the same figures"


@pytest.mark.usefixtures("small")
def test_recomputing_from_coded_inputs_is_compared_too() -> None:
    settings = FidelitySettings(("resnet18-cifar",), ("recompute-8", "recompute-4", "none"), (0,), (1,), draws=2)
    eight, four, none = fidelity.measure(settings)
    assert 0 == none["relative_error"] < eight["relative_error"] < four["relative_error"] < 1
    assert four["packed_bytes"] < eight["packed_bytes"] < none["packed_bytes"] / 4
    assert none["packed_bytes"] == none["raw_bytes"] == eight["raw_bytes"]


@pytest.mark.parametrize("name", ["resnet18-cifar", "gpt"])
def test_batches_are_real_data_and_seeded(name: str) -> None:
    task = tasks.TASKS[name]
    x, y = task.batches(5, "cpu")()
    again = task.batches(5, "cpu")()
    other = task.batches(6, "cpu")()
    assert torch.equal(x, again[0])
    assert not torch.equal(x, other[0])
    if task.text:
        assert x.shape == y.shape == (task.batch_size, task.size)
        assert torch.equal(x[:, 1:], y[:, :-1])
    else:
        assert x.shape == (task.batch_size, 3, task.size, task.size)
        assert x.mean((1, 2, 3)).abs().max() < 1e-3
        assert int(y.max()) < 17


def test_every_network_is_one_that_can_be_built() -> None:
    from division.train import models

    for task in tasks.TASKS.values():
        assert models.problem(task.model, task.width, text=task.text) is None, task


def test_the_released_algorithm_is_ours_where_blocks_fit_but_for_its_rounding() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 24)
    codec = Misaligned()
    packed = codec.encode(x, 1)
    assert packed.nbytes == codec.packed_bytes(x.shape, x.dtype) == Dual(8, 2).packed_bytes(x.shape, x.dtype)
    means = F.avg_pool2d(x, 8).to(torch.bfloat16)
    assert torch.equal(packed.parts[0], means.view(6, 1, 2, 3))
    out = codec.decode(packed)
    step = packed.parts[2][:, 1].float().view(2, 3, 1, 1)
    assert bool(((out - x).abs() <= 1.01 * step + 0.02).all())


def test_the_released_algorithm_shifts_blocks_that_do_not_fit() -> None:
    """At 14 one block of 8 is pooled, of the upper left corner, and stands for the whole map."""
    x = torch.zeros(1, 1, 14, 14)
    x[..., :8, :8] = 4.0
    low = Misaligned().encode(x, 0).parts[0]
    assert low.tolist() == [[[[4.0]]]]
    assert Dual(8, 2, "low").decode(Dual(8, 2, "low").encode(x, 0))[0, 0, 13, 13] == 0


def test_the_released_algorithm_keeps_strides_and_leaves_what_it_has_no_way_for() -> None:
    x = torch.randn(2, 4, 9, 9).to(memory_format=torch.channels_last)
    codec = Misaligned()
    assert codec.decode(codec.encode(x, 0)).stride() == x.stride()
    assert codec.why_not(torch.zeros(3)) == "1 dims, neither a map (N, C, H, W) nor rows"
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.SiLU(), torch.nn.Flatten(), torch.nn.Linear(1568, 4))
    with division.compress(Released(), inputs=True) as context:
        model(torch.randn(2, 3, 16, 16)).sum()
    coded = {(r.node, r.field): r.codec for r in context.report.records}
    assert coded["ConvolutionBackward0", "input"] == "misaligned"
    assert coded["SiluBackward0", "self"] == coded["AddmmBackward0", "mat1"] == ""


@pytest.mark.parametrize("size", [(6, 36), (2, 5, 36)])
def test_the_released_algorithm_with_its_linear_layers_on(size: tuple[int, ...]) -> None:
    """Block means over 8 features, of which 36 have 4, each stretched over 9."""
    x = torch.randn(size)
    layer = torch.nn.Linear(36, 4)
    with division.compress(Released(), inputs=True) as context:
        layer(x)
    assert not any(r.codec for r in context.report.records)
    with division.compress(Released(rows=True), inputs=True) as context:
        layer(x)
    assert [r.codec for r in context.report.records if r.codec] == ["misaligned"]
    codec = Misaligned()
    packed = codec.encode(x, 0)
    assert packed.nbytes == codec.packed_bytes(size, x.dtype) == x.numel() // 36 * (2 * 4 + 9 + 4)
    low, _, scale = packed.parts
    assert torch.equal(low.flatten(1), x.view(-1, 36)[:, :32].unflatten(1, (4, 8)).mean(-1).bfloat16())
    steps = scale[:, 1].float().view(*size[:-1], 1)
    assert bool(((codec.decode(packed) - x).abs() <= 1.01 * steps + 0.02).all())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"models": ("resnet51",)}, "model is 'resnet51': expected one of resnet18-cifar"),
        ({"models": ()}, "no model is given"),
        ({"methods": ("divisoin",)}, "divisoin.*released"),
        ({"methods": ("fixed-2", "fixed-2")}, "a method is given twice: fixed-2, fixed-2"),
        ({"seeds": ()}, "no seed is given"),
        ({"seeds": (-1,)}, "seed is -1: expected 0 or more"),
        ({"steps": (0, 0)}, "a number of steps is given twice"),
        ({"steps": (-5,)}, "steps is -5: expected 0 or more"),
        ({"draws": 1}, "draws is 1: expected 2 or more"),
        ({"device": "tpu"}, "device is 'tpu'"),
    ],
)
def test_what_it_refuses(given: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        changed(FidelitySettings(), given).check()


@pytest.mark.usefixtures("small")
def test_the_command_records_by_network_method_seed_and_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    monkeypatch.setattr(rows, "checkout", lambda: tmp_path)
    target = folder / "bench_fidelity.jsonl"
    here = {"device_name": rows.cpu_name(), "model": "resnet18-cifar", "seed": 0, "steps": 0}
    rows.write(target, [{**here, "method": "division", "n": 1}, {**here, "method": "fixed-4", "n": 2}])
    arguments = ["--models", "resnet18-cifar", "--methods", f"division,{released.NAME}", "--seeds", "0", "--steps", "0"]
    assert run(monkeypatch, "bench", "fidelity", *arguments, "--draws", "2", "--record") == 0
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(r["method"], r.get("n")) for r in found] == [("fixed-4", 2), ("division", None), ("released", None)]
    assert f"{found[1]['relative_error']:.3f}" in capsys.readouterr().out
