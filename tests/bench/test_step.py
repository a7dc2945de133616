import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

import division
from division.bench import networks, peak, step
from division.bench.baselines import blocks, checkpointed
from division.bench.settings import StepSettings, Workload
from division.bench.work import Work
from division.train import models
from division.train.errors import RunError
from tests.bench.clock import Scripted
from tests.bench.tiny import Tiny

METHODS = ("none", "division", "checkpoint", "save_on_cpu")
LOAD = Workload("tiny", 16, 4, METHODS)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "build", lambda *_: Tiny())
    monkeypatch.setattr(networks, "classes", lambda m, size: 10)
    monkeypatch.setattr("division.bench.settings.problem", lambda *_, **__: None)


def weights(work: Work) -> list[Tensor]:
    return [p.detach().clone() for p in work.model.parameters()]


@pytest.mark.parametrize("method", ["checkpoint", "save_on_cpu", "checkpoint-none", "swap", "swap-checkpoint"])
def test_the_baselines_train_as_plain_pytorch_does(method: str) -> None:
    plain, other = Work(LOAD), Work(dataclasses.replace(LOAD, methods=(method,)))
    assert all(map(torch.equal, weights(plain), weights(other)))
    before = weights(plain)
    for _ in range(2):
        plain.step("none")
        other.step(method)
    assert all(map(torch.equal, weights(plain), weights(other)))
    assert not all(map(torch.equal, weights(plain), before))


def test_checkpoint_beside_division_recomputes_the_blocks_and_codes_the_rest() -> None:
    work, plain = Work(LOAD), Work(LOAD)
    before = weights(work)
    for _ in range(2):
        plain.step("checkpoint")
        work.step("checkpoint+division")
    assert work.beside.report.steps == 2
    owners = {r.owner for r in work.beside.report.records if r.codec}
    assert owners, "what lies between the blocks is coded"
    assert not all(map(torch.equal, weights(work), before))
    far = max(float((a - b).abs().max()) for a, b in zip(weights(work), weights(plain), strict=True))
    assert far < 0.1
    assert all("forward" not in vars(member) for member in work.blocks)


def test_recomputing_from_coded_inputs_trains_nearly_as_plain_pytorch_does() -> None:
    work, plain = Work(LOAD), Work(LOAD)
    for _ in range(2):
        plain.step("none")
        work.step("recompute-8")
    far = max(float((a - b).abs().max()) for a, b in zip(weights(work), weights(plain), strict=True))
    assert 0 < far < 0.02
    assert all("forward" not in vars(member) for member in work.blocks)
    assert work.recomputing["recompute-8"].raw_bytes == 0


def test_building_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    Work(LOAD)
    assert torch.equal(torch.get_rng_state(), before)


def test_checkpoint_runs_each_block_again_in_backward() -> None:
    work = Work(LOAD)
    calls: list[bool] = []
    for member in work.blocks:
        convolution = next(member.children())
        convolution.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    work.step("none")
    assert len(calls) == 2
    work.step("checkpoint")
    assert len(calls) == 2 + 4
    assert all("forward" not in vars(member) for member in work.blocks), "as they were"


def test_checkpoint_is_left_even_after_an_error() -> None:
    member = nn.Sequential(nn.ReLU())
    with pytest.raises(ZeroDivisionError), checkpointed([member]):
        raise ZeroDivisionError
    assert "forward" not in vars(member)


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet18-cifar", 8), ("resnet50", 16), ("vit_b_16", 12), ("vgg11", 0), ("mobilenet_v2", 19)],
)
def test_blocks_of_known_networks(name: str, count: int) -> None:
    with torch.device("meta"):
        assert len(blocks(models.build(name, 3, 10, 224))) == count


def test_accounts_are_the_reports_of_a_forward() -> None:
    work, context = Work(LOAD), division.compress("none")
    with context:
        nn.functional.cross_entropy(work.model(work.images), work.labels)
    assert work.accounts("none") == (context.report.raw_bytes, context.report.raw_bytes)
    raw, packed = work.accounts("division")
    assert raw == context.report.raw_bytes
    assert packed < raw


def test_sizes_are_those_of_weights_momentum_and_batch() -> None:
    work = Work(LOAD)
    parameters = sum(p.nbytes for p in work.model.parameters())
    buffers = sum(b.nbytes for b in work.model.buffers())
    batch = 4 * 3 * 16 * 16 * 4 + 4 * 8
    assert work.sizes() == {"weight_bytes": parameters + buffers, "momentum_bytes": 0, "batch_bytes": batch}
    work.step("none")
    assert work.sizes()["momentum_bytes"] == parameters
    assert all(p.grad is None for p in work.model.parameters())


def test_channels_last_and_autocast() -> None:
    work = Work(Workload("tiny", 16, 4, ("none",), amp="bf16", channels_last=True))
    dtypes: list[object] = []
    work.blocks[1].register_forward_pre_hook(lambda _, args: dtypes.append(args[0].dtype))
    work.blocks[0].register_forward_pre_hook(
        lambda _, args: dtypes.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    work.step("none")
    assert dtypes == [True, torch.bfloat16]


def test_rows_of_a_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measured(load: Workload, method: str, work: Work | None = None) -> dict[str, object]:
        asked.append(method)
        return {"peak_bytes": 1000 + len(asked), "kept_bytes": 77}

    monkeypatch.setattr(peak, "measure", measured)
    # Two rounds of four; the second begins with the second method.
    seconds = [1.0, 2.0, 4.0, 1.0, 2.0, 4.0, 1.0, 1.0]
    told: list[tuple[int, str]] = []
    settings = StepSettings((LOAD,), repeats=2)
    rows = list(step.measure(settings, lambda *said: told.append(said), Scripted(lambda run: seconds[run])))
    assert [row["method"] for row in rows] == list(METHODS) == asked
    assert [row["throughput_ratio"] for row in rows] == [1.0, 0.5, 0.25, 1.0]
    assert [row["images_per_s"] for row in rows] == [4.0, 2.0, 1.0, 4.0]
    assert [row["peak_bytes"] for row in rows] == [1001, 1002, 1003, 1004]
    raw, packed = Work(LOAD).accounts("division")
    assert [row["raw_bytes"] for row in rows] == [raw] * 4
    assert [row["packed_bytes"] for row in rows] == [raw, packed, 77, 77]
    assert {(row["model"], row["image_size"], row["batch_size"]) for row in rows} == {("tiny", 16, 4)}
    assert {(row["device"], row["amp"], row["layout"], row["tf32"]) for row in rows} == {
        ("cpu", "none", "contiguous", False)
    }
    assert [done for done, _ in told] == [0, 1, 2, 3, 4]
    assert step.units(settings) == 5


def test_without_peaks() -> None:
    settings = StepSettings((copy.copy(LOAD),), repeats=1, peak=False)
    rows = list(step.measure(settings, clock=Scripted(lambda run: 1.0)))
    assert [row["peak_bytes"] for row in rows] == [None] * 4
    assert step.units(settings) == 1


def test_the_peak_of_a_real_step_is_made_of_its_parts() -> None:
    row = peak.measure(Workload("resnet18", 8, 8, ("none", "division")), "division")
    assert row["base_bytes"] == sum(row[f"{part}_bytes"] for part in ("process", "weight", "momentum", "batch"))
    inside = sum(row[f"{part}_bytes"] for part in ("base", "saved", "gradient", "transient", "outside"))
    assert row["peak_bytes"] == inside > row["base_bytes"]
    parameters = 4 * 11_173_962
    assert row["momentum_bytes"] == parameters < row["weight_bytes"]
    # Here the update finds all gradients; they are most of what a step of so small a batch adds.
    assert 0.5 * parameters < row["gradient_bytes"] <= parameters + 4096
    assert row["report_packed_bytes"] < row["report_raw_bytes"]
    assert row["saved_bytes"] <= row["kept_bytes"]
    assert row["transient_bytes"] <= row["largest_transient_bytes"]
    terms = row["base_bytes"] + row["gradient_bytes"] + row["report_packed_bytes"] + row["largest_transient_bytes"]
    assert row["explained"] == pytest.approx(terms / row["peak_bytes"], rel=1e-4)
    assert 0.9 < row["explained"] < 1.1


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "MODULE", "nowhere_at_all")
    with pytest.raises(RunError, match=r"division on tiny 16x16, batch 4 ended with exit code 1.*nowhere_at_all"):
        peak.measure(LOAD, "division")
