"""What any tool between autograd and its saved tensors can get wrong."""

import dataclasses
import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import division
from division import Use, register_rule
from tests.hazards.live import Live
from tests.models import NETS, WAYS, Copying, Log, convnet, go, grads, images, mlp, same, total
from tests.rules.cases import CASES
from tests.rules.harness import Case, differ, gradients, inputs_of


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def left(context: division.compress) -> dict[str, str]:
    return {f"{r.node}.{r.field}": r.left for r in context.report.records}


def test_every_rule_holds_at_the_moment_a_node_is_made() -> None:
    """An op may save a tensor first and fill it later, as RReLU does with its noise: none of those has a rule."""
    wrong, met = [], set()
    for case in CASES:
        inputs = inputs_of(case, torch.float32, "contiguous", special=False)

        def op(*operands: Tensor, case: Case = case, inputs: list[Tensor] = inputs) -> Tensor:
            # Results of an op are coded, leaves are weights.
            return case.op(*(x + 0 if x.requires_grad else x for x in inputs))

        moved = dataclasses.replace(case, op=op)
        expected, _ = gradients(moved, inputs, None)
        torch.default_generator.manual_seed(1)
        with division.compress(Copying(), inputs=True) as context:
            output = op()
        weight = torch.randn(output.shape, dtype=torch.float64).to(output.dtype)
        got = torch.autograd.grad(output, [x for x in inputs if x.requires_grad], weight)
        wrong += [f"{case.name}: {difference}" for difference in differ(got, expected)]
        met |= {(r.node, r.field) for r in context.report.records if not r.left} & set(case.uses)
    assert wrong == []
    assert len(met) > 0.8 * len({key for case in CASES for key in case.uses})


class Twice(torch.autograd.Function):
    """Reads each of the two it saved in a statement of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, again = ctx.saved_tensors[0], ctx.saved_tensors[0]
        assert torch.equal(x, again)
        y, other = ctx.saved_tensors[1], ctx.saved_tensors[1]
        assert torch.equal(y, other)
        return grad * y, grad * x


@pytest.mark.parametrize("method", ["division", "fixed-2", Copying()], ids=str)
def test_every_reading_decodes_anew_to_the_same_bits(method: Any) -> None:
    log = Log(division.methods.find(method) if isinstance(method, str) else method)
    x, y = leaf(64, 64), leaf(64, 64)
    with register_rule("TwiceBackward", 0, Use.LINEAR), register_rule("TwiceBackward", 1, Use.LINEAR):
        with division.compress(log):
            z = Twice.apply(x + 0, y + 0) + 0
        z.sum().backward()
    assert log.decoded == 8  # four readings of `saved_tensors`, each of both
    if isinstance(method, Copying):
        assert same([x.grad, y.grad], [y.detach(), x.detach()])
    assert log.alive == 0


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_a_function_that_reads_again_and_again_inside_a_checkpoint(reentrant: bool) -> None:
    layer = nn.Linear(16, 16)

    def block(h: Tensor) -> Tensor:
        return Twice.apply(layer(h), h).tanh()  # type: ignore[no-any-return]

    def run(context: Any) -> Any:
        x = torch.ones(4, 16, requires_grad=True)
        layer.zero_grad()
        with context:
            loss = (checkpoint(block, x * 2, use_reentrant=reentrant) + 0).square().sum()
        try:
            loss.backward()
        except RuntimeError as error:  # of a checkpoint that may be read once: torch's own, and the same with us
            return type(error).__name__
        return [x.grad, grads(layer)]

    with register_rule("TwiceBackward", 0, Use.LINEAR), register_rule("TwiceBackward", 1, Use.LINEAR):
        assert same(run(nullcontext()), run(division.compress(Copying())))


LEAVING = """
import sys, torch, division
from contextlib import ExitStack
from division import nodes
from tests.models import Copy, Copying, mlp, images

nodes.watch.__init__.__defaults__ = (sys.argv[1] == "walk",)
model, x = mlp(), images(4, 64)
plain = torch.autograd.grad(model(x).sum(), list(model.parameters()))

def step(leave, inside_unpack):
    stack = ExitStack()
    decode = Copy.decode
    if inside_unpack:
        def leaving(self, packed):
            leave(stack)
            return decode(self, packed)
        Copy.decode = leaving
    stack.enter_context(division.compress(Copying()))
    stack.callback(division.attach(model, Copying()).remove)
    h = model(x)
    if not inside_unpack:
        h.register_hook(lambda g: leave(stack))
    try:
        got = torch.autograd.grad(h.sum(), list(model.parameters()))
    finally:
        Copy.decode = decode
    assert all(map(torch.equal, got, plain))
    stack.close()
    with division.compress():
        pass
    assert nodes.current() is None and not torch.overrides._get_current_function_mode_stack()

for inside_unpack in (False, True):
    step(ExitStack.close, inside_unpack)
    step(lambda stack: division.compress().__enter__().__exit__(None, None, None), inside_unpack)
print("right")
"""


def test_leaving_every_context_while_backward_runs_or_unpacks(way: str) -> None:
    """In a process of its own: hooks that are taken off while they run have brought it down."""
    done = subprocess.run([sys.executable, "-c", LEAVING, way], capture_output=True, text=True, check=False, cwd=".")
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr


class Scaled(Tensor):
    """A tensor around another, with an attribute of its own."""

    under: Tensor
    scale: float

    @staticmethod
    def __new__(cls: type["Scaled"], inner: Tensor, scale: float) -> "Scaled":
        made: Scaled = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, requires_grad=inner.requires_grad
        )
        made.under, made.scale = inner.detach(), scale
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        scales = [x.scale for x in args if isinstance(x, Scaled)]
        plain = [x.under if isinstance(x, Scaled) else x for x in args]
        out = func(*plain, **(kwargs or {}))
        return Scaled(out, max(scales)) if isinstance(out, Tensor) else out


def test_a_saved_subclass_comes_back_as_the_object_it_is() -> None:
    met: list[Any] = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            met.extend(ctx.saved_tensors)
            return grad * 2

    x = Scaled(torch.randn(8, 8, requires_grad=True), 3.0).requires_grad_()
    with register_rule("KeepsBackward", 0, Use.LINEAR), division.compress(Copying(), inputs=True) as context:
        loss = (Keeps.apply(x + x) * x).sum()
    reasons = {r.left for r in context.report.records if r.node in {"KeepsBackward", "MulBackward0"} and r.shape}
    assert reasons == {"a Scaled, not a plain tensor"}
    loss.backward()
    assert [(type(t), t.scale) for t in met] == [(Scaled, 3.0)]


CHECKPOINT_ASKS = "respect_saved_tensors_hooks" in inspect.signature(checkpoint).parameters


@pytest.mark.parametrize("respect", [None, *([True, False] if CHECKPOINT_ASKS else [])])
def test_selective_checkpoints_whatever_they_do_about_hooks(respect: bool | None) -> None:
    def save_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    model = mlp()
    settings: dict[str, Any] = {} if respect is None else {"respect_saved_tensors_hooks": respect}

    def run(context: Any) -> Any:
        model.zero_grad()
        with context, warnings.catch_warnings(action="error"):
            h = images(4, 64).requires_grad_() * 1
            h = checkpoint(
                model, h, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, save_products), **settings,
            )  # fmt: skip
            loss = (h + 0).tanh().sum()
        loss.backward()
        return grads(model)

    context = division.compress(Copying())
    assert same(run(nullcontext()), run(context))
    assert [r.node for r in context.report.records if not r.left] == ["TanhBackward0"]


class Modulated(nn.Module):
    """A convolution with weights of its own for each sample, done as one grouped convolution."""

    def __init__(self, inputs: int, outputs: int, style: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3) / 6)
        self.style = nn.Linear(style, inputs)

    def forward(self, x: Tensor, s: Tensor) -> Tensor:
        weight = self.weight[None] * (self.style(s) + 1)[:, None, :, None, None]
        weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
        n, _, height, width = x.shape
        x = x.transpose(2, 3).reshape(1, -1, width, height).transpose(2, 3)
        x = F.conv2d(x, weight.flatten(0, 1), padding=1, groups=n)
        return F.leaky_relu(x.view(n, -1, height, width), 0.2, inplace=True)


@pytest.mark.parametrize("method", ["lossless", "division", Copying()], ids=str)
def test_modulated_convolutions_with_a_gradient_penalty(method: Any) -> None:
    torch.manual_seed(0)
    first, second = Modulated(3, 8, 4), Modulated(8, 5, 4)
    layers, s, x = nn.ModuleList([first, second]), torch.randn(2, 4), images(2, 3, 9, 8).requires_grad_()
    weights = {p.untyped_storage().data_ptr() for p in layers.parameters()}
    coded: set[int] = set()

    class See(Log):
        def codec(self, reading: Any, saved: Any) -> Any:
            coded.add(saved.tensor.untyped_storage().data_ptr())
            return super().codec(reading, saved)

    def run(context: Any) -> Any:
        layers.zero_grad()
        with context:
            y = second(first(x, s), s)
            (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            loss = total(y) + g.square().sum()
        loss.backward()
        return grads(layers)

    plain = run(nullcontext())
    ours = run(division.compress(See(division.methods.find(method) if isinstance(method, str) else method)))
    assert same(plain, ours) or method == "division"
    assert all(torch.isfinite(g).all() for g in ours.values())
    assert coded
    assert not coded & weights


@pytest.mark.usefixtures("no_gc")
def test_passing_everything_through_takes_no_more_memory_at_any_time() -> None:
    model = convnet()

    def peak(context: Any) -> int:
        with Live() as live:
            for _ in range(3):
                model.zero_grad()
                with context:
                    loss = total(model(images()))
                loss.backward()
                del loss
        return live.peak

    plain = peak(nullcontext())
    assert peak(division.compress("none")) == plain
    with division.compress("none"), division.disabled():
        assert peak(nullcontext()) == plain
    assert peak(division.compress("division")) < plain


class Saves(torch.autograd.Function):
    """Saves its input, its output and a number between, which double backward takes for a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        between = x.exp()
        y = between * x
        ctx.save_for_backward(x, between, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, between, y = ctx.saved_tensors
        return grad * (between + y / x * x)


class Square(torch.autograd.Function):
    """Saves input and output, and gives right derivatives of any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return grad * (x.exp() + y)


def test_higher_derivatives_of_functions_that_save_what_they_made() -> None:
    x = (torch.rand(6, dtype=torch.float64) + 0.5).requires_grad_()

    def run(function: Any, context: Any) -> Any:
        with context:
            y = function.apply(x * 1.5).sum() * 1
            (first,) = torch.autograd.grad(y, x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        third = torch.autograd.grad(second.sum(), x)[0]
        return [first.detach(), second.detach(), third]

    def checked(x: Tensor) -> Tensor:
        with division.compress(Copying()):
            return Square.apply(x * 1.5) * 1  # type: ignore[no-any-return]

    with ExitStack() as rules:
        for name, count in (("SavesBackward", 3), ("SquareBackward", 2)):
            for field in range(count):
                rules.enter_context(register_rule(name, field, Use.SMOOTH))
        for function in (Saves, Square):
            context = division.compress(Copying())
            assert same(run(function, nullcontext()), run(function, context))
            assert not any(r.left for r in context.report.records if r.node == f"{function.__name__}Backward")
        assert torch.autograd.gradcheck(checked, (x,))
        assert torch.autograd.gradgradcheck(checked, (x,))


def test_recurrent_layers_run_backward_twice_with_their_bytes_untouched() -> None:
    build, batch = NETS["recurrent"]
    torch.manual_seed(0)
    model, x = build(), batch()

    def run(context: Any) -> Any:
        torch.manual_seed(1)
        with context:
            loss = total(model(x * 1))
        return [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for _ in range(2)]

    plain, context = run(nullcontext()), division.compress(Copying(), inputs=True)
    assert same(plain[0], plain[1])
    assert same(run(context), plain)
    spaces = [r for r in context.report.records if r.dtype == torch.uint8 and r.shape and r.raw_bytes]
    assert all(r.left == "no rule" for r in spaces)


def _parameter(h: Tensor) -> tuple[Tensor, Tensor]:
    weight = nn.Parameter(torch.randn(8, 8))
    return F.linear(h, weight), weight


def _ids(h: Tensor) -> tuple[Tensor, Tensor]:
    ids = torch.zeros(8, dtype=torch.long)
    return F.embedding(ids, h), ids


def _batch(h: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 8)
    return h * x, x


def _small(h: Tensor) -> tuple[Tensor, Tensor]:
    one = h[:1, :1] * 2
    return one * one, one


def _divisor(h: Tensor) -> tuple[Tensor, Tensor]:
    divisor = h + 10
    return h / divisor, divisor


def _overlapping(h: Tensor) -> tuple[Tensor, Tensor]:
    base = h * 2
    return leaf(8, 8) * base[:1].expand(8, 8), base


def _state(h: Tensor) -> tuple[Tensor, Tensor]:
    norm = nn.BatchNorm1d(8).eval()
    assert norm.running_var is not None
    return norm(h), norm.running_var


UNTOUCHED: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], str]] = {
    "a parameter": (_parameter, "weight"),
    "ids": (_ids, "made by no node"),
    "the batch": (_batch, "made by no node"),
    "a small one": (_small, "no smaller"),
    "a divisor": (_divisor, "no rule"),
    "an overlapping one": (_overlapping, "overlapping"),
    "state": (_state, "state"),
}


@pytest.mark.parametrize("kind", UNTOUCHED)
def test_what_is_passed_through_keeps_the_check_for_changes_in_place(kind: str) -> None:
    call, reason = UNTOUCHED[kind]
    for context in (nullcontext(), division.compress("division")):
        h = leaf(8, 8) * 1
        with context as ours:
            y, saved = call(h)
        if ours is not None:
            assert any(reason in why for why in left(ours).values()), left(ours)
        with torch.no_grad():
            saved.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
