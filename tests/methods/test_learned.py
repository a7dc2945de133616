"""What learning methods are told, and what they keep."""

import json
from typing import Any

import pytest
import torch
from torch import nn

import division
from division.methods.learned import Learned, Statistics
from tests.methods.learning import Learning, One
from tests.models import WAYS, go


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(576, 5)
    )


BATCH = torch.randn(4, 3, 16, 16)
SITES = [
    "1.weight: NativeBatchNormBackward0.input",
    "3.weight: ConvolutionBackward0.input",
    "5.weight: AddmmBackward0.mat1",
]


@pytest.mark.parametrize("way", WAYS)
def test_a_method_is_told_of_steps_tensors_and_gradients(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go(way, monkeypatch)
    model, method = network(), Learning()
    context = division.compress(method, model=model)
    with context:
        output = model(BATCH)
    output.retain_grad()
    output.square().sum().backward()
    # The batch, which no node made, is shown as well; weights aren't.
    assert method.calls == ["begin", "0.weight: ConvolutionBackward0.input", *SITES]
    assert output.grad is not None
    assert method.learned.values == {}
    with torch.no_grad(), context:
        model(BATCH)
    assert len(method.calls) == 5  # nothing is saved, so no step begins
    with context:
        model(BATCH)
    assert set(method.learned.values) == {*SITES, "0.weight: ConvolutionBackward0.input"}
    assert method.learned.values[SITES[2]] == pytest.approx((output.grad.square().mean().item(),), rel=1e-6)


def test_gradients_accumulate_to_their_mean_and_overflows_are_left_out() -> None:
    seen = Statistics()
    for value in (1.0, 2.0, 6.0):
        seen.add("a", torch.tensor(value), torch.tensor(-value))
    seen.add("a", torch.tensor(1.0), torch.tensor(float("nan")))
    seen.add("b", torch.tensor(float("inf")), torch.tensor(1.0))
    assert len(seen) == 2
    assert seen.read() == {"a": (3.0, -3.0)}
    assert seen.read() == {}


def test_observing_changes_no_gradient() -> None:
    grads = []
    for method in ("division", Learning()):
        model = network()
        with division.compress(method, seed=3):
            loss = model(BATCH).square().sum()
        loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for one, other in zip(*grads, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_what_was_learned_goes_through_json_and_back() -> None:
    model, method = network(), Learning()
    handle = division.attach(model, method)
    for _ in range(2):
        model(BATCH).square().sum().backward()
    state = json.loads(json.dumps(handle.state_dict()))
    handle.remove()
    other = Learning()
    with division.attach(network(), other) as again:
        again.load_state_dict(state)
        assert other.learned.values == method.learned.values
        assert other.learned.values
        assert again.state_dict() == state


def changed(**changes: Any) -> dict[str, Any]:
    return Learned().state_dict() | {"steps": 3, "sites": {SITES[0]: [1.0]}, "shares": {SITES[0]: 0.1}} | changes


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"steps": 3},
        changed(steps=-1),
        changed(steps=True),
        changed(sites=[1.0]),
        changed(sites={SITES[0]: [1.0, 2.0]}),
        changed(sites={SITES[0]: [float("nan")]}),
        changed(sites={SITES[0]: ["1"]}),
        changed(shares={SITES[0]: None}),
        changed(more=1),
    ],
)
def test_a_state_of_another_kind_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="as what 'mine' learned, expected"):
        One().load_state_dict(state, "mine")


def test_a_state_of_another_model_is_refused() -> None:
    with division.attach(network(), Learning()) as handle:
        state = handle.state_dict()
        state["methods"][""]["learned"] = changed(sites={"layer9.weight: ConvolutionBackward0.input": [1.0]})
        with pytest.raises(ValueError, match=r"'layer9.weight', which this model hasn't"):
            handle.load_state_dict(state)


def test_a_context_refuses_what_is_no_model_or_optimizer() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match="got str as the model"):
        division.compress(model="resnet")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got Sequential as the optimizer"):
        division.compress(model=model, optimizer=model)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got an optimizer and no model"):
        division.compress(optimizer=optimizer)
    division.compress(model=model, optimizer=optimizer)
