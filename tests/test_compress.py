"""The context manager: exact codes change nothing, and it fits into any training loop."""

import gc
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import division
from division import nodes
from division.methods import Division, Lossless
from tests.models import NETS, WAYS, Copy, Copying, Log, convnet, go, grads, images, mlp, same, steps, total


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


EXACT = [
    pytest.param(lambda: division.compress("lossless"), id="lossless"),
    pytest.param(lambda: division.compress(Copying()), id="copying"),
    pytest.param(lambda: division.compress(Copying(), inputs=True), id="copying inputs too"),
]


def compare(model: nn.Module, x: Any, context: Any, **settings: Any) -> None:
    plain = steps(model, [x], lambda _: nullcontext(), **settings)
    ours = steps(model, [x], lambda _: context, **settings)
    for key in plain:
        assert same(plain[key], ours[key]), key


@pytest.mark.parametrize("make", EXACT)
@pytest.mark.parametrize("net", NETS)
def test_exact_codes_change_no_bit(net: str, make: Any) -> None:
    build, batch = NETS[net]
    context = make()
    compare(build(), batch(), context)
    assert any(not r.left or r.left.startswith("kept as it is") for r in context.report.records)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("method", [Lossless(), Copying()], ids=str)
def test_exact_codes_change_no_bit_in_other_dtypes(dtype: torch.dtype, method: Any) -> None:
    compare(convnet().to(dtype), images().to(dtype), context := division.compress(method))
    assert {r.dtype for r in context.report.records if not r.left and r.use == "sign"} == {dtype}


@pytest.mark.parametrize("method", [Lossless(), Copying()], ids=str)
@pytest.mark.parametrize("channels", [3, 1])
def test_exact_codes_change_no_bit_in_channels_last(method: Any, channels: int) -> None:
    model = convnet()
    model[0] = nn.Conv2d(channels, 8, 3, padding=1)
    x = images(4, channels, 16, 16).to(memory_format=torch.channels_last)
    compare(model.to(memory_format=torch.channels_last), x, division.compress(method))  # type: ignore[call-overload]


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward after"])
@pytest.mark.parametrize("method", [Lossless(), Copying()], ids=str)
def test_exact_codes_change_no_bit_under_autocast(method: Any, inside: bool) -> None:
    model, x = convnet(), images()

    def run(context: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), context:
            loss = total(model(x))
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return {"loss": loss.detach(), **grads(model)}

    assert same(run(nullcontext()), run(division.compress(method)))


def test_gradients_that_overflow_reach_the_scaler() -> None:
    def run(context: Any) -> tuple[float, list[Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        for scale in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            with context, torch.autocast("cpu", torch.float16):
                loss = model(images(4, 64) * scale).float().square().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale(), [p.detach() for p in model.parameters()]

    plain, exact, lossy = (
        run(c) for c in (nullcontext(), division.compress("lossless"), division.compress("division"))
    )
    assert same(plain, exact)
    assert lossy[0] == plain[0] < 2.0**10
    assert all(torch.isfinite(p).all() for p in lossy[1])


def test_deterministic_mode_changes_nothing() -> None:
    torch.use_deterministic_algorithms(True)  # fills memory that nobody has written with NaN
    try:
        compare(convnet(), images(), division.compress("lossless"))
        with division.compress("division"):
            loss = convnet()(images()).sum()
        loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_another_default_dtype_changes_nothing() -> None:
    def loss(output: Tensor) -> Tensor:
        return output.square().sum()

    model, x = convnet(), images()
    plain = steps(model, [x], lambda _: nullcontext(), loss=loss)
    first = steps(model, [x], lambda _: division.compress(seed=0), loss=loss)
    torch.set_default_dtype(torch.float64)
    try:
        ours = steps(model, [x], lambda _: division.compress("lossless"), loss=loss)
        second = steps(model, [x], lambda _: division.compress(seed=0), loss=loss)
    finally:
        torch.set_default_dtype(torch.float32)
    assert same(plain["grads"], ours["grads"])
    assert same(first["grads"], second["grads"])


# Off means off.


@pytest.mark.parametrize("method", ["division", "lossless", "fixed-2", "none", None])
def test_the_forward_is_the_same_whatever_the_method(method: Any) -> None:
    model, x = convnet(), images()
    torch.manual_seed(3)
    plain, buffers, random = model(x), dict(model.named_buffers()), torch.get_rng_state()
    buffers = {name: b.clone() for name, b in buffers.items()}
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
    torch.manual_seed(3)
    with division.compress(method, inputs=True):
        ours = model(x)
    assert same(plain.detach(), ours.detach())
    assert same(buffers, dict(model.named_buffers()))
    assert torch.equal(random, torch.get_rng_state())
    ours.sum().backward()
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize("method", ["none", None])
def test_no_method_codes_nothing_and_reports_everything(method: Any) -> None:
    with division.compress(method) as context:
        y = convnet()(images())
    assert context.report.records
    assert all(r.left and not r.codec for r in context.report.records)
    assert context.report.packed_bytes == context.report.raw_bytes > 0
    assert all(getattr(node, f"_raw_saved_{field}").unpack_hook is None for node, field in raw_fields(y))


def raw_fields(y: Tensor) -> list[tuple[Any, str]]:
    found, todo = [], [y.grad_fn]
    while todo:
        node: Any = todo.pop()
        found += [(node, a.removeprefix("_raw_saved_")) for a in dir(node) if a.startswith("_raw_saved_")]
        todo += [n for n, _ in node.next_functions if n is not None]
    return found


def test_after_the_context_nothing_is_coded() -> None:
    with division.compress(Copying()):
        pass
    y = convnet()(images())
    assert all(getattr(node, f"_raw_saved_{field}").unpack_hook is None for node, field in raw_fields(y))
    assert nodes.current() is None
    assert not torch.overrides._get_current_function_mode_stack()


# Any loop.


@pytest.mark.parametrize("method", [Lossless(), Copying(), Division()], ids=str)
def test_backward_may_run_inside_after_and_twice(method: Any) -> None:
    model, x = mlp(), images(4, 64)

    def run(inside: bool, times: int = 1) -> list[Any]:
        context, out = division.compress(method, seed=1), []
        with context:
            loss = model(x).square().sum()
            if inside:
                out = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for _ in range(times)]
        return out or [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for _ in range(times)]

    first, second = run(inside=False, times=2)
    assert same(first, second)
    assert same(run(inside=True, times=2), [first, second])


def test_two_losses_share_a_graph() -> None:
    model, x = mlp(), images(4, 64)
    weight = next(model.parameters())

    def run(context: Any) -> list[Any]:
        with context:
            h = model[:3](x)
            a, b = model[3:](h).sum(), h.tanh().square().sum()
        one = torch.autograd.grad(a, weight, retain_graph=True)[0]
        two = torch.autograd.grad(b, weight, retain_graph=True)[0]
        both = torch.autograd.grad(a + b, weight)[0]
        return [one, two, both]

    assert same(run(nullcontext()), run(division.compress(Copying())))


@pytest.mark.parametrize("backwards", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3]], ids=str)
def test_gradients_accumulate_in_any_order(backwards: list[int]) -> None:
    def run(context: Any) -> Any:
        torch.manual_seed(0)
        model, losses = mlp(), []
        for i in range(4):
            with context:
                losses.append(model(images(4, 64) + i).square().mean())
        for i in backwards:
            losses[i].backward()
        return grads(model)

    assert same(run(nullcontext()), run(division.compress(Copying())))


def test_a_step_after_an_exception_in_forward_is_right() -> None:
    context = division.compress(Copying())
    model, other, x = convnet(), convnet(), images()
    plain = steps(model, [x], lambda _: nullcontext())
    for _ in range(2):
        with pytest.raises(RuntimeError), context:
            other(images(4, 5, 16, 16))
        with pytest.raises(ZeroDivisionError), context:
            other[:4](x).sum() / (1 // 0)
    assert same(plain, steps(model, [x], lambda _: context))


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_failing_encode_is_raised_and_leaves_a_usable_graph(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    encode = Copy.encode

    def failing(self: Copy, x: Tensor, seed: int) -> Any:
        calls.append(1)
        if len(calls) == at + 1:
            raise MemoryError("no room for the code")
        return encode(self, x, seed)

    model, x = mlp(), images(4, 64).requires_grad_()
    kept: list[Tensor] = []
    for layer in model:
        layer.register_forward_hook(lambda m, i, o: kept.append(o))
    plain = torch.autograd.grad(model[:1](x).sum(), x)[0]
    kept.clear()
    monkeypatch.setattr(Copy, "encode", failing)
    with pytest.raises(MemoryError, match="no room"), division.compress(Copying()):
        model(x)
    assert nodes.current() is None
    assert same(torch.autograd.grad(kept[0].sum(), x, retain_graph=True)[0], plain)
    assert torch.autograd.grad(kept[-1].sum(), x)[0].any()


def test_nothing_of_a_failing_choice_is_hidden() -> None:
    class Bad(Copying):
        def lossy(self, reading: Any, saved: Any) -> Any:
            raise LookupError("no such place")

    with pytest.raises(LookupError, match="no such place"), division.compress(Bad()):
        mlp()(images(4, 64))


def test_only_and_skip_choose_nodes() -> None:
    coded = {}
    for name, settings in {
        "all": {}, "only": {"only": "Convolution*"}, "two": {"only": ["Relu*", "*Pool*"]}, "skip": {"skip": ("Convolution*", "Relu*")},
        "both": {"only": ["Relu*", "Conv*"], "skip": "Conv*"},
    }.items():  # fmt: skip
        with division.compress(Copying(), **settings) as context:  # type: ignore[arg-type]
            convnet()(images()).sum().backward()
        coded[name] = {r.node for r in context.report.records if not r.left}
        assert len(context.report.records) > 15
    convolution, relu, pool = "ConvolutionBackward0", "ReluBackward0", "MaxPool2DWithIndicesBackward0"
    assert {convolution, relu, pool, "NativeBatchNormBackward0", "AddmmBackward0"} <= coded["all"]
    assert coded["only"] == {convolution}
    assert coded["two"] == {relu, pool}
    assert coded["skip"] == coded["all"] - {convolution, relu}
    assert coded["both"] == {relu}


def test_a_node_with_a_rule_of_the_users_own_can_be_chosen() -> None:
    with division.register_rule("CubeBackward", 0, division.Use.SMOOTH):
        division.compress(only="CubeBackward", skip=["Cube*"])
    with pytest.raises(ValueError, match="matches nothing"):
        division.compress(only="CubeBackward")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "divison"}, ValueError, "got method 'divison'.*division.*fixed-<bits>.*lossless"),
        ({"method": Division}, TypeError, r"make an object of it, Division\(\)"),
        ({"method": 3}, TypeError, "expected a division.methods.Method object or a name"),
        (
            {"method": nn.ReLU()},
            TypeError,
            r"^got the model ReLU as the method: division.attach\(model\) is for a model",
        ),
        ({"method": {"head": "division"}}, TypeError, "division.attach"),
        ({"method": "fixed-17"}, ValueError, "17"),
        ({"method": "fixed-two"}, ValueError, "a number of bits"),
        ({"seed": "1"}, TypeError, "expected an integer or None"),
        ({"seed": 1.5}, TypeError, "expected an integer or None"),
        ({"only": "Convolutoin*"}, ValueError, "only: pattern 'Convolutoin\\*' matches nothing"),
        ({"skip": ["Relu*", "Nope"]}, ValueError, "skip: pattern 'Nope' matches nothing"),
        ({"only": 3}, TypeError, "only: got 3, expected a pattern"),
        ({"skip": [3]}, TypeError, "expected a pattern"),
        ({"only": []}, ValueError, "only: got no pattern"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        division.compress(**arguments)


def test_a_wrong_state_is_refused() -> None:
    context = division.compress("division", seed=1)
    good = context.state_dict()
    context.load_state_dict(good)
    wrong: list[Any] = [
        None, 3, {}, {"noise": good["noise"]}, {**good, "noise": {}}, {**good, "noise": None},
        division.compress("fixed-2").state_dict(), {**good, "method": {}},
    ]  # fmt: skip
    wrong += [{**good, "method": None}, {**good, "method": {"range": 1}}, {**good, "more": 1}]
    for state in wrong:
        with pytest.raises(ValueError, match="expected"):
            context.load_state_dict(state)
    assert context.state_dict() == good


def test_one_long_context_holds_nothing_of_its_past() -> None:
    model, log = mlp(), Log(Division())
    with division.compress(log):
        for _ in range(5):
            loss = model(images(4, 64)).square().sum()
            loss.backward()
            del loss
            assert log.alive == 0


def test_no_warning_and_no_garbage() -> None:
    model = convnet()

    def garbage(context: Any) -> int:
        gc.collect()
        with warnings.catch_warnings(action="error"), context:
            total(model(images())).backward()
        return gc.collect()

    context = division.compress("division")
    garbage(context)
    assert garbage(context) <= garbage(nullcontext())


def test_a_context_held_open_keeps_no_record_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("division.scope.MOST_RECORDS", 50)
    model, x = convnet(), images()
    with division.compress("division", seed=0) as context:
        for _ in range(10):
            model(x).sum().backward()
        assert len(context.report.records) <= 100
    assert context.report.steps > 1
    once = division.compress("division", seed=0)
    with once:
        model(x).sum().backward()
    assert context.report.total_packed_bytes >= 10 * once.report.code_bytes
