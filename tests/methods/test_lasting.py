"""What learning methods know is of one network, in every precision, survives a stop at any step, and is nobody else's."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import division
from division.methods import AcGc, ActNN, Comet, Gact, JpegAct, Mesa, Method

NEW: dict[str, Callable[[], Method]] = {
    "actnn": lambda: ActNN(interval=4), "comet": lambda: Comet(interval=4), "ac-gc": lambda: AcGc(interval=12),
    "mesa": Mesa, "gact": Gact, "jpeg-act": JpegAct,
}  # fmt: skip
STEPS = 14


def network(width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 16, 3), nn.BatchNorm2d(16),
        nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 5),
    )  # fmt: skip


class Training:
    """A network, an optimizer and a context; every step has a batch of its own."""

    def __init__(self, method: Method, micro: int = 1, scale: float = 1.0) -> None:
        self.model, self.method, self.micro, self.scale = network(), method, micro, scale
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.context = division.compress(method, model=self.model, optimizer=self.optimizer, seed=3)

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        for part in range(self.micro):
            draw = torch.Generator().manual_seed(number * self.micro + part)
            x, y = torch.randn(4, 3, 8, 8, generator=draw), torch.randint(5, (4,), generator=draw)
            with self.context:
                loss = F.cross_entropy(self.model(x), y)
            (loss * self.scale / self.micro).backward()
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad /= self.scale
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """As a file would hold it."""
        own = self.model.state_dict(), self.optimizer.state_dict()
        return copy.deepcopy({"torch": own, "context": json.loads(json.dumps(self.context.state_dict()))})

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["torch"][0])
        self.optimizer.load_state_dict(state["torch"][1])
        self.context.load_state_dict(state["context"])

    def weights(self) -> Tensor:
        return torch.cat([x.detach().flatten() for x in self.model.parameters()])


@pytest.mark.parametrize("name", NEW)
def test_a_training_that_stops_at_any_step_goes_on_bit_for_bit(name: str) -> None:
    whole = Training(NEW[name]())
    states = []
    for number in range(STEPS):
        whole.step(number)
        states.append(whole.state())
    for stopped, state in enumerate(states):
        again = Training(NEW[name]())
        again.load(state)
        assert again.context.state_dict() == state["context"]
        for number in range(stopped + 1, STEPS):
            again.step(number)
        assert torch.equal(again.weights(), whole.weights()), f"stopped after step {stopped + 1}"
        assert again.method.state_dict() == whole.method.state_dict()


@pytest.mark.parametrize("name", [*NEW, "blpa"])
def test_networks_of_float64_train(name: str) -> None:
    method: Method | str = NEW[name]() if name in NEW else name
    model = network().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    context = division.compress(method, model=model, optimizer=optimizer, seed=0)
    x, y = torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    for _ in range(3):
        optimizer.zero_grad()
        with context:
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("name", NEW)
def test_one_object_is_for_one_network(name: str) -> None:
    method, first = NEW[name](), network()
    division.compress(method, model=first)
    division.compress(method, model=first)  # again
    with pytest.raises(ValueError, match=r"got one method for two models, both with a parameter '0\.bias'"):
        division.compress(method, model=network())
    first[0] = nn.Conv2d(3, 16, 3, padding=1)  # a part of it may be another
    division.compress(method, model=first)


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("measure", [False, True])
def test_predicting_changes_nothing(name: str, measure: bool) -> None:
    found = []
    for ask in (False, True):
        training = Training(NEW[name]())
        for number in range(6):
            training.step(number)
            if ask:
                batch = torch.randn(4, 3, 8, 8) if measure else torch.empty(4, 3, 8, 8, device="meta")
                division.predict(training.model, batch, training.method, measure=measure)
        found.append((training.weights(), training.method.state_dict()))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("micro", [1, 2, 3, 6])
def test_a_scaled_loss_changes_no_bound_whatever_is_accumulated(micro: int) -> None:
    plain, scaled = Comet(interval=1000), Comet(interval=1000)
    for method, scale in ((plain, 1.0), (scaled, 2.0**16)):
        training = Training(method, micro, scale)
        for number in range(24 // micro):
            training.step(number)
    site = "3.weight: ConvolutionBackward0.input"
    bound = plain.bound(site)
    assert bound is not None
    assert scaled.bound(site) == pytest.approx(bound, rel=0.05)
    assert 1e-3 < bound < 1


def test_an_optimizer_gets_one_hook_from_one_method() -> None:
    model, method = network(), Comet()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        division.compress(method, model=model, optimizer=optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    other = torch.optim.SGD(model.parameters(), 0.1)
    division.compress(method, model=model, optimizer=other)
    method.learned.gathering = True
    optimizer.step()
    assert method.learned.taken is None  # another's step by now
    other.step()
    assert method.learned.taken == {}


def test_a_state_of_other_shapes_is_refused_and_leaves_the_method_as_it_was() -> None:
    training = Training(Comet())
    for number in range(3):
        training.step(number)
    state = training.method.state_dict()
    other, model = Comet(), network(width=8)
    division.compress(other, model=model)
    with pytest.raises(ValueError, match=r"'0.weight' has shape \(16, 3, 3, 3\) there and \(8, 3, 3, 3\) here"):
        other.load_state_dict(state)
    assert other.state_dict() == Comet().state_dict() | {"parameters": other.state_dict()["parameters"]}
    division.compress(other, model=model)
    late = Comet()
    late.load_state_dict(state)
    with pytest.raises(ValueError, match=r"has shape \(16, 3, 3, 3\) there"):
        division.compress(late, model=model)


def test_numbered_parameters_are_told_from_another_network_s() -> None:
    method, other = ActNN(), ActNN()
    context = division.compress(method)
    model = network()
    for _ in range(3):
        with context:
            loss = model(torch.randn(4, 3, 8, 8)).sum()
        loss.backward()
    other.load_state_dict(method.state_dict())
    with (
        pytest.raises(ValueError, match="got a learned state of another model: it has parameter 0"),
        division.compress(other),
    ):
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))(torch.randn(4, 8))


@pytest.mark.parametrize("row", [[0.0, 1.0], [-1.0, 1.0], [0.1, 0.0]])
def test_a_bound_that_is_none_is_no_state(row: list[float]) -> None:
    state = Comet().state_dict() | {"sites": {"0.weight: ConvolutionBackward0.input": row}}
    with pytest.raises(ValueError, match="expected a bound and a factor above 0"):
        Comet().load_state_dict(state)


@pytest.mark.parametrize("method", [ActNN(level="L1"), ActNN(level="L0"), Gact(adaptive=False)], ids=str)
def test_what_learns_nothing_takes_its_own_state(method: Method) -> None:
    assert method.state_dict() == {}
    method.load_state_dict({})
    with pytest.raises(ValueError, match="learns nothing"):
        method.load_state_dict(Comet().state_dict())


def test_numbers_that_are_refused_leave_a_method_as_it_was() -> None:
    for method, row in ((AcGc(), [17.0]), (Mesa(), [0.0, -1.0]), (ActNN(), [9.0]), (Gact(), [1.0, 1.0, 3.0])):
        before = method.state_dict()
        with pytest.raises(ValueError, match="expected"):
            method.load_state_dict(before | {"steps": 5, "sites": {"a.weight: Node.input": row}})
        assert method.state_dict() == before


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("actnn", {"seen": {"a": [3, 1.0]}}, "got a count and 1 sums at 'a' as what 'actnn' gathers, expected 3 sums"),
        ("comet", {"seen": {"a": [3, 1.0, 1.0]}}, "got a count and 2 sums .*, expected 3 sums"),
        ("comet", {"probes": {"a": [3, 1.0]}}, "got a count and 1 sums .*, expected 2 sums"),
        ("ac-gc", {"seen": {"a: Made.16 channels > a: Reads.input": [3, 1.0, 1.0]}}, "2 sums .*, expected 18 sums"),
        ("ac-gc", {"seen": {"a: Made.features > a: Reads.input": [3, 1.0]}}, "1 sums .*, expected 3 sums"),
        ("mesa", {"seen": {"a": [3, 1.0]}}, "1 sums .*, expected 0 sums"),
        ("gact", {"seen": {"a": [3, 1.0]}}, "1 sums .*, expected 0 sums"),
        ("jpeg-act", {"seen": {"a": [3, 1.0]}}, "1 sums .*, expected 0 sums"),
        ("actnn", {"seen": {"a": [3, 1.0, 1e300, 1.0]}}, "expected a count and sums of at least 0 for each site"),
        ("actnn", {"seen": {"a": [10**400, 1.0, 1.0, 1.0]}}, "expected a count and sums of at least 0 for each site"),
        ("actnn", {"seen": {1: [3, 1.0, 1.0, 1.0]}}, "expected a count and sums of at least 0 for each site"),
        (
            "ac-gc",
            {"seen": {"a: Made.features > a: Reads.input": [3, 1.0, 64.0, -1.0]}},
            "expected a count and sums of at least 0",
        ),
        ("mesa", {"sites": {"a: Made.input x4": [0.0] * 6}}, "expected 4 least values, then as many widths"),
        ("mesa", {"sites": {"a: Made.input x0": []}}, "expected 0 least values, then as many widths"),
        ("actnn", {"shares": {1: 2}}, "as what 'actnn' learned, expected 1 numbers for each"),
        ("actnn", {"shares": {"a": 10**400}}, "as what 'actnn' learned, expected 1 numbers for each"),
        ("actnn", {"gathering": torch.ones(2)}, r"got gathering=tensor\(\[1., 1.\]\) .*, expected True or False"),
        ("comet", {"waiting": torch.ones(2)}, "got waiting=.*, expected True or False"),
        ("ac-gc", {"log": [{"step": 10**400, "bits": 2.0}]}, "expected a list of mappings"),
    ],
)
def test_what_cannot_have_been_written_is_refused_and_changes_nothing(
    name: str, changes: dict[str, Any], message: str
) -> None:
    method = NEW[name]()
    before = method.state_dict()
    with pytest.raises(ValueError, match=message):
        method.load_state_dict(before | {"steps": 5} | changes)
    assert method.state_dict() == before


@pytest.mark.parametrize("around", ["offload", "swap", "checkpoint"])
def test_a_state_is_of_the_method_inside_too(around: str) -> None:
    model = network()
    state = division.attach(model, f"{around}-jpeg-act").state_dict()
    with division.attach(model, f"{around}-jpeg-act") as same_kind, division.attach(model, f"{around}-mesa") as other:
        same_kind.load_state_dict(state)
        with pytest.raises(ValueError, match=r"\(JpegAct\), expected one of .*\(Mesa\)"):
            other.load_state_dict(state)


def test_a_state_is_taken_over_as_a_whole_or_not_at_all() -> None:
    training = Training(ActNN(interval=4))
    for number in range(9):
        training.step(number)
    learned = training.context.state_dict()["method"]
    method, model = ActNN(), network()
    context = division.compress(method, model=model)
    before = context.state_dict()
    for noise in (None, {"base": "x", "step": 3}):
        with pytest.raises(ValueError, match="got noise state"):
            context.load_state_dict({"noise": noise, "method": learned})
        assert context.state_dict() == before
    with division.attach(model, {"0": method, "": Comet()}) as handle:
        before = handle.state_dict()
        wrong = {"kind": "Comet", "learned": {**Comet().state_dict(), "parameters": {"0.weight": [1, 2, 3, 4]}}}
        with pytest.raises(ValueError, match="got a learned state of another model"):
            handle.load_state_dict({**before, "methods": {"0": learned, "": wrong}})
        assert handle.state_dict() == before
        handle.load_state_dict({**before, "methods": {**before["methods"], "0": learned}})
    assert method.learned.values == training.method.learned.values  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["actnn", "comet", "ac-gc"])
@pytest.mark.parametrize("seen", [[], {"a": 1}, {"a": [1]}, {"a": [-1, 1.0]}, {"a": [1, "x"]}])
def test_what_is_gathered_is_checked_too(name: str, seen: Any) -> None:
    state = NEW[name]().state_dict() | {"seen": seen}
    with pytest.raises(ValueError, match="expected a count and sums of at least 0 for each site"):
        NEW[name]().load_state_dict(state)
