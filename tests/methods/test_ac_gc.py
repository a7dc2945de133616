"""AC-GC: the bits against the errors of the gradients that they allow."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import division
from division.codecs import Group
from division.methods import AcGc, Swap, learned
from division.rules import Reading, Use
from division.saved import Saved

SITE = "1.weight: NativeBatchNormBackward0 ReluBackward0.8 channels"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(576, 5)
    )


def train(context: Any, model: nn.Module, steps: int, shape: tuple[int, ...] = (4, 3, 16, 16)) -> None:
    for step in range(steps):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(step))
        model.zero_grad()
        with context:
            loss = F.cross_entropy(model(x), torch.arange(len(x)) % 5)
        loss.backward()


def test_it_begins_with_the_most_bits_and_settles_after_ten_steps() -> None:
    model, method = network(), AcGc(interval=20)
    context = division.compress(method, model=model, seed=0)
    train(context, model, 10)
    assert {r.codec for r in context.report.records if isinstance(r.coded_by, Group)} == {
        "group(bits=(16,), size=None, axis=(0, 2, 3))", "group(bits=(16,), size=None, axis=(0,))",
    }  # fmt: skip
    assert method.log() == []
    train(context, model, 1)
    (entry,) = method.log()
    assert set(entry) == {"step", "bits", "linear", "norm"}
    assert entry["step"] == 10
    assert 2 <= entry["norm"] < entry["bits"] < entry["linear"] < 16
    bits = method.learned.values[SITE]
    assert len(bits) == 8
    (record,) = [r for r in context.report.records if r.node == "ConvolutionBackward0" and r.codec]
    assert record.coded_by == Group(tuple(map(int, bits)), None, (0, 2, 3))
    train(context, model, 30)
    assert [entry["step"] for entry in method.log()] == [10, 20, 40]


def gradient_errors(
    method: AcGc, model: nn.Module, x: Tensor, gradient: Tensor, read: Callable[[nn.Module, Tensor], Tensor], seeds: int
) -> float:
    """The mean squared error of a gradient over its square, with the bits that have been settled."""
    context = division.compress(method, model=model, seed=3)

    def once(inside: Any) -> Tensor:
        h = x.clone().requires_grad_()
        with inside:
            y = model(h + 0)
        y.backward(gradient)
        found = read(model, h)
        model.zero_grad()
        return found

    exact = once(division.disabled()).clone()
    for _ in range(10):
        once(context)
    errors = [(once(context) - exact).square().sum() for _ in range(seeds)]
    return float(sum(errors)) / seeds / float(exact.square().sum())


def weight_of(model: nn.Module, h: Tensor) -> Tensor:
    weight = model.weight.grad
    assert isinstance(weight, Tensor)
    return weight.clone()


def input_of(model: nn.Module, h: Tensor) -> Tensor:
    assert h.grad is not None
    return h.grad.clone()


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[nn.Module, Tensor], Tensor]]] = {
    "conv": (lambda: nn.Conv2d(8, 16, 3, padding=1), (8, 8, 12, 12), weight_of),
    "strided": (lambda: nn.Conv2d(8, 16, 3, stride=2), (8, 8, 13, 13), weight_of),
    "grouped": (lambda: nn.Conv2d(8, 16, 3, groups=4, padding=1), (8, 8, 12, 12), weight_of),
    "transposed": (lambda: nn.ConvTranspose2d(8, 16, 2, stride=2), (8, 8, 6, 6), weight_of),
    "1 dim": (lambda: nn.Conv1d(8, 16, 5, padding=2), (8, 8, 40), weight_of),
    "linear": (lambda: nn.Linear(32, 16), (64, 32), weight_of),
    "tokens": (lambda: nn.Linear(32, 16), (8, 9, 32), weight_of),
    "batch norm": (lambda: nn.BatchNorm2d(8), (8, 8, 12, 12), input_of),
    "batch norm of rows": (lambda: nn.BatchNorm1d(32), (128, 32), input_of),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("eps_bits", [4, 9])
def test_the_error_of_the_gradient_is_what_was_asked_for(name: str, eps_bits: int) -> None:
    """Independent errors add up to e, less what whole bits are finer than they need be: a factor from 1/4 to 1."""
    make, size, read = LAYERS[name]
    torch.manual_seed(1)
    model, x = make(), torch.randn(size) * 2
    channels = 1 if len(size) > 2 and name != "tokens" else -1
    x = x * torch.linspace(0.3, 3, size[channels]).view(
        [-1 if d == channels % len(size) else 1 for d in range(len(size))]
    )
    gradient = torch.randn_like(model(x))
    method = AcGc(eps_bits, bound="expected")
    error = gradient_errors(method, model, x, gradient, read, 12)
    assert method.learned.values
    bits = [b for row in method.learned.values.values() for b in row]
    assert max(bits) < 16
    low = 0.1 if min(bits) > 2 else 0.0  # no fewer than 2 bits, whatever may be
    assert low * 2.0**-eps_bits < error < 1.15 * 2.0**-eps_bits


@pytest.mark.parametrize("name", LAYERS)
def test_the_bound_on_the_worst_case_holds_by_far(name: str) -> None:
    make, size, read = LAYERS[name]
    torch.manual_seed(1)
    model, x = make(), torch.randn(size)
    gradient = torch.randn_like(model(x))
    assert gradient_errors(AcGc(), model, x, gradient, read, 3) < 0.1


def test_the_worst_case_is_that_of_errors_along_the_gradient() -> None:
    """With errors as large as they may be, all along the output's gradient, the error of the weight's is e / 2."""
    x, gradient = torch.randn(4, 1, 6, 6), torch.randn(4, 1, 6, 6)
    weight = (x * gradient).sum()  # of a convolution of one channel by one element
    allowed = weight.square() / (2 * x.numel() * gradient.square().sum())
    error = gradient * (allowed * x.numel()).sqrt() / gradient.norm()
    torch.testing.assert_close(((error * gradient).sum() / weight).square(), torch.tensor(0.5))
    torch.testing.assert_close(error.square().mean(), allowed)


def test_bits_are_the_fewest_with_a_step_of_that_error() -> None:
    method = AcGc(eps_bits=1)
    for bits in range(3, 17):
        finest = 1 / (2**bits - 1) ** 2 / 6  # squared error for a range of 1
        assert method._bits(2.001 * finest, 1.0) == bits
        assert method._bits(1.999 * finest, 1.0) == min(bits + 1, 16)
    assert method._bits(0.0, 1.0) == 16
    assert method._bits(1.0, 0.0) == 2
    assert method._bits(1e-30, 1.0) == 16


def test_one_code_serves_all_who_read_it_by_the_strictest() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.stem(x).relu()
            return self.one(h).mean((2, 3)) + 1e3 * self.two(h).square().mean((2, 3))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, method = Branches(), AcGc()
    context = division.compress(method, model=model, seed=0)
    train(context, model, 11)
    site = "stem.weight: ConvolutionBackward0 ReluBackward0.8 channels"
    assert site in method.learned.values
    codes = [r for r in context.report.records if r.node == "ConvolutionBackward0" and r.codec]
    assert len(codes) == 2
    assert sum(bool(r.shared) for r in codes) == 1
    alone = []
    for branch in ("one", "two"):
        torch.manual_seed(0)
        single, own = Branches(), AcGc()
        with torch.no_grad():
            getattr(single, {"one": "two", "two": "one"}[branch]).requires_grad_(False)
        train(division.compress(own, model=single, seed=0), single, 11)
        alone.append(own.learned.values[site])
    assert method.learned.values[site] == tuple(map(max, *alone))


def test_what_has_no_bound_has_8_bits() -> None:
    for reading, x, expected in (
        (Reading(Use.SMOOTH, axes="rows", norm=True), torch.zeros(4, 9, 32), Group((8,), None, (0, 1))),
        (Reading(Use.SMOOTH), torch.zeros(4, 32), Group((8,), None, (0,))),
        (Reading(Use.SMOOTH, axes="any"), torch.zeros(4, 3, 8, 8), Group((8,), None, (0, 2, 3))),
        (Reading(Use.SMOOTH, along=-1), torch.zeros(4, 32), Group(8, 64, -1)),
        (Reading(Use.SMOOTH), torch.zeros(40), Group(8, None, "tensor")),
    ):
        assert AcGc().codec(reading, Saved("GeluBackward0", "self", x)) == expected


def test_it_goes_through_json_and_predictions_take_what_was_learned() -> None:
    model, method, other = network(), AcGc(), AcGc()
    with division.attach(model, method) as handle:
        for step in range(11):
            F.cross_entropy(model(torch.randn(4, 3, 16, 16)), torch.tensor([step % 5] * 4)).backward()
        state = json.loads(json.dumps(handle.state_dict()))
        packed = handle.report.packed_bytes
    batch = torch.empty(4, 3, 16, 16, device="meta")
    beginning = division.predict(network(), batch, other)
    at_first = beginning.packed_bytes
    assert beginning.basis == division.predict(network(), batch, "swap-ac-gc").basis == "beginning"
    with division.attach(network(), other) as again:
        again.load_state_dict(state)
        assert again.state_dict() == state
    assert other.log() == method.log() != []
    settled = division.predict(network(), batch, other)
    assert settled.packed_bytes == packed < at_first
    assert settled.basis == "shapes"


def test_what_only_others_saw_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    method = AcGc()
    found: dict[str, Tensor] = {}
    monkeypatch.setattr(learned, "agreed", lambda rows: rows | found)
    finest = 1 / 255**2 / 6  # squared error of 8 bits for a range of 1
    for site, kind, elements in (("a", "product", 300.0), ("b", "norm", 100.0), ("b", "product", 100.0)):
        found[f"{site} > {kind} c"] = torch.tensor([1.001 * finest * 4 ** (kind == "norm"), elements, 1.0])
    method._settle(10)
    assert method.learned.values == {"a": (8.0,), "b": (8.0,)}
    assert method.log() == [{"step": 10, "bits": 8.0, "linear": 8.0, "norm": 8.0}]


def test_statistics_of_half_precision_do_not_overflow() -> None:
    bits = []
    for scale in (1.0, 512.0):
        model, method = nn.BatchNorm1d(8, eps=1e-12), AcGc(4)
        context = division.compress(method, model=model, seed=0)
        x = (torch.linspace(-8, 8, 512).view(64, 8) * scale).half()
        for _ in range(11):
            with context:
                y = model(x.clone().requires_grad_() + 0)
            y.backward(torch.linspace(-1, 1, 512).view(64, 8).sin().half())
        bits.append([*method.learned.values.values()])
    assert bits[0] == bits[1] != []


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("moved", [False, True])
def test_what_its_codec_refuses_is_not_looked_at(moved: bool, dtype: torch.dtype) -> None:
    method = Swap(AcGc()) if moved else AcGc()
    model = nn.Sequential(nn.Linear(64, 64, dtype=dtype), nn.Linear(64, 8, dtype=dtype))
    for _ in range(11):
        with division.compress(method, model=model):
            loss = model(torch.randn(64, 64, dtype=dtype)).abs().sum()
        loss.backward()
    assert not method.state_dict()["seen"]


def changed(**changes: Any) -> dict[str, Any]:
    return AcGc().state_dict() | {"steps": 3, "sites": {SITE: [4.0]}, "log": [{"step": 10, "bits": 4.0}]} | changes


@pytest.mark.parametrize(
    "state",
    [
        None, {}, changed(log=None), changed(log=[{"step": 1}]), changed(log=[{"step": 1, "bits": "4"}]),
        changed(log=[{"step": 1, "bits": math.nan}]), changed(sites={SITE: [17.0]}), changed(sites={SITE: [2.5]}),
        changed(sites={SITE: []}), changed(sites={SITE: ["4"]}), changed(steps=-1),
    ],
)  # fmt: skip
def test_a_state_of_another_kind_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        AcGc().load_state_dict(state)
    AcGc().load_state_dict(changed())


@pytest.mark.parametrize("amp", [False, True])
def test_it_trains_in_channels_last_and_under_autocast(amp: bool) -> None:
    model, method = network().to(memory_format=torch.channels_last), AcGc()
    context, optimizer = division.compress(method, model=model, seed=0), torch.optim.SGD(model.parameters(), 0.05)
    x, y = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last), torch.arange(8) % 5
    losses = []
    for _ in range(25):
        with context, torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
    assert method.log()
    assert context.report.ratio > (1.5 if amp else 3)
