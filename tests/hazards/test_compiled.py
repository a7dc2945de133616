"""Beside ``torch.compile``: what a compiled region saves stays as it is, its graphs are those without us, results too."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

import division
from division import nodes
from division.codecs.codec import Codec
from division.methods import Lossless
from tests.models import WAYS, Copying, Log, go, grads, images, same

dynamo = pytest.importorskip("torch._dynamo")
testing = pytest.importorskip("torch._dynamo.testing")
#: "eager" runs the graph as plain PyTorch, op by op; every other backend goes through AOTAutograd, as this one does.
BACKENDS = ["eager", "aot_eager"]
# Torch's own, of what it compiles: that there are global hooks, that it looks at `grad` of what is no leaf.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled before, and nothing left after."""
    dynamo.reset()
    yield
    dynamo.reset()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(32, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(32, 8))


def batch() -> Tensor:
    return images(8, 32)


def train(model: nn.Module, call: Callable[[Tensor], Tensor], around: AbstractContextManager[Any]) -> list[Any]:
    """Loss and gradients of a step."""
    model.zero_grad()
    torch.manual_seed(1)
    with around:
        y = call(batch())
        loss = y.square().sum()
    loss.backward()
    return [loss.detach(), grads(model)]


def coded(report: Any) -> list[str]:
    return [r.node for r in report.records if not r.left]


def attached(model: nn.Module, method: Any) -> tuple[Callable[[Tensor], Tensor], Any]:
    handle = division.attach(model, method)
    return model, handle


def entered_inside(model: nn.Module, method: Any) -> tuple[Callable[[Tensor], Tensor], Any]:
    context = division.compress(method)

    def call(x: Tensor) -> Tensor:
        with context:
            return model(x)  # type: ignore[no-any-return]

    return call, context


def disabled_inside(model: nn.Module, method: Any) -> tuple[Callable[[Tensor], Tensor], Any]:
    return division.disabled()(model.forward), None


PLACES = {"attached": attached, "inside": entered_inside, "disabled inside": disabled_inside}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_entered_in_a_compiled_region_is_not_there(place: str, way: str) -> None:
    """One graph without a break, on which nothing of ours is, over many steps."""
    backend = "aot_eager"
    model = net()
    plain = train(model, torch.compile(model, backend=backend), nullcontext())
    dynamo.reset()
    counter = testing.CompileCounterWithBackend(backend)
    call, ours = PLACES[place](model, Copying())
    whole = nodes.HAS_HOOK or place == "attached"  # older torch compiles no context manager of anybody's
    compiled = torch.compile(call, backend=counter, fullgraph=whole)
    for _ in range(20):
        assert same(train(model, compiled, nullcontext()), plain)
    assert counter.frame_count == 1 or not whole
    if ours is not None:
        assert coded(ours.report) == [] or not whole
    if place == "attached":
        ours.remove()


@pytest.mark.parametrize("inside", ["context", "step of a handle"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_around_a_compiled_region(backend: str, inside: str, way: str) -> None:
    """One graph over many steps; exact codes change no bit. What runs outside the graph is coded as ever."""
    model = net()
    plain = train(model, torch.compile(model, backend=backend), nullcontext())
    for method in (Lossless(), Copying()):
        dynamo.reset()
        counter = testing.CompileCounterWithBackend(backend)
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        handle = division.attach(model, method) if inside != "context" else None
        for _ in range(20):
            context = division.compress(method) if handle is None else handle.step()
            assert same(train(model, compiled, context), plain)
        assert counter.frame_count == 1
        report = context.report if handle is None else handle.report  # type: ignore[union-attr]
        if backend == "aot_eager":
            assert coded(report) == (["PowBackward0"] if isinstance(method, Copying) else [])
            assert "CompiledFunctionBackward" in {r.node for r in report.records}
        else:
            expected = ["MulBackward0"] if isinstance(method, Lossless) else ["ReluBackward0", "GeluBackward0"]
            assert set(expected) <= set(coded(report))
        if handle is not None:
            handle.remove()


@pytest.mark.slow
def test_around_a_region_compiled_by_the_default_backend(way: str) -> None:
    model = net()
    model[5] = nn.Identity()
    compiled = torch.compile(model, fullgraph=True)
    plain = train(model, compiled, nullcontext())
    for method in (Lossless(), Copying(), "division"):
        context = division.compress(method)
        ours = train(model, compiled, context)
        if method != "division":
            assert same(ours, plain)
        assert set(coded(context.report)) <= {"PowBackward0"}


def test_graph_breaks_with_a_context_around_inside_and_attached(way: str) -> None:
    """What lies between the graphs runs as plain PyTorch, our own code too: none of it is compiled."""
    backend = "eager"
    model = net()[:3]

    def broken(x: Tensor) -> Tensor:
        h = model[0](x)
        dynamo.graph_break()
        loss = (model[2](model[1](h)) ** 2).sum()
        loss.backward()
        return loss.detach()  # type: ignore[no-any-return]

    def run(call: Callable[[Tensor], Tensor], around: AbstractContextManager[Any]) -> list[Any]:
        model.zero_grad()
        torch.manual_seed(1)
        with around:
            return [call(batch()), grads(model)]

    plain = run(torch.compile(broken, backend=backend), nullcontext())
    context = division.compress(Copying())

    def inside(x: Tensor) -> Tensor:
        with context:
            return broken(x)

    for call, around in ((broken, context), (inside, nullcontext())):
        dynamo.reset()
        compiled = torch.compile(call, backend=backend)
        for _ in range(2):
            assert same(run(compiled, around), plain)
    dynamo.reset()
    with division.attach(model, Copying()):
        compiled = torch.compile(broken, backend=backend)
        for _ in range(2):
            assert same(run(compiled, nullcontext()), plain)
    # And all is closed again.
    h = (batch().requires_grad_() + 0).relu()
    assert h.grad_fn._raw_saved_result.unpack_hook is None  # type: ignore[union-attr]


class Real(Log):
    """Notes as its base does, and that it met no fake tensor."""

    def codec(self, reading: Any, saved: Any) -> Codec | None:
        assert type(saved.tensor) is Tensor
        return super().codec(reading, saved)


def test_compiling_codes_nothing_and_draws_no_seed(way: str) -> None:
    """The first call, which compiles, meets the same tensors and seeds as the same call without a compiler."""
    model = net()
    logs = {}
    for name, call in (("plain", model), ("compiled", torch.compile(model, backend="eager"))):
        logs[name] = Real(division.methods.find("division"))
        context = division.compress(logs[name], seed=3)
        counts = []
        for _ in range(3):
            before = len(logs[name].codes)
            train(model, call, context)
            counts.append((len(logs[name].codes) - before, context.report.packed_bytes, logs[name].decoded))
            logs[name].decoded = 0
        assert counts == counts[:1] * 3
    assert logs["plain"].seeds == logs["compiled"].seeds


def test_compiled_autograd_reads_each_code_once(way: str) -> None:
    model, log = net(), Log(Copying())
    model[5] = nn.Identity()
    plain = train(model, model, nullcontext())
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    model.zero_grad()
    with division.compress(log):
        loss = model(batch()).square().sum()
    count = len(log.codes)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
    assert same(grads(model), plain[1])
    assert len(log.codes) == count > 3
    assert log.decoded == count
    del loss
    gc.collect()
    assert log.alive == 0


class Hidden(nn.Module):
    """Hands out what it also saves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.first(x).relu()
        g = h.sigmoid()
        return self.second(g), h, g


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("method", ["division", "lossless"])
def test_saved_tensors_that_are_outputs_too_stay_exact(method: str, backend: str | None, way: str) -> None:
    model = Hidden()
    call = model if backend is None else torch.compile(model, backend=backend)
    plain = [y.detach() for y in call(batch())]
    with division.compress(method):
        outputs = call(batch())
        kept = [y.detach().clone() for y in outputs]
        sum(y.square().sum() for y in outputs).backward()  # type: ignore[union-attr]
    assert same(kept, plain)
    assert same([y.detach() for y in outputs], plain)
    ours = grads(model)
    assert all(torch.isfinite(g).all() and g.any() for g in ours.values() if g is not None)
    model.zero_grad()
    sum(y.square().sum() for y in call(batch())).backward()  # type: ignore[union-attr]
    if method == "lossless":
        assert same(ours, grads(model))


def saved_by_regions(y: Tensor) -> list[tuple[torch.Size, torch.dtype]]:
    found, pending, seen = [], [y.grad_fn], set()
    while pending:
        node: Any = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if "CompiledFunction" in node.name():
            found += [(x.shape, x.dtype) for x in node.saved_tensors if isinstance(x, Tensor)]
        pending += [parent for parent, _ in node.next_functions]
    return found


def test_a_compiled_region_saves_what_it_saves_without_us(way: str) -> None:
    """No copy of a weight in another dtype is kept on top, made inside the region or by autocast."""
    weight = nn.Parameter(torch.randn(32, 32))
    layer = nn.Linear(32, 32)

    def call(x: Tensor) -> Tensor:
        h = (x.bfloat16() @ weight.bfloat16()).float()
        with torch.autocast("cpu", torch.bfloat16):
            return layer(h.relu()).float().tanh()

    compiled = torch.compile(call, backend="aot_eager")
    plain = saved_by_regions(compiled(batch()))
    with division.compress(Copying(), inputs=True):
        ours = saved_by_regions(compiled(batch()))
    assert plain
    assert ours == plain


def test_transposed_convolutions_in_channels_last_compile(way: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.ConvTranspose2d(4, 8, 3, 2, 1, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 3), nn.Sigmoid(),
        nn.ConvTranspose2d(1, 4, 1),
    ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fmt: skip
    x = images(2, 4, 6, 6).to(memory_format=torch.channels_last).requires_grad_()

    def run(call: Any, around: AbstractContextManager[Any]) -> list[Any]:
        model.zero_grad()
        with around:
            loss = (call(x * 1.5) ** 2).sum()
        return [torch.autograd.grad(loss, [x, *model.parameters()])]

    for backend in BACKENDS:
        compiled = torch.compile(model, backend=backend)
        plain = run(compiled, nullcontext())
        assert same(run(compiled, division.compress(Copying())), plain)
        assert all(torch.isfinite(g).all() for g in run(compiled, division.compress("division"))[0])


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_views_that_are_saved_and_never_run_backward_pile_up_nowhere(backend: str | None, way: str) -> None:
    class SavesAView(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x * 2
            ctx.save_for_backward(y[0].unsqueeze(-1))
            return y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2 + 0 * ctx.saved_tensors[0].sum()

    x = images(8, 32).requires_grad_()

    def call(x: Tensor) -> Tensor:
        h = (x + 0)[0].unsqueeze(-1) * x.mT
        return SavesAView.apply(h) if backend is None else h.tanh()  # type: ignore[no-any-return]

    def alive(around: AbstractContextManager[Any]) -> list[bool]:
        refs = []
        gc.collect()
        for _ in range(40):
            with around:
                y = compiled(x)
                z = y[0].unsqueeze(-1) * y[1]
            refs += [StorageWeakRef(t.untyped_storage()) for t in (y, z)]
            del y, z
        gc.collect()
        return [not ref.expired() for ref in refs]

    compiled = call if backend is None else torch.compile(call, backend=backend)
    plain = alive(nullcontext())
    with division.register_rule("SavesAViewBackward", 0, division.Use.LINEAR):
        assert alive(division.compress(Copying())) == plain
    # PyTorch itself loses every output of a Function of which the Function saved a view.
    assert not any(plain) or backend is None


class Doubled(TorchFunctionMode):
    """Somebody else's mode that swaps an op."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = func(*args, **(kwargs or {}))
        return y * 2 if func is F.relu else y


@pytest.mark.parametrize("inside", [True, False], ids=["mode inside", "mode outside"])
def test_other_function_modes_and_ours_compile_together(inside: bool, way: str) -> None:
    backend = "eager"
    model = net()

    def body(x: Tensor) -> Tensor:
        return model[3:](F.relu(model[:1](x)))  # type: ignore[no-any-return]

    def with_mode(x: Tensor) -> Tensor:
        with Doubled():
            return body(x)

    call = with_mode if inside else body
    around: Callable[[], AbstractContextManager[Any]] = nullcontext if inside else Doubled
    compiled = torch.compile(call, backend=backend, fullgraph=True)
    with around():
        # Not of the model as it is: under "eager", torch has a mode around the region see every call twice.
        plain = train(model, compiled, nullcontext())
        assert same(train(model, compiled, division.compress("lossless")), plain)
    with division.compress("lossless"), around():
        assert same(train(model, compiled, nullcontext()), plain)
    assert not inside or same(train(model, call, nullcontext()), plain)
