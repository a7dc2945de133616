"""What people wrap a training in: precisions, layouts, reparametrisations, adapters, threads, checkpoints.

Each trains as without us: bit for bit where the codes are exact, close to it under ``division``.
"""

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import division
from division.methods import Division, Lossless
from tests.models import NETS, WAYS, Copying, Log, Of, convnet, go, grads, images, mlp, same, steps, total


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


def cosine(a: Mapping[str, Tensor | None], b: Mapping[str, Tensor | None]) -> float:
    """Between two gradients of a whole model."""
    x, y = (torch.cat([g.flatten() for g in each.values() if g is not None]) for each in (a, b))
    return float(F.cosine_similarity(x.abs() if x.is_complex() else x, y.abs() if y.is_complex() else y, dim=0))


def assert_close(ours: Mapping[str, Tensor | None], plain: Mapping[str, Tensor | None]) -> None:
    """All finite, and in nearly the same direction; present where plain ones are."""
    assert [g is None for g in ours.values()] == [g is None for g in plain.values()]
    assert all(torch.isfinite(g).all() for g in ours.values() if g is not None)
    assert cosine(ours, plain) > 0.95


class Training(NamedTuple):
    """A model, its batch, and what its forward runs in."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    def run(self, context: Any) -> dict[str, Any]:
        @contextmanager
        def both(_: nn.Module) -> Iterator[None]:
            with ExitStack() as stack:
                stack.enter_context(context)
                stack.enter_context(self.around())
                yield

        return steps(self.build(), [self.batch()], both)


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build()


def channels_last() -> nn.Module:
    return convnet().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def tied() -> nn.Module:
    """One matrix is the embedding, a projection within and, transposed, the head."""

    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        h = m["embedding"](x).relu()
        h = F.gelu(F.linear(h, m["embedding"].weight)) @ m["embedding"].weight  # type: ignore[arg-type, operator]
        return m["head"](F.dropout(h, 0.2))  # type: ignore[no-any-return]

    embedding, head = nn.Embedding(16, 32), nn.Linear(32, 16, bias=False)
    head.weight = embedding.weight
    return Of(forward, embedding=embedding, head=head)


def reparametrised(by: Callable[[nn.Module], nn.Module]) -> nn.Module:
    model = convnet()
    for i in (0, 3, 11):
        model[i] = by(model[i])
    return model


class Lora(nn.Module):
    """A frozen layer and a low-rank one beside it."""

    def __init__(self, base: nn.Module, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.base, self.down, self.up = base.requires_grad_(requires_grad=False), down, up

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(F.dropout(x, 0.1)))  # type: ignore[no-any-return]


def lora() -> nn.Module:
    """Of convolutions and linear layers behind a trained stem, two of them without an adapter."""
    stem = nn.Conv2d(3, 8, 3, padding=1)
    conv = Lora(nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1), nn.Conv2d(2, 8, 1))
    linear = Lora(nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(2, 8))
    frozen = nn.Conv2d(8, 8, 3).requires_grad_(requires_grad=False)
    return nn.Sequential(
        stem, nn.ReLU(), conv, nn.ReLU(), frozen, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(2),
        nn.Linear(16, 8).requires_grad_(requires_grad=False), linear, nn.GELU(), nn.Linear(8, 4),
    )  # fmt: skip


def peft_lora() -> nn.Module:
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install 'division[families]'")
    base = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(8), nn.Flatten(2), mlp(64))
    config = peft.LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.1, init_lora_weights=False, target_modules=["0", "4.0", "4.2"]
    )
    return peft.get_peft_model(base, config)  # type: ignore[no-any-return]


TRAININGS = {
    "autocast bf16": Training(convnet, images, lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast bf16, attention": Training(*NETS["attention"], lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast fp16": Training(convnet, images, lambda: torch.autocast("cpu", torch.float16)),
    "channels last": Training(channels_last, lambda: images().to(memory_format=torch.channels_last)),
    "channels last, autocast bf16": Training(
        channels_last, lambda: images().to(memory_format=torch.channels_last), lambda: torch.autocast("cpu", torch.bfloat16)
    ),
    "float64": Training(lambda: convnet().double(), lambda: images().double()),
    "bfloat16": Training(lambda: convnet().bfloat16(), lambda: images().bfloat16()),
    "complex": Training(*NETS["complex"]),
    "integers": Training(*NETS["words"]),
    "in place": Training(*NETS["in-place"]),
    "recurrent": Training(*NETS["recurrent"]),
    "tied weights": Training(tied, lambda: torch.arange(32).view(4, 8) % 16),
    "weight norm": Training(lambda: reparametrised(parametrizations.weight_norm), images),
    "spectral norm": Training(lambda: reparametrised(parametrizations.spectral_norm), images),
    "orthogonal": Training(lambda: reparametrised(parametrizations.orthogonal), images),
    "lora": Training(lora, images),
    "lora by peft": Training(peft_lora, images),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAININGS)
def test_exact_codes_change_no_bit(name: str, way: str) -> None:
    training = TRAININGS[name]
    training = training._replace(build=partial(seeded, training.build))
    plain = training.run(nullcontext())
    for method in (Lossless(), Copying()):
        context = division.compress(method)
        ours = training.run(context)
        for key in plain:
            assert same(plain[key], ours[key]), f"{key}, {method}"
    assert any(r.use and not r.left for r in context.report.records)


@pytest.mark.parametrize("name", TRAININGS)
def test_division_gives_the_same_forward_and_close_gradients(name: str, way: str) -> None:
    training = TRAININGS[name]
    training = training._replace(build=partial(seeded, training.build))
    plain, ours = training.run(nullcontext()), training.run(context := division.compress("division", seed=0))
    assert same(plain["outputs"][0], ours["outputs"][0])
    assert same(plain["random"], ours["random"])
    assert_close(ours["grads"][0], plain["grads"][0])
    assert context.report.packed_bytes < context.report.raw_bytes


# Overflow.


@pytest.mark.parametrize("method", ["none", "lossless", "division", "fixed-2"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize("at", [2, 4])
def test_the_scaler_skips_a_step_whose_activation_overflowed(method: str, value: float, at: int, way: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.GELU(),
        nn.Conv2d(8, 4, 3), nn.Flatten(), nn.LazyLinear(4),
    )  # fmt: skip
    model(images())
    poisoned = False

    def poison(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if not poisoned:
            return output
        hit = torch.zeros_like(output)
        hit[0, 0, 0, 0] = value
        return output + hit

    model[at].register_forward_hook(poison)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=100)
    context = division.compress(method)
    skipped, scales = [], []
    for step in range(4):
        poisoned = step == 2
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        with context, torch.autocast("cpu", torch.float16):
            loss = model(images()).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(all(map(torch.equal, before, model.parameters())))
        scales.append(scaler.get_scale())
    assert skipped == [False, False, True, False]
    assert scales == [2.0**8, 2.0**8, 2.0**7, 2.0**7]
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_an_overflow_that_only_the_codes_carry_reaches_the_scaler() -> None:
    """The output and what comes back are finite; only the weight's gradient, from the saved input, is not."""

    class Shield(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.nan_to_num(0, 0, 0)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    torch.manual_seed(0)
    conv = nn.Conv2d(4, 4, 3)
    x = images(2, 4, 16, 16)
    x[0, 0, 3, 3] = float("inf")
    for method in ("none", "division"):
        conv.zero_grad()
        with division.compress(method, inputs=True) as context:
            loss = Shield.apply(conv(x)).sum()
        assert torch.isfinite(loss)
        loss.backward()
        assert conv.weight.grad is not None
        assert not torch.isfinite(conv.weight.grad).all(), method
    assert context.report.packed_bytes < context.report.raw_bytes


# Adapters.


def test_inputs_of_frozen_layers_cost_nothing() -> None:
    model = seeded(lora)
    with division.attach(model, "division") as handle:
        model(images()).sum().backward()
    rows = handle.report.records
    frozen = [r for r in rows if r.module in {"2.base", "4", "8", "9.base"}]
    inputs = [r for r in frozen if r.node == "ConvolutionBackward0" and r.field == "input"]
    assert [r.module for r in inputs] == ["2.base", "4"]
    assert {r.use for r in inputs} == {"shape"}
    assert sum(r.packed_bytes for r in frozen) == 0
    assert {r.left for r in frozen if r.left} <= {"weight", "state"}
    adapters = {r.module for r in rows if r.use == "linear" and r.packed_bytes}
    assert {"2.down", "9.down"} <= adapters


def test_frozen_layers_under_peft_cost_nothing() -> None:
    model = seeded(peft_lora)
    with division.attach(model, "division") as handle:
        model(images()).sum().backward()
    base = [r for r in handle.report.records if r.module.endswith("base_layer")]
    assert base
    assert sum(r.packed_bytes for r in base) == 0
    assert {r.left for r in base if r.left} <= {"weight", "made by no node: its owner still holds it"}
    assert any("lora_A" in r.module and r.packed_bytes for r in handle.report.records)


# Loops.


def test_accumulated_gradients_are_close_under_division(way: str) -> None:
    def run(context: Any) -> dict[str, Tensor | None]:
        model = seeded(convnet)
        torch.manual_seed(1)
        for i in range(4):
            with context:
                loss = total(model(images() + i)) / 4
            loss.backward()
        return grads(model)

    assert_close(run(division.compress("division", seed=0)), run(nullcontext()))


def critic() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 16, 4, 2, 1), nn.GroupNorm(4, 16),
        nn.SiLU(), nn.Conv2d(16, 16, 3), nn.Softplus(), nn.Flatten(), nn.Linear(64, 1),
    )  # fmt: skip


@pytest.mark.parametrize("inside", [True, False], ids=["penalty inside", "penalty after"])
def test_a_gradient_penalty(inside: bool, way: str) -> None:
    real, fake = images(), images().flip(0) * 2
    mixed = (0.3 * real + 0.7 * fake).requires_grad_()

    def penalty(scores: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(scores.sum(), mixed, create_graph=True)
        return (gradient.flatten(1).norm(2, 1) - 1).square().mean()

    def run(context: Any) -> dict[str, Tensor | None]:
        model = seeded(critic)
        with context:
            loss, scores = model(fake).mean() - model(real).mean(), model(mixed)
            if inside:
                loss = loss + 10 * penalty(scores)
        if not inside:
            loss = loss + 10 * penalty(scores)
        loss.backward()
        mixed.grad = None
        return grads(model)

    plain = run(nullcontext())
    assert same(plain, run(division.compress("lossless")))
    assert same(plain, run(division.compress(Copying(), inputs=True)))
    assert_close(run(division.compress("division", seed=0)), plain)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, at the first jvp
def test_functional_calls_and_transforms_under_division(way: str) -> None:
    model, x = seeded(mlp), images(6, 64)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    def run(context: Any) -> list[Any]:
        with context:
            return [
                torch.func.grad(loss)(weights, x),
                torch.vmap(torch.func.grad(loss), (None, 0))(weights, x[:, None]),
                torch.func.jvp(partial(loss, weights), (x,), (x,)),
                torch.func.hessian(lambda w: loss({**weights, "4.weight": w}, x))(weights["4.weight"]),
            ]

    assert same(run(nullcontext()), run(division.compress("division")))
    leaves = {name: p.clone().requires_grad_() for name, p in weights.items()}
    with division.compress("division", seed=0) as context:
        value = loss(leaves, x)
    ours = dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))
    assert_close(ours, torch.func.grad(loss)(weights, x))
    assert context.report.packed_bytes < context.report.raw_bytes


@pytest.mark.parametrize("make", [division.attach, lambda model, method: division.compress(method, model=model)])
def test_transforms_over_parameters_that_take_a_gradient(make: Any) -> None:
    model, x = seeded(mlp), images(6, 64)
    weights: dict[str, Tensor] = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    def run(context: Any) -> list[Any]:
        with context:
            gradient = torch.func.grad(loss)(weights, x)
            each = torch.vmap(torch.func.grad(loss), (None, 0))(weights, x[:, None])
            norm = torch.stack([g.square().sum() for g in gradient.values()]).sum()
            usual = model(x).square().sum()
        return [gradient, each, torch.autograd.grad(norm + usual, list(weights.values()))]

    context = make(model, "lossless")
    assert same(run(nullcontext()), run(context))
    assert {"weight", "state"} & {r.left for r in context.report.records}


# Threads.


def in_threads(work: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread of its own; an error of one is raised here."""
    failed: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("shared", [True, False], ids=["one context", "one each"])
@pytest.mark.parametrize("method", ["lossless", "division"])
def test_replicas_in_threads_sum_their_gradients(method: str, shared: bool, way: str) -> None:
    """Data parallelism by hand: each replica has a part of the batch, one backward after all are done."""
    model, x = seeded(critic), images(6, 3, 16, 16)

    def run(contexts: Sequence[AbstractContextManager[Any]]) -> dict[str, Tensor | None]:
        model.zero_grad()
        replicas = [copy.deepcopy(model) for _ in contexts]
        for replica in replicas:
            for p, original in zip(replica.parameters(), model.parameters(), strict=True):
                p.data = original.data
        outputs: dict[int, Tensor] = {}

        def forward(i: int) -> None:
            with contexts[i]:
                outputs[i] = replicas[i](x[2 * i : 2 * i + 2])

        in_threads([partial(forward, i) for i in range(len(contexts))])
        torch.cat([outputs[i] for i in range(len(contexts))]).square().sum().backward()
        summed = [grads(replica) for replica in replicas]
        return {name: torch.stack([g[name] for g in summed]).sum(0) for name in summed[0]}  # type: ignore[misc]

    plain = run([nullcontext()] * 3)
    one = division.compress(method, seed=0)
    ours = run([one if shared else division.compress(method, seed=0) for _ in range(3)])
    if method == "lossless":
        assert same(ours, plain)
    else:
        assert_close(ours, plain)
    if shared and method == "division":
        assert one.report.packed_bytes < one.report.raw_bytes


def test_several_threads_each_train_a_replica(way: str) -> None:
    def train(context: AbstractContextManager[Any], found: list[Any]) -> None:
        model, x = models.pop(), images(2, 3, 16, 16)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(4):
            optimizer.zero_grad()
            with context:
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        found.append([p.detach() for p in model.parameters()])

    def run(contexts: Sequence[AbstractContextManager[Any]]) -> list[Any]:
        models[:] = [seeded(critic) for _ in contexts]
        found: list[Any] = []
        in_threads([partial(train, context, found) for context in contexts])
        return found

    models: list[nn.Module] = []
    first = run([nullcontext()])[0]
    for replica in run([division.compress("lossless") for _ in range(4)]):
        assert same(replica, first)
    for replica in run([division.compress("division", seed=i) for i in range(4)]):
        assert all(torch.isfinite(p).all() for p in replica)
        torch.testing.assert_close(replica, first, rtol=0.05, atol=0.01)


# Checkpoints.


def block() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.Dropout(0.2))


def save_convolutions(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.convolution.default else CheckpointPolicy.PREFER_RECOMPUTE


def selective(module: nn.Module, x: Tensor) -> Tensor:
    context = partial(create_selective_checkpoint_contexts, save_convolutions)
    return checkpoint(module, x, use_reentrant=False, context_fn=context)  # type: ignore[no-any-return]


CHECKPOINTS: dict[str, Callable[[nn.ModuleList, Tensor], Tensor]] = {
    "reentrant": lambda blocks, x: [x := checkpoint(b, x, use_reentrant=True) for b in blocks][-1],
    "non-reentrant": lambda blocks, x: [x := checkpoint(b, x, use_reentrant=False) for b in blocks][-1],
    "selective": lambda blocks, x: [x := selective(b, x) for b in blocks][-1],
    "sequential": lambda blocks, x: checkpoint_sequential(list(blocks), 2, x, use_reentrant=False),
    "nested": lambda blocks, x: checkpoint(
        lambda y: [y := checkpoint(b, y, use_reentrant=False) for b in blocks][-1], x, use_reentrant=False
    ),
    "some": lambda blocks, x: checkpoint(blocks[2], blocks[1](checkpoint(blocks[0], x, use_reentrant=False)), use_reentrant=False),
}  # fmt: skip


#: How many of the three blocks are no checkpoint.
PLAIN_BLOCKS = {"some": 1, "sequential": 2}


@pytest.mark.parametrize("attached", [True, False], ids=["attached", "context"])
@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward after"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints_recompute_as_often_and_nothing_is_coded_twice(
    kind: str, inside: bool, attached: bool, way: str
) -> None:
    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        h = CHECKPOINTS[kind](m["blocks"], m["stem"](x))  # type: ignore[arg-type]
        return m["head"](h).tanh()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    blocks = nn.ModuleList(block() for _ in range(3))
    model = Of(forward, stem=nn.Conv2d(3, 8, 3), blocks=blocks, head=nn.Conv2d(8, 4, 3))
    calls: list[int] = []
    for i, each in enumerate(blocks):
        each.register_forward_pre_hook(lambda *_, i=i: calls.append(i))  # type: ignore[misc]

    def run(method: Any) -> tuple[dict[str, Tensor | None], list[int]]:
        model.zero_grad()
        calls.clear()
        torch.manual_seed(3)
        context: Any = nullcontext()
        if method is not None:
            context = division.attach(model, method) if attached else division.compress(method, seed=0)
        with context:
            loss = total(model(images()))
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return grads(model), list(calls)

    plain = run(None)
    for method in (Lossless(), Copying()):
        assert same(run(Log(method)), plain)
    log = Log(Division())
    gradients, called = run(log)
    assert called == plain[1]
    assert_close(gradients, plain[0])
    assert log.alive == 0
    # The head's input and tanh's result; what conv, norm, ReLU and dropout of a block save where that is no checkpoint.
    assert len(log.codes) == 2 + 4 * PLAIN_BLOCKS.get(kind, 0)
