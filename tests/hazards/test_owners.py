"""Whose memory a saved tensor is: weights that come and go, devices, adapters that rest, views, what others keep."""

import ast
import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import division
from division import Use, register_rule
from tests.hazards.live import Live
from tests.models import WAYS, Copying, Log, convnet, go, grads, images, mlp, same, total

SOURCES = sorted((Path(__file__).parents[2] / "src" / "division").rglob("*.py"))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def test_tensors_of_several_devices_come_back_to_their_own(way: str) -> None:
    met: list[str] = []

    class Mixed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            ctx.save_for_backward(x, y)
            return x * 2, y * 2

        @staticmethod
        def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            met.extend(t.device.type for t in ctx.saved_tensors)
            return a * ctx.saved_tensors[0], b * ctx.saved_tensors[1]

    here, there = leaf(8, 8), torch.randn(8, 8, device="meta", requires_grad=True)
    with register_rule("MixedBackward", 0, Use.LINEAR), register_rule("MixedBackward", 1, Use.LINEAR):
        with division.compress(Copying()) as context:
            x, y = here + 0, there + 0
            y, x = Mixed.apply(y, x)
            x, y = Mixed.apply(x, y)
            torch.autograd.backward([x.sum(), y.sum()])
        assert sum(not r.left for r in context.report.records) == 4
    assert met == ["cpu", "meta", "meta", "cpu"]
    assert here.grad is not None
    assert here.grad.device.type == "cpu"


# Weights that aren't there between forward and backward.

LAYERS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "linear": (F.linear, (4, 8), (6, 8)),
    "transposed": (lambda x, w: x @ w.t(), (4, 8), (6, 8)),
    "convolution": (F.conv2d, (2, 3, 6, 6), (4, 3, 3, 3)),
    "products": (lambda x, w: x * w, (4, 8), (8,)),
}


@pytest.mark.parametrize("how", ["its storage emptied", "its data replaced"])
@pytest.mark.parametrize("layer", LAYERS)
def test_weights_that_are_freed_after_forward_are_read_as_they_are_in_backward(layer: str, how: str, way: str) -> None:
    """As sharded training does: gathered again for backward, here with other values, to see which are read."""
    call, size, shape = LAYERS[layer]
    given = torch.randn(size, generator=torch.Generator().manual_seed(0))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def run(context: Any) -> list[Tensor]:
        x = given.clone().requires_grad_()
        weight = nn.Parameter(values.clone())
        nbytes = weight.untyped_storage().nbytes()
        with context:
            y = call(x + 0, weight)
        if how == "its data replaced":
            weight.data = torch.empty(0)
            weight.data = 3 * values
        else:
            weight.untyped_storage().resize_(0)
            weight.untyped_storage().resize_(nbytes)
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
                weight.copy_(3 * values)
        y.sum().backward()
        assert x.grad is not None
        assert weight.grad is not None
        return [x.grad, weight.grad]

    plain = run(nullcontext())
    x = given.clone().requires_grad_()
    expected = torch.autograd.grad(call(x, 3 * values).sum(), x)[0]
    # What is saved of a transposed weight is a view, which keeps the memory it was made of, without us too.
    kept = how == "its data replaced" and layer in {"linear", "transposed"}
    assert torch.allclose(plain[0], expected / 3 if kept else expected)
    assert same(run(division.compress(Copying(), inputs=True)), plain)
    assert same(run(division.compress("division", inputs=True))[0], plain[0])


@pytest.mark.parametrize("method", ["division", "fixed-2", "low-frequency"])
@pytest.mark.parametrize("layer", ["linear", "convolution", "transposed convolution", "batched product"])
def test_what_depends_on_weights_alone_is_exact(layer: str, method: str, way: str) -> None:
    """The input's gradient of a linear layer reads the weight and nothing else."""
    model: nn.Module = {
        "linear": nn.Linear(64, 32), "convolution": nn.Conv2d(8, 8, 3),
        "transposed convolution": nn.ConvTranspose2d(8, 8, 3), "batched product": nn.Module(),
    }[layer]  # fmt: skip
    weight = nn.Parameter(torch.randn(2, 64, 16))
    x = (images(2, 8, 16, 16) if "convolution" in layer else images(2, 16, 64)).requires_grad_()

    def run(context: Any) -> Tensor:
        with context:
            h = x * 1
            y = h @ weight if layer == "batched product" else model(h)
        return torch.autograd.grad(total(y), x)[0]

    plain = run(nullcontext())
    assert same(run(division.compress(method, inputs=True)), plain)
    with torch.autocast("cpu", torch.bfloat16):
        plain = run(nullcontext())
        assert same(run(division.compress(method, inputs=True)), plain)


def test_weights_that_moved_since_are_weights(way: str) -> None:
    """Cast, replaced by an optimizer or by ``load_state_dict``: no address is remembered."""
    model = mlp()
    met: list[int] = []

    class See(Copying):
        def codec(self, reading: Any, saved: Any) -> Any:
            met.append(saved.tensor.untyped_storage().data_ptr())
            return super().codec(reading, saved)

    def check(x: Tensor) -> None:
        met.clear()
        with context:
            model(x).sum().backward()
        assert met
        assert not {p.untyped_storage().data_ptr() for p in model.parameters()} & set(met)

    for context in (division.compress(See(), inputs=True), division.attach(model, See(), inputs=True).step()):
        if not isinstance(context, division.compress):
            check(images(4, 64).double())
            continue
        check(images(4, 64))
        model.double()
        check(images(4, 64).double())
        for p in model.parameters():
            p.data = p.data.clone()
        check(images(4, 64).double())
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
        check(images(4, 64).double())


def test_weights_unpacked_anew_for_each_forward_are_never_coded(way: str) -> None:
    codes, table = torch.randint(0, 16, (64, 64)), torch.randn(16)
    x = leaf(4, 64)
    with division.compress("division") as context:
        with torch.no_grad():
            weight = table[codes]
        y = F.linear(x + 0, weight)
    kept = {f"{r.node}.{r.field}": r.left for r in context.report.records}
    assert kept == {"MmBackward0.mat2": "made by no node: its owner still holds it"}
    assert same(torch.autograd.grad(y.sum(), x)[0], torch.ones(4, 64) @ weight)


# Adapters.


@pytest.mark.parametrize("method", ["lossless", "division", Copying()], ids=str)
def test_an_adapter_that_rests_in_one_of_four_batches(method: Any, way: str) -> None:
    """What it saved there is never read, and freed with the graph."""

    def run(method: Any) -> tuple[dict[str, Tensor | None], Log]:
        torch.manual_seed(0)
        base = nn.ModuleList(nn.Linear(32, 32).requires_grad_(requires_grad=False) for _ in range(3))
        adapters = nn.ModuleList(nn.Sequential(nn.Linear(32, 4), nn.GELU(), nn.Linear(4, 32)) for _ in range(3))
        log = Log(division.methods.find(method) if isinstance(method, str) else method)
        for i in range(4):
            with division.compress(log) if method != "none" else nullcontext():
                h = images(8, 32) + i
                for j, (layer, adapter) in enumerate(zip(base, adapters, strict=True)):
                    added = adapter(h)
                    h = layer(h).relu() + (added.detach() if (i, j) == (2, 1) else added)
                loss = h.square().mean()
            loss.backward()
            del loss, h, added
        return grads(adapters), log

    plain, ours = run("none")[0], run(method)
    assert same(ours[0], plain) or method == "division"
    assert all(torch.isfinite(g).all() for g in ours[0].values() if g is not None)
    assert ours[1].codes
    assert ours[1].alive == 0


@pytest.mark.parametrize("method", ["division", "fixed-1", "fixed-2", "high-frequency"])
def test_adapters_that_begin_at_zero_have_finite_gradients(method: str, way: str) -> None:
    """The second matrix is zero, and so are rows of what is saved: no range is divided by."""
    torch.manual_seed(0)
    base = nn.Linear(64, 64).requires_grad_(requires_grad=False)
    down, up = nn.Linear(64, 8, bias=False), nn.Linear(8, 64, bias=False)
    nn.init.zeros_(up.weight)
    x = images(6, 64)
    x[2:4] = 0

    def run(context: Any, zero: bool) -> list[Tensor]:
        with context:
            h = (x * 0 if zero else x) * down.weight[0, 0].detach() + 0 * down.weight.sum()
            y = base(h) + up(down(h).bfloat16().float())
        return list(torch.autograd.grad(y.square().sum(), [down.weight, up.weight]))

    plain, ours = run(nullcontext(), zero=False), run(division.compress(method), zero=False)
    assert all(torch.isfinite(g).all() for g in ours)
    assert same(ours[0] == 0, plain[0] == 0)
    assert same(run(nullcontext(), zero=True)[1].abs(), run(division.compress(method), zero=True)[1].abs())


# Views, and what is still at work.


def test_a_gradient_that_is_a_view_of_what_was_unpacked_outlives_it(way: str) -> None:
    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sum()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return ctx.saved_tensors[0].t()[:, :8]  # type: ignore[no-any-return]

    log = Log(Copying())
    with register_rule("TurnedBackward", 0, Use.LINEAR):
        for i in range(200):
            x = torch.full((8, 8), float(i)).tril_().requires_grad_()
            with division.compress(log):
                y = Turned.apply(x * 1) + 0
            y.backward()
            del y
            noise = [torch.full((8, 8), -1.0) for _ in range(4)]
            assert x.grad is not None
            assert torch.equal(x.grad, x.detach().t())
            assert all(bool((each == -1).all()) for each in noise)
    assert len(log.codes) == 200
    assert log.alive == 0


def forbidden(source: str) -> list[str]:
    """Streams of a device's own, and ends of the process, in a source."""
    names = {"Stream", "ExternalStream", "set_stream", "record_stream", "_exit", "abort", "exit", "quit"}
    found = []
    for node in ast.walk(ast.parse(source)):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in names:
            found.append(f"line {getattr(node, 'lineno', 0)}: {name}")
    return sorted(found)


def test_work_stays_on_the_callers_stream_and_errors_are_raised() -> None:
    """Asynchronous copies, streams remembered from elsewhere, ``exit`` on an error: none but where codes leave a GPU."""
    assert len(SOURCES) > 50
    meant = {"cli.py", "__main__.py", "store.py"}
    assert {p.name: found for p in SOURCES if (found := forbidden(p.read_text())) and p.name not in meant} == {}


def test_streams_and_exits_are_seen() -> None:
    source = "import sys, torch\ns = torch.cuda.Stream()\nx.record_stream(s)\nsys.exit(1)\nquit()\n"
    assert forbidden(source) == ["line 2: Stream", "line 3: record_stream", "line 4: exit", "line 5: quit"]


# What it comes to.


@pytest.mark.usefixtures("no_gc")
def test_memory_falls_by_what_was_predicted(way: str) -> None:
    model, x = convnet(16), images(8, 3, 32, 32)

    def kept(context: Any) -> int:
        with Live() as live:
            with context:
                loss = model(x).square().mean()
            assert loss.grad_fn is not None
            return live.bytes

    prediction = division.predict(model, x)
    fallen = kept(nullcontext()) - kept(division.compress("division"))
    assert fallen >= 0.9 * (prediction.normal_bytes - prediction.packed_bytes) > 0
