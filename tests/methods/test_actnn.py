"""ActNN: its average, its variance against fixed bits and against theory, what it learns, and what it refuses."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import division
from division.codecs import Elsewhere, Group, Mixed
from division.methods import ActNN, Swap, find
from division.methods.actnn import _taps
from division.saved import Saved
from tests.methods.learning import heads_on_one_trunk
from tests.models import WAYS, go

AVERAGES = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4)


class Residual(nn.Module):
    """A block whose input two convolutions read."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False), nn.BatchNorm2d(2 * width)
        self.second, self.side = nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.Conv2d(width, 2 * width, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(self.norm(self.first(x)).relu()) + self.side(x)).relu()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), Residual(16), Residual(32),
        nn.Conv2d(64, 64, 3, padding=1, groups=4), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    smooth = functional.interpolate(torch.randn(8, 3, 4, 4, generator=generator), size=(16, 16), mode="bilinear")
    scale = torch.linspace(0.2, 2, 8)[:, None, None, None]
    return scale * smooth, torch.randint(0, 10, (8,), generator=generator)


def loss(output: Tensor) -> Tensor:
    return functional.cross_entropy(output, batch()[1])


def train(model: nn.Module, method: ActNN, steps: int = 5) -> division.compress:
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    context = division.compress(method, model=model, seed=2)
    for _ in range(steps):
        optimizer.zero_grad()
        with context:
            value = loss(model(batch()[0]))
        value.backward()
        optimizer.step()
    return context


def average(context: division.compress, kind: type = Mixed) -> float:
    """Bits an element over all tensors that are coded by a codec with widths."""
    bits = elements = 0
    for record in context.report.records:
        codec = record.coded_by.inner if isinstance(record.coded_by, Elsewhere) else record.coded_by
        if isinstance(codec, kind) and record.sharer is None:
            count = torch.Size(record.shape).numel()
            elements += count
            assert isinstance(codec, Mixed)
            bits += codec.total(record.shape[0]) * (count // record.shape[0])
    assert elements
    return bits / elements


@pytest.mark.parametrize("bits", AVERAGES)
def test_the_average_is_what_was_asked_for(bits: float) -> None:
    method = ActNN(bits)
    first = train(network(), method, 1)
    assert average(first) == pytest.approx(bits, rel=0.01)
    assert method.learned.values == {}
    context = train(network(), method, 3)
    assert len(set(method.learned.values.values())) > (bits > 1)
    assert average(context) == pytest.approx(bits, rel=0.01)
    assert average(context) <= bits


def test_an_odd_batch_has_its_average_too() -> None:
    method, model = ActNN(1.5), network()
    context = division.compress(method, model=model)
    for _ in range(4):
        with context:
            value = functional.cross_entropy(model(batch()[0][:6]), batch()[1][:6])
        value.backward()
    assert average(context) == pytest.approx(1.5, rel=0.01)


def test_adaptive_bits_disturb_gradients_less_than_fixed_ones() -> None:
    model, adaptive, fixed = network(), ActNN(2), ActNN(2, "L2")
    train(model, adaptive, 9)  # gathered in step 8
    x = batch()[0]
    ours, theirs = (division.gradient_variance(model, x, loss, method, draws=12) for method in (adaptive, fixed))
    assert ours.measured < 0.9 * theirs.measured
    assert ours.predicted < 0.8 * theirs.predicted


def test_predicted_variance_is_what_is_measured_in_every_layer() -> None:
    model, method = network(), ActNN(2)
    train(model, method, 6)
    found = division.gradient_variance(model, batch()[0], loss, method, draws=40, layers_only=True)
    assert [layer.name for layer in found.layers] == [
        "3.first.weight", "3.second.weight", "3.side.weight", "4.first.weight", "4.second.weight", "4.side.weight",
        "5.weight", "8.weight",
    ]  # fmt: skip
    for layer in found.layers:
        assert layer.predicted == pytest.approx(layer.measured, rel=0.2), layer
    assert found.predicted == pytest.approx(found.measured, rel=0.1)


@pytest.mark.slow
def test_resnet18() -> None:
    """Every layer within a fifth of what is predicted; adaptive bits ahead of fixed ones, before and after training."""
    torch.manual_seed(0)
    models = pytest.importorskip("torchvision.models")
    model = models.resnet18(num_classes=10)
    x = functional.interpolate(torch.randn(16, 3, 16, 16), size=(64, 64), mode="bilinear")
    labels = torch.arange(16) % 10
    criterion = lambda output: functional.cross_entropy(output, labels)  # noqa: E731
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    method = ActNN(2, interval=4)
    context = division.compress(method, model=model, seed=2)
    for step in range(1, 18):
        with context:
            value = criterion(model(x))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if step in (5, 17):
            assert average(context) == pytest.approx(2, rel=0.01)
            alone = division.gradient_variance(model, x, criterion, method, draws=16, layers_only=True)
            assert len(alone.layers) == 20
            for layer in alone.layers:
                assert layer.predicted == pytest.approx(layer.measured, rel=0.2), layer
            ours, fixed = (
                division.gradient_variance(model, x, criterion, each, draws=8) for each in (method, ActNN(2, "L2"))
            )
            assert ours.predicted < fixed.predicted
            assert ours.measured < fixed.measured


@pytest.mark.parametrize("steps", [0, 12])
def test_sensitivities_stand_for_the_variance(steps: int) -> None:
    """Ranges and norms, with a sixth for the rounding and the share that isn't 0, against the exact prediction."""
    model, method = network(), ActNN(2, interval=1)
    if steps:
        train(model, ActNN(2), steps)
    with division.compress(method, model=model):
        value = loss(model(batch()[0]))
    value.backward()
    gathered = {site.partition(":")[0]: row[0] for site, row in method.learned.seen.read().items()}
    for bits in (2, 4):
        exact = division.gradient_variance(model, batch()[0], loss, ActNN(bits, "L1"), draws=2, layers_only=True)
        assert len(exact.layers) == 8
        for layer in exact.layers:
            assert 0.75 < gathered[layer.name] / (2**bits - 1) ** 2 / layer.predicted < 1.4, layer.name


@pytest.mark.parametrize("kernel", [(1, 1), (3, 2), (5, 3)])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (1, 2, 1), (2, 1, 1), (3, 2, 2), (2, 3, 2)])
def test_taps_that_meet_padding_do_not_count(kernel: tuple[int, int], stride: int, padding: int, dilation: int) -> None:
    x, weight = torch.ones(1, 1, 11, 9).requires_grad_(), torch.ones(1, 1, *kernel).requires_grad_()
    y = functional.conv2d(x, weight, None, stride, padding, dilation)
    share = _taps(Saved("ConvolutionBackward0", "input", x, "", y.grad_fn))(y, weight)
    assert share == pytest.approx(float(y.detach().mean()) / weight.numel())


def test_one_number_stands_for_all_dims_of_a_convolution() -> None:
    method, weight = ActNN(interval=1), nn.Parameter(torch.randn(64, 64, 3, 3))
    model = nn.ParameterDict({"weight": weight})
    x = torch.randn(4, 64, 9, 7, requires_grad=True)
    shares, grads = [], []
    for stride, padding, dilation in (([2], [3], [2]), ([2, 2], [3, 3], [2, 2])):
        with division.compress(method, model=model, seed=0):
            y = torch.ops.aten.convolution(x.relu(), weight, None, stride, padding, dilation, False, [0], 1)
        shares.append(_taps(Saved("ConvolutionBackward0", "input", x, "", y.grad_fn))(y, weight))
        grads.append(torch.autograd.grad(y.sum(), weight)[0])
        assert len(method.learned.seen)
    assert shares[0] == shares[1] < 1
    assert torch.isfinite(grads[0]).all()


def test_a_tensor_that_two_layers_read_is_coded_once() -> None:
    method = ActNN(2)
    context = train(network(), method)
    convolutions = [r for r in context.report.records if r.node == "ConvolutionBackward0" and r.coded_by]
    shared = [r for r in convolutions if r.sharer is not None]
    assert len(shared) == 2
    assert all(r.packed_bytes == 0 for r in shared)
    values = method.learned.values
    for block in ("3", "4"):
        first, side = (
            next(row for site, row in values.items() if site.startswith(f"{block}.{name}.weight"))
            for name in ("first", "side")
        )
        assert first == side


def test_a_norm_has_the_width_of_the_layer_before() -> None:
    method = ActNN(2)
    context = train(network(), method)
    width: dict[str, float] = {site.partition(":")[0]: row[0] for site, row in method.learned.values.items()}
    assert width["3.norm.weight"] == width["3.first.weight"]
    assert width["4.norm.weight"] == width["4.first.weight"]
    codecs = {r.shape: r.coded_by for r in context.report.records if "BatchNorm" in r.node and r.field == "input"}
    assert codecs[8, 32, 8, 8] == Mixed(width["3.norm.weight"])


@pytest.mark.parametrize(
    ("level", "convolution", "norm"),
    [("L0", None, None), ("L1", Group(4, 256), None), ("L2", Group(4, 256), Group(4, 256)), ("L3", Mixed(2), Mixed(2))],
)
def test_levels(level: str, convolution: object, norm: object) -> None:
    context = train(network(), ActNN(level=level), 1)
    records = [r for r in context.report.records if r.field == "input" and r.shape[1] == 32]
    assert {r.coded_by for r in records if r.node == "ConvolutionBackward0"} == {convolution}
    assert {r.coded_by for r in records if "BatchNorm" in r.node} == {norm}
    # At L0 convolutions keep the results of ReLU as they are, so that their signs need no code.
    assert all(r.coded_by for r in context.report.records if r.node == "ReluBackward0") == (level != "L0")


def test_the_last_level_keeps_its_codes_elsewhere() -> None:
    model, method = network(), ActNN(level="L4")
    context = train(model, method)
    large = [r.coded_by for r in context.report.records if r.node == "ConvolutionBackward0" and r.coded_by]
    assert any(isinstance(codec, Elsewhere) and isinstance(codec.inner, Mixed) for codec in large)
    assert average(context) == pytest.approx(2, rel=0.01)
    grads = []
    for level in ("L3", "L4"):
        model = network()
        train(model, ActNN(level=level), 4)
        grads.append([p.grad for p in model.parameters()])
    for one, other in zip(*grads, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_when_sensitivities_are_gathered() -> None:
    method, model = ActNN(interval=6), network()
    context, gathered = division.compress(method, model=model), []
    for step in range(1, 13):
        with context:
            value = loss(model(batch()[0]))
        value.backward()
        if len(method.learned.seen):
            gathered.append(step)
        with torch.no_grad(), context:  # no step: nothing is saved
            model(batch()[0])
    assert gathered == [1, 2, 4, 6, 12]
    assert method.learned.steps == 12


@pytest.mark.parametrize("way", WAYS)
def test_codes_are_small(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go(way, monkeypatch)
    model, method = network(), ActNN(2)
    context = train(model, method, 3)
    coded = [r for r in context.report.records if isinstance(r.coded_by, Mixed) and r.sharer is None]
    assert sum(r.packed_bytes for r in coded) < sum(r.raw_bytes for r in coded) / 13


def test_what_was_learned_goes_on() -> None:
    model, method = network(), ActNN(1.5)
    with division.attach(model, method) as handle:
        for _ in range(3):
            loss(model(batch()[0])).backward()
        state = json.loads(json.dumps(handle.state_dict()))
    again = ActNN(1.5)
    with division.attach(network(), again) as handle:
        handle.load_state_dict(state)
    assert again.learned.values == method.learned.values
    assert len(again.learned.values) >= 8
    assert again == method
    assert ActNN(1.5) != ActNN(2)


def test_methods_that_read_one_tensor_keep_their_sites_apart() -> None:
    learned = [handle.state_dict()["methods"][""]["learned"] for handle in heads_on_one_trunk("actnn", 4)]
    assert [[*each["sites"]] for each in learned] == [
        ["weight: AddmmBackward0.mat1"],
        ["0.weight: AddmmBackward0.mat1"],
    ]
    assert [each["links"] for each in learned] == [{}, {}]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_what_its_codec_refuses_is_not_looked_at(dtype: torch.dtype) -> None:
    model, method = nn.Sequential(nn.Linear(64, 64, dtype=dtype), nn.Linear(64, 8, dtype=dtype)), Swap(ActNN())
    with division.compress(method, model=model):
        loss = model(torch.randn(64, 64, dtype=dtype)).abs().sum()
    loss.backward()
    assert not method.state_dict()["seen"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_default_dtype_changes_nothing(dtype: torch.dtype) -> None:
    learned = []
    for each in (torch.float32, dtype):
        model, method = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)), ActNN()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
        x = torch.linspace(-1, 1, 61_440).view(20, 3, 32, 32)
        torch.set_default_dtype(each)
        try:
            with division.compress(method, model=model, seed=0):
                loss = model(x).square().mean()
            loss.backward()
            method.begin_step()
        finally:
            torch.set_default_dtype(torch.float32)
        learned.append(method.state_dict())
    assert learned[0] == learned[1]
    assert learned[0]["sites"]


def test_predicted_bytes_are_measured_ones() -> None:
    model, method = network(), ActNN(2.5)
    for steps in (1, 3):
        context = train(model, method, steps)
        predicted = division.predict(model, batch()[0], method)
        with context:
            output = model(batch()[0])
        assert predicted.packed_bytes == context.report.packed_bytes
        output.sum().backward()


def test_a_width_out_of_range_is_no_state() -> None:
    state = ActNN().state_dict() | {"steps": 1, "sites": {"0.weight: ConvolutionBackward0.input": [9.0]}}
    with pytest.raises(ValueError, match=r"got a width of 9\.0 bits"):
        ActNN().load_state_dict(state)
    with pytest.raises(ValueError, match="expected an empty one"):
        ActNN(level="L2").load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "bits", "expected"),
    [
        ("actnn", None, ActNN()),
        ("actnn", 3, ActNN(3)),
        ("actnn-L0", None, ActNN(level="L0")),
        ("actnn-L4", 1, ActNN(1, "L4")),
        ("actnn-1.25", None, ActNN(1.25)),
        ("actnn-2", 2, ActNN(2)),
    ],
)
def test_names(name: str, bits: int | None, expected: ActNN) -> None:
    assert find(name, bits=bits) == expected


def _named(name: str, **settings: Any) -> Callable[[], object]:
    return lambda: find(name, **settings)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ActNN(0.9), "got bits=0.9 for actnn, expected 1 to 8 bits a value on average"),
        (lambda: ActNN(8.1), "got bits=8.1"),
        (lambda: ActNN(float("nan")), "got bits=nan"),
        (lambda: ActNN(True), "got bits=True"),
        (lambda: ActNN("2"), "got bits='2'"),  # type: ignore[arg-type]
        (lambda: ActNN(level="L5"), "got level='L5' for actnn, expected one of L0, L1, L2, L3, L4"),
        (lambda: ActNN(2, "L0"), "got bits=2 for actnn at L0"),
        (lambda: ActNN(2.5, "L1"), "got bits=2.5 for actnn at L1, expected a whole number"),
        (lambda: ActNN(interval=0), "got interval=0"),
        (_named("actnn", block=8), "method 'actnn' has no blocks"),
        (_named("actnn-L9"), "got method 'actnn-L9', expected 'actnn-' and one of L0"),
        (_named("actnn-2", bits=3), "got method 'actnn-2' and bits=3, expected one of them"),
        (_named("actnn-9"), "got bits=9.0"),
        (_named("actnn", bits=0), "got bits=0"),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
