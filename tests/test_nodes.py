"""Which nodes are seen and which are not ours to touch, on both ways into autograd."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import division
from division import nodes
from division.methods import Division
from tests.models import WAYS, Copying, Cube, Log, convnet, go, grads, images, mlp, same, steps, total


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def coded(context: Any) -> list[str]:
    return [f"{r.node}.{r.field}" for r in context.report.records if not r.left]


def names(watched: Callable[[], Any]) -> list[str]:
    met: list[str] = []
    with nodes.watch(lambda node: met.append(node.name())):
        watched()
    return met


def nothing_left_open() -> bool:
    return nodes.current() is None and not torch.overrides._get_current_function_mode_stack()


# What is seen.


def test_nodes_are_seen_in_the_order_they_are_made() -> None:
    x = leaf(4, 4)

    def work() -> None:
        y = (x * x).relu()
        (y @ x).sum()

    met = [name for name in names(work) if "Accumulate" not in name]
    assert met == ["MulBackward0", "ReluBackward0", "MmBackward0", "SumBackward0"]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.multi_head_attention_forward(
            x, x, x, 4, 2, torch.ones(12, 4), torch.ones(12), None, None, False, 0.0, torch.ones(4, 4), torch.ones(4)
        ),
        lambda x: x.relu_(),
        lambda x: {"a": x.sigmoid()}["a"],
        lambda x: torch.exp(x, out=None),
        lambda x: x.__setitem__(0, x[1] * 2),
        lambda x: F.max_pool2d(x[None], 2, return_indices=True),
        lambda x: torch.einsum("abc,abd->cd", x, x),
        torch.linalg.svd,
        lambda x: x.where(x > 0, 0),
        lambda x: F.cross_entropy(x.flatten(0, 1), torch.zeros(16, dtype=torch.long)),
        nn.LSTM(4, 4),
    ],
)
def test_both_ways_see_what_is_saved(call: Callable[[Tensor], Any], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    for each in WAYS:
        go(each, monkeypatch)
        torch.manual_seed(0)
        with division.compress("none") as context:
            call(leaf(4, 4, 4) + 0)
        saved.append(sorted((r.node, r.field, r.shape) for r in context.report.records))
    assert saved[0]
    assert all(each == saved[0] for each in saved)


def test_a_custom_function_is_seen() -> None:
    assert "CubeBackward" in names(lambda: Cube.apply(leaf(3)) + 1)


def test_nothing_is_seen_outside() -> None:
    met: list[Any] = []
    x = leaf(4)
    y = x * x
    with nodes.watch(met.append):
        pass
    z = y * y
    assert met == []
    with nodes.watch(met.append):
        (z * x).relu()
    assert sorted(node.name() for node in met if node.name() != "struct torch::autograd::AccumulateGrad")[-2:] == [
        "MulBackward0", "ReluBackward0",
    ]  # fmt: skip
    assert len([node for node in met if node.name() == "MulBackward0"]) == 1
    assert nothing_left_open()


def test_a_module_that_returns_what_it_was_given_is_not_walked_into() -> None:
    x = leaf(4, 4)
    before = (x * x).relu()
    with division.compress(Copying()) as context:
        nn.Identity()(before) + before.view(16)[0]
    assert coded(context) == []
    assert before.grad_fn._saved_result is not None  # type: ignore[union-attr]


# Contexts within contexts.


def test_the_inner_of_two_contexts_wins_and_the_outer_goes_on_after_it() -> None:
    x = leaf(64, 64)
    with division.compress(Copying()) as outer:
        a = (x + 0) * x
        with division.compress("fixed-2") as inner:
            b = (a + 0) * x
        c = (b + 0) * x
    assert coded(outer) == ["MulBackward0.self"] * 2
    assert coded(inner) == ["MulBackward0.self"]
    assert [r.codec for r in inner.report.records if r.codec] != [r.codec for r in outer.report.records if r.codec][:1]
    c.sum().backward()
    assert nothing_left_open()


def test_one_context_within_itself_is_one_step() -> None:
    context = division.compress(Copying())
    x = leaf(8, 8)
    with context, context:
        ((x + 0) * x).sum().backward()
    assert context.report.steps == 1
    assert coded(context) == ["MulBackward0.self"]
    assert nothing_left_open()


def test_disabled_leaves_what_is_made_in_it_even_when_it_is_used_after() -> None:
    x = leaf(64, 64)
    with division.compress(Copying()) as context:
        a = (x + 0) * x
        with division.disabled():
            b = (a + 1) * (x + 2)
            c = b.relu()
        d = (c + 0) * (b + 0)
    assert coded(context) == ["MulBackward0.self", "MulBackward0.other", "MulBackward0.self"]
    assert len([r for r in context.report.records if r.node == "ReluBackward0"]) == 0
    d.sum().backward()


def test_disabled_nests_is_reusable_and_may_hold_a_context() -> None:
    x = leaf(8, 8)
    off = division.disabled()
    with off, off:
        (x + 0) * x
        with division.compress(Copying()) as inner:
            a = (x + 0) * x
        b = (a + 0) * x
    with division.compress(Copying()) as outer, off:
        b * x
    assert coded(inner) == ["MulBackward0.self"]
    assert coded(outer) == []
    assert nothing_left_open()


def test_disabled_is_a_decorator_too() -> None:
    x = leaf(8, 8)

    @division.disabled()
    def twice(times: int) -> Tensor:
        """Twice."""
        y = (x + 0) * x
        return y if times == 1 else twice(times - 1) + (y + 0) * x

    class Off:
        @division.disabled()
        def forward(self, y: Tensor) -> Tensor:
            return (y + 0) * x

    with division.compress(Copying()) as context:
        y = twice(3)
        z = Off().forward(y)
        assert context.report.records == []
        loss = ((z + 0) * x).sum()
    assert coded(context) == ["MulBackward0.self"]
    assert twice.__doc__ == "Twice."
    assert nothing_left_open()
    loss.backward()


def test_an_exception_closes_every_context() -> None:
    x = leaf(8, 8)
    context = division.compress("division")
    with pytest.raises(ZeroDivisionError), context, division.disabled(), division.compress(Copying()):
        _ = x / (1 // 0)
    assert nothing_left_open()
    with context:
        y = (x + 0) * x
    assert "MulBackward0.self" in coded(context)
    y.sum().backward()


def test_other_function_modes_and_default_devices_go_along() -> None:
    class Counting(TorchFunctionMode):
        calls: list[str] = []  # noqa: RUF012  (one instance, one test)

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    model, x = convnet(), images()
    with Counting() as mode:
        plain = steps(model, [x], lambda _: nullcontext())
    expected, mode.calls[:] = list(mode.calls), []
    with mode:
        ours = steps(model, [x], lambda _: division.compress("lossless"))
    assert [c for c in mode.calls if c in set(expected)].count("conv2d") == expected.count("conv2d")
    assert same(plain, ours)
    with division.compress("division") as context, torch.device("meta"):
        (leaf(4, 4) + 0).relu()
        h = model(x)
    assert h.device.type == "cpu"
    assert coded(context)
    h.sum().backward()


# Nodes that are not ours.


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_nodes_made_while_a_backward_runs_are_untouched() -> None:
    x = leaf(8, 8, dtype=torch.float64)

    def penalty(context: Any) -> tuple[Tensor, list[str]]:
        with context as c:
            h = (x * 2).tanh() ** 3
            (g,) = torch.autograd.grad(h.sum(), x, create_graph=True)
            made = coded(c) if c else []
            loss = (g * g).sum()
            torch.autograd.backward(loss, inputs=[x], create_graph=True)
            second = x.grad.clone()  # type: ignore[union-attr]
            x.grad = None
        return second, made

    with_ours, before = penalty(context := division.compress(Copying()))
    plain, _ = penalty(nullcontext())
    assert same(with_ours.detach(), plain.detach())
    assert before == ["TanhBackward0.result", "PowBackward0.self"]
    assert coded(context)[2:] == ["MulBackward0.other", "MulBackward0.self"]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("method", ["lossless", Copying()], ids=str)
def test_double_backward_is_exact(inside: bool, method: Any) -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Sigmoid()),
        images(),
    )
    x.requires_grad_()

    def run(context: Any) -> dict[str, Any]:
        model.zero_grad()
        with context:
            y = model(x)
            if inside:
                (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
                loss = g.norm(2, 1).mean() + y.mean()
        if not inside:
            (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            loss = g.norm(2, 1).mean() + y.mean()
        loss.backward()
        return {"g": g.detach(), **grads(model)}

    assert same(run(nullcontext()), run(division.compress(method)))


def test_gradcheck_to_second_order() -> None:
    x, w = leaf(1, 2, 3, 3, dtype=torch.float64), leaf(2, 2, 2, 2, dtype=torch.float64)

    def run(x: Tensor, w: Tensor) -> Tensor:
        with division.compress(Copying()):
            return F.gelu(F.conv2d(x * 1.5, w)).tanh() ** 2

    assert torch.autograd.gradcheck(run, (x, w))
    assert torch.autograd.gradgradcheck(run, (x, w))


def _f(x: Tensor) -> Tensor:
    return (x.tanh() * x).pow(3).sum() + (x.relu() @ x).exp().mean()


TRANSFORMS: dict[str, Callable[[Tensor], Any]] = {
    "grad": torch.func.grad(_f),
    "vjp": lambda x: torch.func.vjp(_f, x)[1](torch.ones((), dtype=x.dtype))[0],
    "grad of grad": torch.func.grad(lambda x: torch.func.grad(_f)(x).sin().sum()),
    "hessian": torch.func.hessian(_f),
    "jacrev twice": torch.func.jacrev(torch.func.jacrev(_f)),
    "jacfwd": torch.func.jacfwd(_f),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(_f))(torch.stack([x, 2 * x])),
    "vmap": lambda x: torch.vmap(_f)(torch.stack([x, 2 * x])),
    "jvp": lambda x: torch.func.jvp(_f, (x,), (x,))[1],
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("attached", [False, True], ids=["leaf", "graph around it"])
def test_func_transforms_are_exact(transform: str, attached: bool) -> None:
    x = torch.randn(4, 4, dtype=torch.float64).requires_grad_(attached)

    def run(context: Any) -> tuple[Tensor, Tensor | None]:
        with context:
            h = (x + 0).sigmoid() * 2 if attached else x
            value = TRANSFORMS[transform](h)
            loss = (value * value).sum()
        return value.detach(), torch.autograd.grad(loss, x)[0] if attached else None

    context = division.compress(Copying())
    assert same(run(nullcontext()), run(context))
    if attached:
        assert {"SigmoidBackward0.result", "MulBackward0.self"} <= set(coded(context))


def test_per_sample_gradients_of_a_module_are_exact() -> None:
    model, x = mlp(), images(5, 64)
    state = dict(model.named_parameters())

    def loss(state: Any, row: Tensor) -> Tensor:
        return torch.func.functional_call(model, state, row[None]).square().sum()

    def run() -> dict[str, Tensor]:
        return torch.vmap(torch.func.grad(loss), (None, 0))(state, x)

    plain = run()
    with division.compress(Copying()):
        ours = run()
    assert same(plain, ours)


def test_meta_learning_is_exact() -> None:
    def run(context: Any) -> list[Tensor]:
        torch.manual_seed(0)
        w, x = leaf(8, 8), torch.randn(4, 8)
        with context:
            fast = w
            for _ in range(3):
                inner = (x @ fast).tanh().square().sum()
                (g,) = torch.autograd.grad(inner, fast, create_graph=True)
                fast = fast - 0.1 * g
            loss = (x @ fast).relu().sum()
            loss.backward()
        assert w.grad is not None
        return [loss.detach(), w.grad]

    assert same(run(nullcontext()), run(division.compress(Copying())))


# Checkpoints and other people's hooks.


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward after"])
def test_checkpoints_recompute_once_and_nothing_in_them_is_coded(reentrant: bool, inside: bool) -> None:
    torch.manual_seed(0)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2)) for _ in range(3))
    calls: list[int] = []
    blocks[1].register_forward_pre_hook(lambda *_: calls.append(1))
    log = Log(Copying())

    def run(context: Any) -> tuple[Any, int]:
        blocks.zero_grad()
        torch.manual_seed(3)
        calls.clear()
        with context:
            h = leaf(4, 64) * 2
            for block in blocks:
                h = checkpoint(block, h, use_reentrant=reentrant)
            loss = (h + 0).tanh().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return grads(blocks), len(calls)

    plain, ours = run(nullcontext()), run(division.compress(log))
    assert same(plain, ours)
    assert ours[1] == 2
    assert log.alive == 0
    assert len(log.codes) == 1  # the tanh after them


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_a_context_within_a_checkpoint_neither_codes_nor_defeats_it(reentrant: bool) -> None:
    model = mlp()
    calls: list[int] = []
    model[0].register_forward_pre_hook(lambda *_: calls.append(1))
    context = division.compress(Copying())

    def block(x: Tensor) -> Tensor:
        with context:
            return model(x)  # type: ignore[no-any-return]

    x = leaf(4, 64)
    plain = torch.autograd.grad(model(x + 0).sum(), x)[0]
    calls.clear()
    ours = torch.autograd.grad if not reentrant else None
    loss = checkpoint(block, x + 0, use_reentrant=reentrant).sum()
    if ours:
        assert same(ours(loss, x)[0], plain)
    else:
        loss.backward()
        assert same(x.grad, plain)
    assert len(calls) == 2
    assert coded(context) == []


@pytest.mark.parametrize("outside", [True, False])
def test_saving_on_the_cpu_is_respected(outside: bool) -> None:
    model, x = convnet(), images()
    model[7] = nn.Identity()
    plain = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    context = division.compress(Copying())
    first, second = (save_on_cpu(), context) if outside else (context, save_on_cpu())
    with first, second:
        loss = model(x).sum()
    assert same(torch.autograd.grad(loss, list(model.parameters())), plain)
    assert coded(context) == []
    assert {r.left for r in context.report.records} == {"has saved-tensor hooks already"}


def test_other_hooks_are_called_as_without_us() -> None:
    def run(context: Any) -> tuple[int, int, Tensor]:
        counts = [0, 0]

        def pack(t: Tensor) -> Tensor:
            counts[0] += 1
            return t.detach().clone()

        def unpack(t: Tensor) -> Tensor:
            counts[1] += 1
            return t

        x = torch.ones(8, 8).requires_grad_()
        with context, saved_tensors_hooks(pack, unpack):
            y = ((x * x).relu() @ x).tanh()
        y.sum().backward()
        assert x.grad is not None
        return counts[0], counts[1], x.grad

    assert same(run(nullcontext()), run(division.compress(Copying())))


def test_hooks_of_modules_and_tensors_fire_as_without_us() -> None:
    def run(context: Any) -> list[Any]:
        torch.manual_seed(0)
        model, met = mlp(), []
        for layer in model:
            layer.register_full_backward_hook(lambda m, i, o: met.append((type(m).__name__, o[0].clone())))  # type: ignore[index]
            layer.register_forward_hook(lambda m, i, o: met.append((type(m).__name__, o.detach().clone())))
        with context:
            y = model(images(3, 64).requires_grad_())
            y.register_hook(lambda g: met.append(("y", g.clone())))
            y.grad_fn.register_hook(lambda i, o: met.append(("node", o[0].clone())))
        y.square().sum().backward()
        return met

    assert same(run(nullcontext()), run(division.compress(Copying())))


# Threads.


def test_a_context_covers_its_own_thread_alone() -> None:
    x = leaf(8, 8)
    done: list[Any] = []

    def other() -> None:
        done.append(nodes.current())
        y = (x + 0) * (x + 1)
        done.append(y.grad_fn._raw_saved_self)  # type: ignore[union-attr]

    with division.compress(Copying()) as context:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert done[0] is None
    assert coded(context) == []


@pytest.mark.parametrize("shared", [True, False], ids=["one context", "one each"])
def test_threads_do_not_disturb_each_other(shared: bool) -> None:
    common = division.compress("lossless") if shared else None
    results: dict[int, Any] = {}
    failed: list[BaseException] = []
    barrier = threading.Barrier(3)

    def work(i: int, context: Any) -> None:
        try:
            generator = torch.Generator().manual_seed(i)
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3), nn.ReLU())
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(torch.randn(p.shape, generator=generator) / 8)
            x = torch.randn(2, 3, 12, 12, generator=generator)
            out = []
            barrier.wait(60)
            for _ in range(4):
                with context:
                    loss = model(x).square().sum()
                loss.backward()
                out.append(grads(model))
            results[i] = out
        except BaseException as error:
            failed.append(error)

    def run(contexts: list[Any]) -> dict[int, Any]:
        results.clear()
        barrier.reset()
        threads = [threading.Thread(target=work, args=(i, c)) for i, c in enumerate(contexts)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failed, failed
        return dict(sorted(results.items()))

    plain = run([nullcontext()] * 3)
    ours = run([common or division.compress("lossless") for _ in range(3)])
    assert same(plain, ours)
    if common:
        assert 1 <= common.report.steps <= 12
    assert nothing_left_open()


def test_backward_may_run_in_another_thread() -> None:
    model, x = mlp(), images(4, 64)
    plain = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    with division.compress(Copying()):
        loss = model(x).sum()
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(torch.autograd.grad(loss, list(model.parameters()))))
        thread.start()
        thread.join()
    assert same(got[0], plain)


def test_a_graph_from_another_thread_is_left_alone() -> None:
    x = leaf(16, 16)
    made: list[Tensor] = []

    def other() -> None:
        h = x
        for _ in range(5):
            h = (h + 0) * (h + 1)
        made.append(h)

    with division.compress(Copying()) as context:
        h = x
        for _ in range(20):
            h = h + 1
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        made[0] + h
    assert coded(context) == []


# Forms that leave torch's own compilers to work.


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()  # type: ignore[no-any-return]


def test_exporting_inside_a_context_and_from_an_attached_model_is_as_without_us() -> None:
    model, x = Small().eval(), images()
    plain = torch.export.export(model, (x,))
    with division.attach(model, Copying()) as handle, division.compress(Copying()) as context:
        ours = torch.export.export(model, (x,))
    assert str(ours.graph) == str(plain.graph)
    assert same(ours.module()(x), plain.module()(x))
    assert coded(context) == coded(handle) == []
    assert nothing_left_open()


def test_tracing_inside_a_context_is_as_without_us() -> None:
    model, x = Small().eval(), images()
    plain = str(torch.fx.symbolic_trace(model).graph)
    with division.compress(Copying()):
        assert str(torch.fx.symbolic_trace(model).graph) == plain
        made = torch.fx.experimental.proxy_tensor.make_fx(model)(x)
    assert same(made(x), model(x))
    assert nothing_left_open()


def test_nothing_is_coded_under_no_grad_and_inference() -> None:
    model = convnet()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with division.compress("division") as context, mode:
            model(images())
        assert context.report.records == []


# The rest of a training loop.


def test_optimizers_may_step_inside_backward() -> None:
    def run(context: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        model = mlp()
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

        def step(p: Tensor) -> None:
            optimizers[p].step()  # type: ignore[index]
            optimizers[p].zero_grad()  # type: ignore[index]

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            with context:
                loss = model(images(4, 64)).square().sum()
                loss.backward()
        return dict(model.state_dict())

    assert same(run(nullcontext()), run(division.compress(Copying())))


def test_a_tensor_hook_may_open_and_close_contexts() -> None:
    x = leaf(8, 8)
    plain = torch.autograd.grad(((x + 0) * x).relu().sum(), x)[0]

    def hook(grad: Tensor) -> None:
        with division.compress(Division()), division.disabled():
            (torch.ones(4, 4, requires_grad=True) * 2).relu()

    with division.compress(Copying()):
        h = (x + 0) * x
        h.register_hook(hook)
        loss = total(h.relu()) * 0 + h.relu().sum()
        (g,) = torch.autograd.grad(loss, x)
    assert torch.allclose(g, plain)
    assert nothing_left_open()


def test_one_context_entered_again_around_another_gives_way_to_that_one(way: str) -> None:
    seen: list[str] = []
    outer, inner = nodes.watch(lambda node: seen.append("outer")), nodes.watch(lambda node: seen.append("inner"))
    x = torch.ones(3, requires_grad=True) * 1
    with outer, inner:
        with outer:
            x.exp()
        x.sin()
    assert seen == ["outer", "inner"]
