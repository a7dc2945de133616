"""Compressing a model whose loop belongs to someone else."""

import copy
import gc
import json
import pickle
import threading
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of

import division
from division import nodes
from division.methods import Division, Lossless
from tests.models import NETS, WAYS, Copying, Of, convnet, go, grads, images, same, steps


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


class Net(nn.Module):
    """A backbone of two blocks and a head, with work of its own between them."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU())
        )
        self.head = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
        self.fail: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.backbone(x).mean((2, 3)) + 0
        if self.fail:
            raise self.fail
        return self.head((h + 0) * (h + 1))  # type: ignore[no-any-return]


def open_hooks() -> int:
    return len(hooks_of._global_forward_pre_hooks) + len(hooks_of._global_forward_hooks)


def codecs(handle: division.Handle) -> dict[str, set[str]]:
    """Module to the names of the codecs used in it; "-" for LINEAR and SMOOTH tensors left, weights aside."""
    found: dict[str, set[str]] = {}
    for r in handle.report.records:
        if r.left in ("weight", "state") or r.use not in ("linear", "smooth") or r.shape == ():
            continue
        found.setdefault(r.module, set()).add(r.codec.split("(")[0].lower() or "-")
    return found


@pytest.fixture(autouse=True)
def nothing_stays() -> Any:
    before = open_hooks()
    yield
    gc.collect()
    assert open_hooks() == before
    assert nodes.current() is None
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("method", ["lossless", Copying()], ids=["lossless", "copying"])
@pytest.mark.parametrize("net", ["convnet", "attention", "recurrent", "in-place"])
def test_exact_codes_change_no_bit(net: str, method: Any) -> None:
    build, batch = NETS[net]
    model, x = build(), batch()
    plain = steps(model, [x], lambda _: nullcontext())
    ours = steps(model, [x], lambda model: division.attach(model, method))
    for key in plain:
        assert same(plain[key], ours[key]), key


def test_nothing_in_the_model_changes() -> None:
    model = convnet()
    state, classes = copy.deepcopy(model.state_dict()), [type(m) for m in model.modules()]
    attributes = {name: set(vars(m)) for name, m in model.named_modules()}
    empty = pickle.dumps(model)
    handle = division.attach(model)
    assert same(dict(model.state_dict()), dict(state))
    assert [type(m) for m in model.modules()] == classes
    assert {name: set(vars(m)) for name, m in model.named_modules()} == attributes
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert pickle.dumps(model) == empty
    handle.remove()


def test_copies_and_pickles_are_plain_models() -> None:
    model = convnet()
    with division.attach(model) as handle:
        for other in (copy.deepcopy(model), copy.copy(model[0]), pickle.loads(pickle.dumps(model))):
            other(images()).sum().backward()
        assert handle.report.steps == 0
        assert handle.report.records == []


def test_the_report_names_modules_and_is_plain_data() -> None:
    model = Net()
    with division.attach(model) as handle:
        model(images()).sum().backward()
    modules = {row["module"] for row in handle.report.to_rows()}
    assert modules == {"", "backbone.0.0", "backbone.0.1", "backbone.1.0", "backbone.1.1", "head.0", "head.1", "head.2"}
    assert json.loads(json.dumps(handle.report.to_rows())) == handle.report.to_rows()
    assert "backbone.1.0" in str(handle.report)


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ("division", {"": "group", "backbone.1.0": "dual", "head.0": "group", "head.1": "group"}),
        ({"backbone.*": "division", "head": "lossless"}, {"": "-", "backbone.1.0": "dual", "head.0": "-"}),
        ({"": Copying(), "head": "none"}, {"": "copy", "backbone.1.0": "copy", "head.0": "-", "head.1": "-"}),
        ({"head": Copying(), "head.1": "none"}, {"": "-", "backbone.1.0": "-", "head.0": "copy", "head.1": "-"}),
        ({"head.1": "none", "head": Copying()}, {"": "-", "backbone.1.0": "-", "head.0": "copy", "head.1": "-"}),
        ({"backbone": Copying(), "backbone.1": None}, {"": "-", "backbone.1.0": "-", "head.0": "-"}),
        ({"*.0": Copying()}, {"": "-", "backbone.1.0": "copy", "head.0": "copy", "head.1": "-"}),
    ],
)
def test_each_part_takes_the_method_of_the_innermost_match(methods: Any, expected: dict[str, str]) -> None:
    model = Net()
    with division.attach(model, methods) as handle:
        model(images()).sum().backward()
    found = codecs(handle)
    assert {module: found[module] for module in expected} == {module: {codec} for module, codec in expected.items()}


@pytest.mark.parametrize(
    ("only", "skip", "coded"),
    [
        (None, None, {"", "backbone.0.1", "backbone.1.0", "backbone.1.1", "head.0", "head.1", "head.2"}),
        ("backbone", None, {"backbone.0.1", "backbone.1.0", "backbone.1.1"}),
        (["backbone.1", "head.1"], None, {"backbone.1.0", "backbone.1.1", "head.1"}),
        (None, "backbone", {"", "head.0", "head.1", "head.2"}),
        (None, "head.?", {"", "backbone.0.1", "backbone.1.0", "backbone.1.1"}),
        ("backbone", ("backbone.0",), {"backbone.1.0", "backbone.1.1"}),
    ],
)
def test_only_and_skip_choose_parts(only: Any, skip: Any, coded: set[str]) -> None:
    model = Net()
    with division.attach(model, Copying(), only=only, skip=skip) as handle:
        model(images()).sum().backward()
    assert {r.module for r in handle.report.records if r.codec} == coded
    excluded = {r.left for r in handle.report.records if r.module not in coded}
    assert excluded <= {"excluded", "weight", "made by no node: its owner still holds it", "no rule"}


@pytest.mark.parametrize("argument", ["only", "skip", "method"])
def test_a_pattern_that_matches_no_module_is_an_error_that_names_some(argument: str) -> None:
    value: Any = {"backbon.*": "division"} if argument == "method" else "backbon.*"
    with pytest.raises(ValueError, match=r"backbon\.\*.* matches nothing.*any of: \w.*backbone\.0\.0"):
        division.attach(Net(), **{argument: value})
    with pytest.raises(ValueError, match="any of: '', the model itself"):
        division.attach(nn.Linear(2, 2), **{argument: value})


def test_a_handle_reads_as_one_line() -> None:
    model = nn.Linear(4, 4)
    handle = division.attach(model, "lossless")
    assert repr(handle) == "Handle(Linear, Lossless(), Report(no step yet))"
    handle.remove()
    assert repr(handle) == "Handle(Linear, Lossless(), Report(no step yet), removed)"
    parts = division.attach(nn.Sequential(nn.ReLU()), {"0": "lossless"})
    gc.collect()
    assert repr(parts) == "Handle(a model that is gone, {'0': Lossless()}, Report(no step yet), removed)"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": "resnet18"}, TypeError, "expected a torch.nn.Module"),
        ({"model": Net}, TypeError, "expected a torch.nn.Module"),
        ({"method": "divison"}, ValueError, "lossless"),
        ({"method": {"head": "divison"}}, ValueError, "lossless"),
        ({"method": Division}, TypeError, r"Division\(\)"),
        ({"method": {"head": Division}}, TypeError, r"Division\(\)"),
        ({"method": 3}, TypeError, "a name"),
        ({"method": {}}, ValueError, "expected"),
        ({"method": {3: "division"}}, TypeError, "expected"),
        ({"only": 3}, TypeError, "expected"),
        ({"skip": [3]}, TypeError, "expected"),
        ({"only": []}, ValueError, "expected"),
        ({"seed": "1"}, TypeError, "expected an integer"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        division.attach(**{"model": Net(), **arguments})


def test_remove_twice_and_a_model_that_is_gone() -> None:
    model = Net()
    before = open_hooks()
    handle = division.attach(model)
    assert open_hooks() == before + 2
    loss = model(images()).sum()
    handle.remove()
    handle.remove()
    assert open_hooks() == before
    loss.backward()  # what is coded decodes as ever
    assert all(p.grad is not None for p in model.parameters())
    model(images())
    assert handle.report.steps == 1

    second = division.attach(model)
    ref = weakref.ref(model)
    del model, loss
    gc.collect()
    assert ref() is None
    assert open_hooks() == before
    second.remove()


def test_a_dropped_handle_goes_on_until_its_model_goes() -> None:
    model = Net()
    log = Copying()
    met: list[str] = []

    class Telling(Copying):
        def lossy(self, reading: Any, saved: Any) -> Any:
            met.append(saved.node)
            return log.lossy(reading, saved)

    division.attach(model, Telling())
    gc.collect()
    model(images())
    assert met
    del model


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit()], ids=repr)
def test_a_forward_that_raises_closes_its_step(error: BaseException) -> None:
    model, other = Net(), nn.Linear(64, 64)
    with division.attach(model, Copying()) as handle:
        model.fail = error
        with pytest.raises(type(error)):
            model(images())
        model.fail = None
        records = len(handle.report.records)
        ((other(torch.randn(4, 64)) + 0) * other.weight[:4]).sum().backward()
        assert len(handle.report.records) == records  # another model's nodes are none of its business
        plain = grads_of(model, nullcontext())
        assert handle.report.steps == 2
        assert same(grads_of(model, division.disabled()), plain)
        assert {r.module for r in handle.report.records} >= {"", "head.0"}


def grads_of(model: nn.Module, context: Any) -> dict[str, Any]:
    model.zero_grad()
    with context:
        loss = model(images()).square().sum()
    loss.backward()
    return grads(model)


def test_disabled_around_a_call_of_an_attached_model_leaves_it_alone() -> None:
    model = Net()
    with division.attach(model, Copying()) as handle:
        with division.disabled():
            model(images()).sum().backward()
        assert not any(r.codec for r in handle.report.records)
        model(images()).sum().backward()
        assert any(r.codec for r in handle.report.records)


def test_a_part_called_by_itself_is_a_step() -> None:
    model = Net()
    with division.attach(model, Copying()) as handle:
        model.backbone(images()).sum().backward()
        assert {r.module for r in handle.report.records} == {f"backbone.{i}.{j}" for i in (0, 1) for j in (0, 1)}
        model.backbone[1](images(2, 8, 8, 8)).sum().backward()
        assert {r.module for r in handle.report.records} == {"backbone.1.0", "backbone.1.1"}
    assert handle.report.steps == 2


def test_step_covers_the_loss() -> None:
    model = Net()
    with division.attach(model, Copying()) as handle:
        with handle.step() as running:
            (model(images()).sigmoid() + 0).square().sum().backward()
        assert running is handle
        assert handle.report.steps == 1
        assert {r.node for r in handle.report.records if r.module == "" and r.codec} >= {
            "SigmoidBackward0",
            "PowBackward0",
        }
        model.fail = ValueError("no")
        with pytest.raises(ValueError, match="no"), handle.step():
            model(images())
        model.fail = None
        model(images())
    assert handle.report.steps == 3


def test_two_handles_of_one_model_and_of_a_part() -> None:
    model = Net()
    plain = grads_of(model, nullcontext())
    with division.attach(model.backbone, Copying()) as part, division.attach(model, "lossless") as whole:
        assert same(grads_of(model, nullcontext()), plain)
    assert {r.module for r in part.report.records} == {f"{i}.{j}" for i in (0, 1) for j in (0, 1)}
    assert {r.module for r in whole.report.records} == {"", "head.0", "head.1", "head.2"}
    with division.attach(model, Copying()) as first, division.attach(model, "lossless") as second:
        assert same(grads_of(model, nullcontext()), plain)
        assert same(grads_of(model, nullcontext()), plain)
    assert first.report.steps == second.report.steps == 2
    assert len(first.report.records) == 0
    assert second.report.records


def test_a_model_in_a_context_of_its_own_is_covered_by_the_inner_one() -> None:
    model = Net()
    with division.attach(model, Copying()) as handle, division.compress(Lossless()) as context:
        model(images()).relu().sum().backward()
    assert {r.node for r in context.report.records} == {"ReluBackward0"}
    assert any(r.codec for r in handle.report.records)


def test_a_module_used_twice_and_a_recursive_one() -> None:
    shared = nn.Linear(8, 8)

    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        return m["b"](m["a"](m["b"](x)).relu())  # type: ignore[no-any-return]

    model = Of(forward, a=shared, b=shared)
    plain = grads_of_any(model, torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))
    with division.attach(model, Copying()) as handle:
        assert same(grads_of_any(model, torch.randn(4, 8, generator=torch.Generator().manual_seed(0))), plain)
    assert handle.report.steps == 1


def grads_of_any(model: nn.Module, x: Tensor) -> dict[str, Any]:
    model.zero_grad()
    model(x).sum().backward()
    return grads(model)


def test_a_module_added_later_counts_as_part_of_its_caller() -> None:
    model = Net()
    with division.attach(model, Copying()) as handle:
        model.head[1] = nn.Sequential(nn.Tanh(), nn.Sigmoid())
        model(images()).sum().backward()
    assert "SigmoidBackward0" in {r.node for r in handle.report.records if r.module == "head" and r.codec}


def test_removing_in_the_middle_of_a_forward_is_clean() -> None:
    model = Net()
    handle = division.attach(model, Copying())
    stop = model.backbone.register_forward_hook(lambda *_: handle.remove())
    plain = grads_of(copy.deepcopy(model), nullcontext())
    assert same(grads_of(model, nullcontext()), plain)
    assert nodes.current() is None
    stop.remove()


def test_frozen_weights_are_left_even_with_inputs() -> None:
    def forward(m: nn.ModuleDict, x: Tensor) -> Tensor:
        return nn.functional.linear(m["a"](x), m["b"].weight.detach()).relu()  # type: ignore[arg-type, operator]

    model = Of(forward, a=nn.Linear(64, 64), b=nn.Linear(64, 64).requires_grad_(requires_grad=False))
    with division.attach(model, Copying(), inputs=True) as handle:
        model(torch.randn(4, 64)).sum().backward()
    rows = [r for r in handle.report.records if r.field == "mat2" or "weight" in r.field]
    assert rows
    assert {r.left for r in rows} <= {"weight", "state"}


def test_threads_have_their_own_steps_of_one_model() -> None:
    model = Net()
    plain = grads_of(copy.deepcopy(model), nullcontext())
    got: dict[int, Tensor] = {}
    with division.attach(model, Copying()) as handle:

        def work(i: int) -> None:
            names = [p for _, p in model.named_parameters()]
            for _ in range(3):
                loss = model(images()).square().sum()
                got[i] = torch.autograd.grad(loss, names)[0]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 1 <= handle.report.steps <= 9
    assert len(got) == 3
    assert all(same(g, plain["backbone.0.0.weight"]) for g in got.values())


def test_state_is_of_one_set_of_methods() -> None:
    model = Net()
    with division.attach(model, {"backbone": "division", "head": "lossless"}, seed=1) as handle:
        state = handle.state_dict()
        assert json.loads(json.dumps(state)) == state
        handle.load_state_dict(state)
    with division.attach(model, "division") as other:
        wrong: list[Any] = [state, None, 3, {}, {"noise": state["noise"]}, {**other.state_dict(), "methods": None}]
        for each in wrong:
            with pytest.raises(ValueError, match="expected"):
                other.load_state_dict(each)
        learned = {"": {"kind": "Division", "learned": {"range": 1}}}
        with pytest.raises(ValueError, match="learns nothing"):
            other.load_state_dict({**other.state_dict(), "methods": learned})


def test_an_exact_name_goes_before_a_wildcard_and_the_whole_model_comes_last() -> None:
    model = Net()
    choices: list[Any] = [{"*": "division", "head": Copying()}, {"": "division", "he*": Copying()}]
    for parts in choices:
        with division.attach(model, parts) as handle:
            model(images()).sum().backward()
        assert codecs(handle)["head.0"] == {"copy"}
        assert codecs(handle)["backbone.1.0"] == {"dual"}


def test_a_mapping_of_methods_is_any_mapping() -> None:
    class Parts(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return {"head": Copying()}[key]

        def __iter__(self) -> Any:
            return iter(["head"])

        def __len__(self) -> int:
            return 1

    model = Net()
    with division.attach(model, Parts()) as handle:
        model(images())
    assert codecs(handle)["head.0"] == {"copy"}
