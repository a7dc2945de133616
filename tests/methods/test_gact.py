"""GACT: sensitivities that tell what a code does to the gradient, and bits that follow from them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import division
from division import methods
from division.methods import Gact, Offload, gact
from division.methods.gact import LADDER
from tests.methods.effects import effects, items_of, spearman
from tests.models import WAYS, go


class Residual(nn.Module):
    """Two residual blocks behind a stem, with batch norm, and a classifier."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.first, self.second = self._half(width, width, 1), self._half(width, 2 * width, 2)
        self.shortcut = nn.Conv2d(width, 2 * width, 1, 2, bias=False)
        self.head = nn.Linear(2 * width, 5)

    def _half(self, before: int, after: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = F.relu(self.first(h) + h)
        h = F.relu(self.second(h) + self.shortcut(h))
        return self.head(F.gelu(h).mean((2, 3)))


def task(model: nn.Module, size: int, batch: int, steps: int = 0) -> Callable[[], Tensor]:
    """A step on noisy copies of a few pictures, after training on some."""
    torch.manual_seed(1)
    pictures = torch.randn(5, 3, size, size)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)

    def drawn() -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 5, (batch,))
        return pictures[y] + 1.5 * torch.randn(batch, 3, size, size), y

    for _ in range(steps):
        x, y = drawn()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    x, y = drawn()
    return lambda: F.cross_entropy(model(x), y)


def network() -> Residual:
    torch.manual_seed(0)
    return Residual()


def small() -> tuple[nn.Module, Callable[[], Tensor]]:
    """Three layers with batch norm and dropout, and a step."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 64),
        nn.BatchNorm1d(64),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 5),
    )
    x, y = torch.randn(16, 32), torch.arange(16) % 5
    return model, lambda: F.cross_entropy(model(x), y)


def calibrated(model: nn.Module, step: Callable[[], Tensor], method: Gact | None = None) -> Gact:
    method = method or Gact()
    assert division.compress(method, model=model).calibrate(step)
    return method


@pytest.mark.parametrize("bits", [2, 4])
def test_sensitivities_rank_tensors_as_their_effect_on_the_gradient_does(bits: int) -> None:
    model = network()
    step = task(model, 16, 8, 20)
    found = items_of(calibrated(model, step).sensitivities())
    assert len(found) == 12
    assert spearman(list(found.values()), effects(model, step, list(found), bits, 4)) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "average"), [(0, 4.0), (40, 2.0)])
def test_sensitivities_of_resnet18(steps: int, average: float) -> None:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=5)
    step = task(model, 64, 8, steps)
    found = items_of(calibrated(model, step, Gact(average)).sensitivities())
    assert len(found) == 38
    for bits in (2, 4):
        assert spearman(list(found.values()), effects(model, step, list(found), bits, 3)) >= 0.9


def test_bits_are_on_the_ladder_and_within_the_budget() -> None:
    model = network()
    step = task(model, 16, 4)
    for average in (1.5, 3.0):
        method = calibrated(model, step, Gact(average))
        rows = list(method.learned.values.values())
        assert {row[2] for row in rows} <= set(LADDER)
        assert len({row[2] for row in rows}) > 1
        with division.compress(method, model=model) as context:
            step()
        groups = [r for r in context.report.records if r.codec.startswith("group") and not r.shared]
        elements = sum(r.raw_bytes // 4 for r in groups)
        codes = sum(r.packed_bytes - 4 * -(-r.raw_bytes // 1024) for r in groups)
        assert 0.9 * average <= 8 * codes / elements <= average + 0.01  # whole bytes


def test_a_tensor_that_two_operations_save_has_one_code() -> None:
    model = network()
    step = task(model, 16, 4)
    method = calibrated(model, step, Gact(2.0))
    one, other = "second.0.weight: ConvolutionBackward0.input", "shortcut.weight: ConvolutionBackward0.input"
    assert method.learned.values[one] == method.learned.values[other]
    assert method.learned.values[one][1] == 4 * 8 * 16 * 16
    with division.compress(method, model=model) as context:
        step()
    (record,) = (r for r in context.report.records if r.node == "ConvolutionBackward0" and r.shared)
    assert record.sharer is not None
    assert record.sharer.node == "ConvolutionBackward0"


@pytest.mark.parametrize("way", WAYS)
def test_measuring_leaves_no_trace(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go(way, monkeypatch)
    model, step = small()
    step().backward()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    random = torch.get_rng_state()
    context = division.compress(Gact(), model=model, seed=3)
    noise = context.state_dict()["noise"]
    assert context.calibrate(step)
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name]), name
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), random)
    assert context.state_dict()["noise"] == noise
    assert context.report.steps == 0
    # Every run saw the same dropout mask: another one alone would disturb the gradient more than any code does.
    exact = [torch.cat([g.flatten() for g in torch.autograd.grad(step(), list(model.parameters()))]) for _ in range(2)]
    assert max(context.method.sensitivities().values()) / 9 < (exact[0] - exact[1]).square().sum()  # type: ignore[attr-defined]


def test_it_is_due_before_the_first_step_and_after_each_interval() -> None:
    model, step = small()
    context = division.compress(Gact(interval=2), model=model)
    due = []
    for _ in range(6):
        due.append(context.calibrate(step))
        with context:
            step()
    assert due == [True, False, True, False, True, False]
    assert not division.compress(Gact(adaptive=False), model=model).calibrate(step)
    assert not division.compress("division", model=model).calibrate(step)


def test_a_gradient_that_overflows_measures_nothing() -> None:
    model, step = small()
    method = Gact()
    context = division.compress(method, model=model)
    assert not context.calibrate(lambda: step() * float("inf"))
    assert method.sensitivities() == {}
    assert method.wants_step()
    assert context.calibrate(step)
    assert method.sensitivities()
    assert not method.wants_step()


class _Part(torch.autograd.Function):
    """Passes on its first input; its backward has no gradient for the second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, unused: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


def test_a_parameter_whose_gradient_is_none_disturbs_nothing() -> None:
    model, step = small()
    idle = nn.Parameter(torch.ones(3))
    method = calibrated(model, lambda: cast(Tensor, _Part.apply(step(), idle)))
    assert method.sensitivities() == calibrated(model, step).sensitivities()


def test_attached_models_measure_too_and_each_part_its_own() -> None:
    model, step = small()
    first, rest = Gact(2.0), Gact(4.0)
    with division.attach(model, {"4": first, "": rest}) as handle:
        assert handle.calibrate(step)
        assert set(first.sensitivities()) == {"4.weight: AddmmBackward0.mat1"}
        assert len(rest.sensitivities()) == 3
        assert not handle.calibrate(step)
        assert handle.report.steps == 0


def test_inside_an_open_context_it_measures_all_the_same() -> None:
    model, step = small()
    context = division.compress(Gact(), model=model)
    with context:
        loss = step()
        records = len(context.report.records)
        assert context.calibrate(step)
        assert len(context.report.records) == records
    loss.backward()
    assert context.report.steps == 1


def test_offloaded_it_measures_as_ever() -> None:
    model, step = small()
    method = methods.find("offload-gact-3")
    assert isinstance(method, Offload)
    assert division.compress(method, model=model).calibrate(step)
    assert method.method.sensitivities() == calibrated(model, step, Gact(3.0)).sensitivities()  # type: ignore[attr-defined]


def test_what_was_measured_goes_through_json_and_back() -> None:
    model, step = small()
    method = calibrated(model, step)
    state = json.loads(json.dumps(method.state_dict()))
    again = Gact()
    again.bind(dict(model.named_parameters()))
    again.load_state_dict(state)
    assert again.widths() == method.widths()
    assert not again.wants_step()
    assert again.state_dict() == state
    for wrong in ({}, {**state, "measured": None}, {**state, "sites": {"a": [1.0, 2.0, 3.0]}}, {**state, "shares": 1}):
        with pytest.raises(ValueError, match="learned"):
            Gact().load_state_dict(wrong)
    with pytest.raises(ValueError, match="this model hasn't"):
        again.load_state_dict({**state, "sites": {"other.weight: ConvolutionBackward0.input": [1.0, 2.0, 2.0]}})


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("gact", Gact()), ("gact-2.5", Gact(2.5)), ("gact-L1", Gact(4, False)), ("gact-L1.1", Gact(8, False)),
        ("gact-L1.2", Gact(2, False)), ("gact-L2.1", Gact(3)), ("gact-L3", Offload(Gact(4.0))),
    ],
)  # fmt: skip
def test_names_give_averages_and_levels(name: str, method: Any) -> None:
    assert methods.find(name) == method


@pytest.mark.parametrize("name", ["gact-0.5", "gact-9", "gact-nan", "gact-L9", "gact-x"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected 'gact-' and an average from 1 to 8 or a level"):
        methods.find(name)


@pytest.mark.parametrize(
    "settings",
    [{"bits": 0.9}, {"bits": 8.5}, {"bits": True}, {"bits": "4"}, {"bits": 2.5, "adaptive": False}, {"interval": 0}],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Gact(**settings)


def test_a_step_that_gives_no_loss_is_refused() -> None:
    model, _ = small()
    context = division.compress(Gact(), model=model)
    with pytest.raises(TypeError, match="got NoneType from the step, expected the loss"):
        context.calibrate(lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="without a graph"):
        context.calibrate(lambda: torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"got a tensor \(2, 5\)"):
        context.calibrate(lambda: model(torch.randn(2, 32)))
    assert context.method.wants_step()


def test_widths_follow_from_what_all_processes_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Tensor] = {}

    def agreed(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.update(rows)
        others = {"only elsewhere: ReluBackward0.result": torch.tensor([0.5, 64.0], dtype=torch.float64)}
        return {item: row * torch.tensor([3.0, 2.0]) for item, row in rows.items()} | others

    monkeypatch.setattr(gact, "agreed", agreed)
    model, step = small()
    method = calibrated(model, step, Gact(3.0))
    learned = method.learned.values
    assert learned.keys() == seen.keys() | {"only elsewhere: ReluBackward0.result"}
    for item, (sensitivity, elements) in seen.items():
        assert learned[item][:2] == (3 * sensitivity, 2 * elements)
    assert learned["only elsewhere: ReluBackward0.result"][:2] == (0.5, 64)
    assert sum(row[1] * row[2] for row in learned.values()) <= 3 * sum(row[1] for row in learned.values())


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model, _ = small()
    ddp = nn.parallel.DistributedDataParallel(model)
    batch = 16 - 4 * rank
    x, y = torch.randn(batch, 32, generator=torch.Generator().manual_seed(rank)), torch.arange(batch) % 5
    method = Gact(3.0)
    context = division.compress(method, model=ddp, seed=0)
    assert context.calibrate(lambda: F.cross_entropy(ddp.module(x), y))
    with context:
        loss = F.cross_entropy(ddp(x), y)
    loss.backward()
    grads = [p.grad for p in model.parameters()]
    lone = Gact(3.0)  # the second process saves nothing
    step = (
        (lambda: F.cross_entropy(model(x), y))
        if rank == 0
        else (lambda: nn.utils.parameters_to_vector(model.parameters()).sum())
    )
    assert division.compress(lone, model=model, seed=0).calibrate(step)
    states = {"learned": method.state_dict(), "lone": lone.state_dict()}
    torch.save({**states, "grads": grads}, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_measure_the_same(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert one["learned"] == other["learned"]
    assert one["learned"]["sites"]
    assert one["lone"]["sites"]
    assert one["lone"]["sites"] == other["lone"]["sites"]
    assert all(map(torch.equal, one["grads"], other["grads"]))
