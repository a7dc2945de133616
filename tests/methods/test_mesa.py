"""Mesa: which ranges run where, and how."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import division
from division.codecs import Group, Ranged
from division.methods import Mesa, mesa
from division.methods.mesa import RunningRange
from division.rules import Reading, Use
from division.saved import Saved
from tests.models import convnet, images, total


class Attention(nn.Module):
    """Attention of 4 heads, fused or by products."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.fused = nn.Linear(128, 384), nn.Linear(128, 128), fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, 4, 32)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT) / 32**0.5
        y = F.scaled_dot_product_attention(q, k, v) if self.fused else scores.softmax(-1) @ v
        return self.outer(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def kept(fused: bool) -> dict[str, str]:
    torch.manual_seed(0)
    model, method = Attention(fused), Mesa()
    with division.compress(method, model=model, seed=0, inputs=True) as context:
        loss = model(torch.randn(2, 16, 128)).square().mean()
    loss.backward()
    return {f"{r.node}.{r.field}": r.codec for r in context.report.records if r.codec}


def test_heads_share_a_range_and_slices_of_channels_do() -> None:
    fused = kept(True)
    name = "ScaledDotProductFlashAttentionForCpuBackward0"
    assert {fused[f"{name}.{field}"] for field in ("query", "key", "value", "output")} == {"ranged(groups=4)"}
    assert fused["AddmmBackward0.mat1"] == "ranged(axis=-1, groups=2)"
    products = kept(False)
    assert (
        products["BmmBackward0.self"] == products["BmmBackward0.mat2"] == "ranged(axis=0, groups=4, interleaved=True)"
    )
    assert products["SoftmaxBackward0.result"].startswith("group(bits=8, size=64")


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (64, 1), (96, 2), (97, 1), (192, 3), (256, 4), (768, 12)])
def test_slices_are_even_and_about_64_wide(channels: int, groups: int) -> None:
    codec = Mesa().codec(Reading(Use.LINEAR, axes="map"), Saved("Node", "field", torch.zeros(2, channels, 4, 4)))
    assert codec == Ranged(8, 1, groups)


def test_a_byte_an_element_whatever_the_batch() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3))
    for samples in (2, 32):
        prediction = division.predict(model, torch.empty(samples, 3, 16, 16, device="meta"), "mesa")
        for record in prediction.report.records:
            if record.codec:
                assert record.packed_bytes == record.raw_bytes // 4 + 4


def test_the_estimate_runs_and_what_is_coded_is_covered() -> None:
    running = RunningRange(0.9)
    low, high = running(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 4.0]))
    assert (low.tolist(), high.tolist()) == ([-1.0, 0.0], [1.0, 4.0])  # the first as it is
    low, high = running(torch.tensor([-3.0, 1.0]), torch.tensor([3.0, 2.0]))
    torch.testing.assert_close(running.low, torch.tensor([-1.2, 0.1]))
    torch.testing.assert_close(running.width, torch.tensor([2.4, 3.7]))
    torch.testing.assert_close(low, torch.tensor([-3.0, 0.1]))  # of the tensor, of the estimate
    torch.testing.assert_close(high, torch.tensor([3.0, 3.8]))


def test_what_is_not_finite_shows_and_leaves_the_estimate() -> None:
    running = RunningRange(0.5)
    assert all(x.isnan().all() for x in running(torch.tensor([torch.nan]), torch.tensor([torch.nan])))
    running(torch.tensor([-2.0]), torch.tensor([2.0]))
    low, high = running(torch.tensor([0.0]), torch.tensor([torch.inf]))
    assert not (low.isfinite().all() and high.isfinite().all())
    assert (running.low, running.width) == (torch.tensor([-2.0]), torch.tensor([4.0]))


def test_a_range_too_wide_for_float32_leaves_the_estimate() -> None:
    end, most = torch.tensor([2e38]), 0.45 * torch.finfo(torch.float32).max
    for first in (False, True):
        running = RunningRange(0.5)
        if not first:
            running(torch.tensor([-2.0]), torch.tensor([2.0]))
        assert running(-end, end) == (torch.tensor([-most]), torch.tensor([most]))
        assert running(torch.tensor([-2.0]), torch.tensor([2.0])) == (torch.tensor([-2.0]), torch.tensor([2.0]))
        assert (running.low, running.width) == (torch.tensor([-2.0]), torch.tensor([4.0]))


def test_gradients_are_finite_where_plain_ones_are() -> None:
    layer = nn.Linear(64, 64, bias=False)
    nn.init.eye_(layer.weight)
    with torch.no_grad():
        layer.weight.diagonal()[::2].neg_()
    contexts = [division.compress("mesa", model=layer, seed=0) for _ in range(2)]

    def gradient(context: Any, scale: float) -> Tensor:
        x = torch.rand(16, 64, generator=torch.Generator().manual_seed(0)) * scale
        with context:
            loss = torch.tanh(F.silu(layer(x))).mean()
        return torch.autograd.grad(loss, layer.weight)[0]

    for scale in (2e38, 1.0, 2e38):
        assert gradient(contexts[0], scale).isfinite().all()
    contexts[1].load_state_dict(json.loads(json.dumps(contexts[0].state_dict())))
    assert torch.equal(gradient(contexts[0], 1.0), gradient(contexts[1], 1.0))
    assert contexts[0].state_dict() == contexts[1].state_dict()


def test_a_group_without_an_estimate_is_kept_as_that() -> None:
    method, other = Mesa(), Mesa()
    method.running["a: Node.input x2"] = RunningRange(0.9)
    method.running["a: Node.input x2"](torch.tensor([-1.0, 0.0]), torch.tensor([3.0, torch.inf]))
    state = json.loads(json.dumps(method.state_dict()))
    assert state["sites"] == {"a: Node.input x2": [-1.0, -1.0, 4.0, -1.0]}
    other.load_state_dict(state)
    running = other.running["a: Node.input x2"]
    assert running.low is not None
    assert running.low.isnan().tolist() == [False, True]
    assert other.state_dict() == state
    assert mesa._mean((mesa._counted((-1.0, -1.0, 4.0, -1.0)) + mesa._counted((1.0, 5.0, 2.0, 6.0))) / 2) == (
        0.0, 5.0, 3.0, 6.0,
    )  # fmt: skip
    assert mesa._mean(mesa._counted((-1.0, -1.0))) == (-1.0, -1.0)


def test_numbers_of_heads_that_vary_share_one_range() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Unflatten(-1, (4, 8)), nn.LayerNorm(8))
    context = division.compress("mesa", model=model, seed=0)
    for tokens in (9, 9, 5, 9, 7):
        with context:
            loss = model(torch.randn(2, tokens, 32)).square().mean()
        loss.backward()
    assert sorted(context.state_dict()["method"]["learned"]["sites"]) == [
        "2.weight: NativeLayerNormBackward0 PowBackward0.self x1",
        "2.weight: NativeLayerNormBackward0.input x1",
    ]


def test_without_heads_or_tokens() -> None:
    model = nn.Linear(8, 8)
    context = division.compress("mesa", model=model)
    for size in ((2, 0, 3, 8), (2, 4, 3, 8), (2, 0, 3, 8), (0, 4, 3, 8)):
        with context:
            loss = F.gelu(model(torch.randn(size))).sum()
        loss.backward()
    assert [*context.state_dict()["method"]["learned"]["sites"]] == ["weight: AddmmBackward0 GeluBackward0.self x4"]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(576, 5)
    )


def train(context: Any, model: nn.Module, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        torch.manual_seed(step)
        with context:
            loss = model(torch.randn(4, 3, 16, 16)).square().mean()
        loss.backward()


def test_estimates_are_the_methods_and_eval_leaves_them() -> None:
    model, method = network(), Mesa()
    before = set(model.state_dict())
    context = division.compress(method, model=model, seed=0)
    train(context, model, 3)
    state = context.state_dict()
    assert set(model.state_dict()) == before
    assert sorted(state["method"]["learned"]["sites"]) == [
        "1.weight: NativeBatchNormBackward0.input x1",
        "3.weight: ConvolutionBackward0.input x1",
        "5.weight: AddmmBackward0 PowBackward0.self x1",
        "5.weight: AddmmBackward0.mat1 x9",
    ]
    with torch.no_grad(), context:
        model(torch.randn(4, 3, 16, 16) * 100)
    division.predict(model, torch.empty(4, 3, 16, 16, device="meta"), method)
    assert context.state_dict()["method"] == state["method"]


def test_a_code_is_decoded_by_the_range_it_was_made_with() -> None:
    """Though the estimate has moved on: of two forwards before a backward, as when gradients are accumulated."""
    grads = []
    for between in (False, True):
        model = network()
        context = division.compress(Mesa(), model=model, seed=0)
        torch.manual_seed(5)
        with context:
            loss = model(torch.randn(4, 3, 16, 16)).square().mean()
        if between:
            with context:
                model(torch.randn(4, 3, 16, 16) * 50)
        loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)  # type: ignore[arg-type]


def test_a_training_goes_on_from_what_was_learned() -> None:
    whole, half, model = network(), network(), network()
    context = division.compress(Mesa(), model=whole, seed=1)
    train(context, whole, 4)
    first = division.compress(Mesa(), model=half, seed=1)
    train(first, half, 2)
    state = json.loads(json.dumps(first.state_dict()))
    model.load_state_dict(half.state_dict())
    second = division.compress(Mesa(), model=model, seed=9)
    second.load_state_dict(state)
    train(second, model, 2, first=2)
    assert second.state_dict() == context.state_dict()


def test_processes_agree_after_the_first_step_and_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    model, method = network(), Mesa(interval=3)

    def more(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        steps.append(method.learned.steps)
        return {name: 2 * row - 1 for name, row in rows.items()}

    monkeypatch.setattr(mesa, "several_ranks", lambda: True)
    monkeypatch.setattr(mesa, "agreed", more)
    context = division.compress(method, model=model, seed=0)
    train(context, model, 1)
    assert steps == []
    before = method.state_dict()["sites"]
    method.begin_step()
    assert method.state_dict()["sites"] == {
        site: pytest.approx([2 * value - 1 for value in row]) for site, row in before.items()
    }
    train(context, model, 5)
    assert steps == [2, 3, 6]


@pytest.mark.parametrize("row", [[1.0], [], [0.0, -1.0], [0.0, 1.0, 2.0]])
def test_a_state_of_another_kind_is_refused(row: list[float]) -> None:
    state = Mesa().state_dict() | {"steps": 1, "sites": {"a: Node.input x1": row}}
    with pytest.raises(ValueError, match="as what 'mesa' learned, expected 1 least values, then as many widths"):
        Mesa().load_state_dict(state)


@pytest.mark.parametrize("amp", [False, True])
def test_it_learns_and_is_unbiased(amp: bool) -> None:
    torch.manual_seed(0)
    model = convnet(16).to(memory_format=torch.channels_last)
    x = images(4, 3, 32, 32).to(memory_format=torch.channels_last)

    def gradients(context: Any) -> Tensor:
        torch.manual_seed(2)  # of the dropout
        with context, torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = total(model(x)).float()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    plain, context = gradients(division.disabled()), division.compress("mesa", model=model, seed=0)
    found = torch.stack([gradients(context) for _ in range(12)])
    error = (found - plain).norm(dim=1).mean() / plain.norm()
    assert 0 < error < 0.1
    if amp:
        return  # of what 8 bits do no more is left than bfloat16 rounds away
    assert (found.mean(0) - plain).norm() / plain.norm() < 0.45 * error  # of 12, 0.29 by chance


def test_log_softmax_is_kept_as_probabilities() -> None:
    codec = Mesa().codec(Reading(Use.LINEAR, axes="rows", logs=True), Saved("Node", "field", torch.zeros(4, 64)))
    assert str(codec).startswith("logs")
    assert isinstance(Mesa().lossy(Reading(Use.SMOOTH, along=-1), Saved("Node", "field", torch.zeros(4, 64))), Group)
