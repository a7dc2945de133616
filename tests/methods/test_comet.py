"""COMET: what the bounds come from, and that the error they cause is the one that was meant."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import division
from division.codecs import ErrorBound, sz3
from division.methods import Comet, Reading, Saved, comet
from division.methods.method import Gradients, Observer
from division.methods.weight_error import layer_of
from tests.methods.learning import heads_on_one_trunk

needs_sz3 = pytest.mark.skipif(not sz3.available(), reason="pysz is not installed")


class Watching(Comet):
    """Notes, besides, the variance that each layer's gradient says of every step."""

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        inner, layer, site = (
            super().observe(reading, saved, packed_bytes),
            layer_of(saved),
            self.learned.sites.site(saved),
        )
        if not hasattr(self.learned, "variances"):
            self.learned.variances = {}  # type: ignore[attr-defined]

        def observed(inputs: Gradients, outputs: Gradients) -> None:
            assert outputs[0] is not None
            assert layer is not None
            self.learned.variances[site] = float(layer.variance(outputs[0]))  # type: ignore[attr-defined]
            if inner is not None:
                inner(inputs, outputs)

        return None if layer is None else observed


class Residual(nn.Module):
    """Two blocks with shortcuts, one of them a convolution: their inputs are read twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.first, self.second = (nn.Conv2d(c, k, 3, padding=1) for c, k in ((3, 8), (8, 8), (8, 16)))
        self.shortcut, self.head = nn.Conv2d(8, 16, 1), nn.Linear(16, 5)
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in (8, 8, 16))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norms[0](self.stem(x)))
        h = F.relu(self.norms[1](self.first(h)) + h)
        h = F.relu(self.norms[2](self.second(h)) + self.shortcut(h))
        return self.head(h.mean((2, 3)))


def task(size: int = 16) -> tuple[Residual, Tensor, Tensor]:
    model = Residual()
    return model, torch.randn(16, 3, size, size), torch.arange(16) % 5


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)


def train(model: nn.Module, x: Tensor, y: Tensor, optimizer: Any, context: Any, steps: int, scale: float = 1.0) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        with context:
            loss = F.cross_entropy(model(x), y)
        (loss * scale).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= scale
        optimizer.step()


def bounds(method: Comet) -> dict[str, float]:
    method.begin_step()
    return {site: row[0] for site, row in method.learned.values.items()}


CONVS = ["first", "second", "shortcut"]


def site(layer: str) -> str:
    return f"{layer}.weight: ConvolutionBackward0.input"


def test_bounds_follow_from_gradients_and_momentum() -> None:
    model, x, y = task()
    optimizer, method = sgd(model), Comet(share=0.02)
    context = division.compress(method, model=model, optimizer=optimizer)
    with context:
        loss = F.cross_entropy(model(x), y)
    codecs = {r.owner: r.codec for r in context.report.records if not r.left}
    assert "error_bound(bound=0.01, relative=True)" in codecs.values()
    loss.backward()
    optimizer.step()
    found = bounds(method)
    # Of the head, whose input's gradient is easily said: x.T @ gy.
    hooked: dict[str, Tensor] = {}
    model.head.register_forward_pre_hook(lambda m, args: hooked.update(x=args[0].detach()))
    model.head.register_full_backward_hook(lambda m, i, o: hooked.update(gy=o[0]))  # type: ignore[index]
    fresh = Residual()
    model.load_state_dict(fresh.state_dict())
    F.cross_entropy(model(x), y).backward()
    momentum = optimizer.state[model.head.weight]["momentum_buffer"].abs().mean()
    share = (hooked["x"] != 0).float().mean()
    variance = share * hooked["gy"].square().sum() / 5
    expected = min(0.02 * momentum * (3 / variance).sqrt(), 0.25 * hooked["x"].max())
    assert found["head.weight: AddmmBackward0.mat1"] == pytest.approx(float(expected), rel=0.02)


def test_momentum_of_adam_is_an_average_and_counts_as_so_many_gradients() -> None:
    model, x, y = task()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    method = Comet(share=1e-4)
    train(model, x, y, optimizer, division.compress(method, model=model, optimizer=optimizer), 1)
    found = bounds(method)
    other, again = Comet(share=1e-4), Residual()
    train(
        again, x, y, sgd(again), division.compress(other, model=again), 1
    )  # after one step the gradient is the momentum
    for name, bound in bounds(other).items():
        assert found[name] == pytest.approx(bound, rel=1e-4)


OTHERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "normalised": lambda parameters: torch.optim.RMSprop(parameters, 1e-4, momentum=0.9),
    "no betas": lambda parameters: Averaging(parameters, {}),
    "nothing but dampening": lambda parameters: torch.optim.SGD(parameters, 1e-4, momentum=0.9, dampening=1.0),
}


class Averaging(torch.optim.Optimizer):
    """Keeps an ``exp_avg`` of its own making, as Adafactor does."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for x in group["params"]:
                self.state[x]["exp_avg"] = torch.full_like(x, 1e3)


@pytest.mark.parametrize("name", OTHERS)
def test_momenta_that_are_no_sums_of_gradients_do_not_count(name: str) -> None:
    model, x, y = task()
    optimizer, method = OTHERS[name](list(model.parameters())), Comet(share=1e-4)
    train(model, x, y, optimizer, division.compress(method, model=model, optimizer=optimizer), 1)
    other, again = Comet(share=1e-4), Residual()
    train(again, x, y, sgd(again), division.compress(other, model=again), 1)
    assert bounds(method) == pytest.approx(bounds(other), rel=1e-4)


def test_sparse_gradients_are_passed_over() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 64, sparse=True), nn.Linear(64, 64), nn.Linear(64, 8))
    optimizer, method = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), Comet()
    context = division.compress(method, model=model, optimizer=optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        with context:
            loss = model(torch.arange(9)).square().mean()
        loss.backward()
        optimizer.step()
    assert set(bounds(method)) == {f"{layer}.weight: AddmmBackward0.mat1" for layer in (1, 2)}


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_changes_no_bound(fused: bool) -> None:
    found = []
    for enabled in (True, False):
        model, x, y = task()
        optimizer, method = torch.optim.AdamW(model.parameters(), 1e-3, fused=fused), Comet(share=1e-3)
        context = division.compress(method, model=model, optimizer=optimizer, seed=0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=enabled)
        for step in range(6):
            optimizer.zero_grad()
            with context:
                loss = F.cross_entropy(model(x), y) * (math.inf if enabled and step == 3 else 1.0)  # the fourth gathers
            if step == 3 and not enabled:
                continue
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(1024.0)
        found.append(bounds(method))
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_an_optimizer_has_one_hook_however_many_methods_follow_it() -> None:
    model, x, y = task()
    optimizer = sgd(model)
    for _ in range(5):
        train(model, x, y, optimizer, division.compress("comet", model=model, optimizer=optimizer), 1)
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_swapped_it_trains_in_float64() -> None:
    model, x, y = task()
    model, x = model.double(), x.double()
    optimizer = sgd(model)
    context = division.compress("swap-comet", model=model, optimizer=optimizer)
    train(model, x, y, optimizer, context, 6)
    assert not any("error_bound" in r.codec for r in context.report.records)


def test_a_scaled_loss_has_the_same_bounds() -> None:
    found = []
    for scale in (1.0, 1024.0):
        model, x, y = task()
        optimizer, method = sgd(model), Comet(share=1e-3)
        context = division.compress(method, model=model, optimizer=optimizer, seed=0)
        train(model, x, y, optimizer, context, 4, scale)
        found.append(bounds(method))
    assert found[0].keys() == found[1].keys()
    for name, bound in found[0].items():
        assert found[1][name] == pytest.approx(bound, rel=1e-3)


def test_a_tensor_of_two_layers_is_coded_once_with_the_least_of_their_bounds() -> None:
    model, x, y = task()
    optimizer, method = sgd(model), Comet()
    context = division.compress(method, model=model, optimizer=optimizer)
    train(model, x, y, optimizer, context, 3)
    records = {r.node + r.module + str(i): r for i, r in enumerate(context.report.records)}
    convs = [r for r in records.values() if r.node == "ConvolutionBackward0" and r.field == "input" and not r.left]
    assert [bool(r.shared) for r in convs] == [False, False, True]
    assert convs[1].codec == convs[2].codec
    assert method.learned.links == {site("shortcut"): site("second")}
    found = bounds(method)
    assert found[site("second")] == found[site("shortcut")]


def test_a_reader_without_a_gradient_hands_on_the_bound_of_the_others() -> None:
    torch.manual_seed(0)
    first, norm, second = nn.Linear(64, 64), nn.LayerNorm(64, elementwise_affine=False), nn.Linear(64, 64)
    model, method = nn.ModuleList([first, norm, second]), Comet(share=1e-4)
    context = division.compress(method, model=model)
    for _ in range(2):
        with context:
            h = first(torch.randn(256, 64))
            loss = (norm(h) + second(h)).square().mean()
        loss.backward()
    bound = method.bound("2.weight: AddmmBackward0.mat1")
    assert bound is not None
    assert {str(r.codec) for r in context.report.records if not r.left} == {str(ErrorBound(bound))}


def test_methods_that_read_one_tensor_have_bounds_of_their_own() -> None:
    for handle, at in zip(heads_on_one_trunk("comet", 3), ("weight", "0.weight"), strict=True):
        learned = handle.state_dict()["methods"][""]["learned"]
        ((place, (bound, _)),) = learned["sites"].items()
        assert place == f"{at}: AddmmBackward0.mat1"
        assert learned["links"] == {}
        assert {str(r.codec) for r in handle.report.records if not r.left} == {str(ErrorBound(bound))}


def test_bounds_are_refreshed_at_powers_of_two_and_then_every_interval() -> None:
    model, x, y = task(8)
    optimizer, method = sgd(model), Comet(interval=10)
    context = division.compress(method, model=model, optimizer=optimizer)
    gathered = []
    for step in range(1, 32):
        train(model, x, y, optimizer, context, 1)
        if method.learned.gathering:
            gathered.append(step)
    assert gathered == [1, 2, 4, 8, 10, 20, 30]


def error(model: nn.Module, x: Tensor, y: Tensor, context: Any) -> dict[str, Tensor]:
    model.zero_grad()
    with context:
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


Batch = tuple[Tensor, Tensor]


def ratios(method: Watching, model: nn.Module, batches: Sequence[Batch], context: Any) -> dict[str, float]:
    """Measured over predicted standard deviation of the error in the gradients of convolutions, over these batches."""
    squares: dict[str, list[float]] = {}
    for x, y in batches:
        exact, coded = error(model, x, y, nullcontext()), error(model, x, y, context)
        for place, (bound, factor) in method.learned.values.items():
            name = place.partition(": ")[0]
            measured = (coded[name] - exact[name]).square().mean().item()
            if "Convolution" in place and measured:
                variance = method.learned.variances[place]  # type: ignore[attr-defined]
                squares.setdefault(place, []).append(measured / ((bound * factor) ** 2 * variance / 3))
    return {place: math.sqrt(sum(found) / len(found)) for place, found in squares.items()}


def test_the_error_in_a_gradient_is_the_predicted_one() -> None:
    model, x, y = task(32)
    optimizer, method = sgd(model), Watching(norms=False, interval=16)
    context = division.compress(method, model=model, optimizer=optimizer)
    train(model, x, y, optimizer, context, 33)
    found = ratios(method, model, [(x, y)], context)
    assert set(found) == {site(layer) for layer in CONVS}
    assert all(1 / 1.5 < ratio < 1.5 for ratio in found.values()), found


def test_flat_areas_make_the_next_bound_less() -> None:
    model, x, y = task(32)
    x = x * 0 + torch.randn(16, 3, 1, 1)  # each image of one colour: one value, one error
    optimizer, method = sgd(model), Comet(norms=False, interval=8)
    train(model, x, y, optimizer, division.compress(method, model=model, optimizer=optimizer), 25)
    method.begin_step()
    assert max(row[1] for row in method.learned.values.values()) > 2


def test_what_is_kept_of_a_measured_error_counts_and_goes_with_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[comet.Probe] = []

    class Noted(comet.Probe):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(comet, "Probe", Noted)
    model, x, y = task()
    optimizer, method = sgd(model), Comet()
    context = division.compress(method, model=model, optimizer=optimizer)
    train(model, x, y, optimizer, context, 4)
    measured: dict[int, float] = {}
    packed = []
    for _ in range(2 * len(method.learned.values)):  # each in turns, twice
        made.clear()
        optimizer.zero_grad()
        with context:
            loss = F.cross_entropy(model(x), y)
        report = context.report
        assert [r.learning_bytes for r in report.records if r.learning_bytes] == [probe.nbytes for probe in made]
        assert report.packed_bytes == report.code_bytes + report.left_bytes + sum(probe.nbytes for probe in made)
        assert ("to learn from" in str(report)) == bool(made)
        bits = {i: 8 * r.learning_bytes / math.prod(r.shape) for i, r in enumerate(report.records)}
        measured |= {i: each for i, each in bits.items() if each}
        packed.append(report.packed_bytes)
        loss.backward()
        assert all(probe(x) is None for probe in made)  # though `loss` still holds the graph
        optimizer.step()
    assert len(measured) == 3  # two convolutions and the head: the shortcut's convolution shares a code
    assert all(1 < bits < 5 for bits in measured.values())
    foretold = division.predict(model, x, method, loss=lambda out: F.cross_entropy(out, y))
    assert foretold.packed_bytes == pytest.approx(sum(packed) / len(packed), rel=0.03)
    assert foretold.packed_bytes > min(packed)


def test_what_it_leaves() -> None:
    model, x, _ = task()
    for norms, nodes in ((True, {"ConvolutionBackward0", "NativeBatchNormBackward0", "AddmmBackward0"}), (False, None)):
        with division.compress(Comet(norms=norms)) as context:
            F.gelu(model(x)).sum()
        coded = {r.node for r in context.report.records if r.codec.startswith("error_bound")}
        assert coded == (nodes or {"ConvolutionBackward0", "AddmmBackward0"})


def test_what_was_learned_goes_on_in_another_process() -> None:
    model, x, y = task()
    optimizer, method = sgd(model), Comet()
    context = division.compress(method, model=model, optimizer=optimizer)
    train(model, x, y, optimizer, context, 3)
    state = json.loads(json.dumps(context.state_dict()))
    other, again = Comet(), Residual()
    division.compress(other, model=again).load_state_dict(state)
    assert {name: other.bound(name) for name in map(site, CONVS)} == {
        name: method.bound(name) for name in map(site, CONVS)
    }
    prediction = division.predict(model, x, other)
    assert prediction.basis == "recorded"
    assert prediction.packed_bytes == pytest.approx(context.report.packed_bytes, rel=0.02)
    assert division.predict(model, x, "comet").basis == "interval"
    with pytest.raises(ValueError, match="which this model hasn't"):
        division.compress(Comet(), model=nn.Linear(2, 2)).load_state_dict(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0}, "got share=0"),
        ({"share": -0.1}, "got share=-0.1"),
        ({"share": math.nan}, "got share=nan"),
        ({"share": True}, "got share=True"),
        ({"interval": 0}, "got interval=0"),
        ({"interval": 1.5}, "got interval=1.5"),
        ({"coder": "zip"}, "got coder='zip'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Comet(**settings)


def test_it_goes_by_its_share_and_has_no_blocks_and_no_other_coder() -> None:
    assert division.methods.find("comet-0.05") == Comet(share=0.05)
    assert division.methods.find("comet") == Comet()
    with pytest.raises(ValueError, match=r"got share=0\.0"):
        division.methods.find("comet-0")
    with pytest.raises(ValueError, match="bits=2"):
        division.methods.find("comet", bits=2)
    with pytest.raises(ValueError, match="got method 'comet-zip'"):
        division.methods.find("comet-zip")


@needs_sz3
def test_codes_may_be_those_of_sz3() -> None:
    model, x, y = task(32)
    optimizer, method = sgd(model), Comet(norms=False, coder="sz3")
    context = division.compress("comet-sz3", model=model)
    assert context.method == Comet(coder="sz3")
    context = division.compress(method, model=model, optimizer=optimizer)
    train(model, x, y, optimizer, context, 3)
    codes = [r for r in context.report.records if r.codec.startswith("sz3(")]
    assert len(codes) == 4  # the head too
    assert all(r.packed_bytes < r.raw_bytes for r in codes if not r.shared)
    exact, coded = error(model, x, y, nullcontext()), error(model, x, y, context)
    for layer in CONVS:
        name = f"{layer}.weight"
        assert not torch.equal(exact[name], coded[name])
        assert (exact[name] - coded[name]).norm() < 0.3 * exact[name].norm()


def test_sz3_that_is_not_installed_is_told_when_the_method_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sz3, "available", lambda: False)
    with pytest.raises(ImportError, match=r"pip install 'division\[sz3\]'"):
        division.methods.find("comet-sz3")
    division.methods.find("comet")
