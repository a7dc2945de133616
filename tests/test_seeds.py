"""The stream of seeds: distinct, repeatable, resumable, and apart from every generator of torch."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import division
from division import seeds
from division.methods import Division
from division.seeds import Seeds
from tests.models import WAYS, Log, convnet, go, grads, images, same


def draw(stream: Seeds, steps: int = 2, count: int = 3) -> list[list[int]]:
    out = []
    for _ in range(steps):
        stream.begin_step()
        out.append([stream.next() for _ in range(count)])
    return out


@given(st.integers(-(2**70), 2**70), st.integers(1, 4), st.integers(1, 20))
def test_seeds_fit_64_bits_and_never_repeat(base: int, steps: int, count: int) -> None:
    drawn = [x for step in draw(Seeds(base), steps, count) for x in step]
    assert len(set(drawn)) == steps * count
    assert all(-(2**63) <= x < 2**63 for x in drawn)
    assert drawn == [x for step in draw(Seeds(base), steps, count) for x in step]


def test_bits_of_the_seeds_are_even() -> None:
    drawn = [x for step in draw(Seeds(0), 64, 64) for x in step]
    for bit in range(64):
        share = sum(x >> bit & 1 for x in drawn) / len(drawn)
        assert abs(share - 0.5) < 5 * 0.5 / len(drawn) ** 0.5


def test_neighbouring_bases_share_nothing() -> None:
    drawn = {x for base in range(20) for step in draw(Seeds(base), 5, 5) for x in step}
    assert len(drawn) == 20 * 25


def test_without_a_seed_each_stream_follows_torch_and_its_own_number() -> None:
    torch.manual_seed(11)
    a, b = draw(Seeds()), draw(Seeds())
    assert not {x for s in a for x in s} & {x for s in b for x in s}
    torch.manual_seed(12)
    assert draw(Seeds()) not in (a, b)


def test_the_rank_is_part_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = draw(Seeds(5))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    ranks = []
    for rank in range(3):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        ranks.append(draw(Seeds(5)))
    assert ranks[0] == zero
    assert len({x for r in ranks for s in r for x in s}) == 18


def test_a_stream_goes_on_from_its_state() -> None:
    first = Seeds(9)
    draw(first, 3)
    second = Seeds()
    second.load_state_dict(first.state_dict())
    assert draw(second, 4) == draw(first, 4)


@pytest.mark.parametrize("seed", ["1", 1.0, True, torch.tensor(1), [1]])
def test_a_seed_of_another_type_is_refused(seed: Any) -> None:
    for make in (Seeds, lambda s: division.compress(seed=s), lambda s: division.attach(convnet(), seed=s)):
        with pytest.raises(TypeError, match="expected an integer or None"):
            make(seed)


@pytest.mark.parametrize(
    "state",
    [
        None, 3, {}, {"base": 1}, {"base": 1, "step": 2, "more": 3}, {"base": "x", "step": 0}, {"base": 1, "step": None},
        {"base": 1.0, "step": 0}, {"base": 1, "step": True}, {"base": 1, "step": -2},
    ],
)  # fmt: skip
def test_a_wrong_state_is_refused_and_changes_nothing(state: Any) -> None:
    stream = Seeds(4)
    draw(stream)
    before = stream.state_dict()
    with pytest.raises(ValueError, match="expected"):
        stream.load_state_dict(state)
    assert stream.state_dict() == before


# Through the contexts.


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


def trained(context: Any, count: int = 2) -> list[Any]:
    """Gradients of some steps on the same batch."""
    torch.manual_seed(0)
    model = convnet()
    out = []
    for _ in range(count):
        model.zero_grad()
        with context() if callable(context) else context:
            torch.manual_seed(1)  # the same dropout masks: only the noise may differ
            loss = model(images()).square().sum()
        loss.backward()
        out.append(grads(model))
    return out


@pytest.mark.usefixtures("way")
def test_one_seed_gives_one_result_and_each_step_other_noise() -> None:
    a, b = trained(division.compress(seed=3)), trained(division.compress(seed=3))
    assert same(a, b)
    assert not same(a[0], a[1])
    assert not same(a, trained(division.compress(seed=4)))


@pytest.mark.usefixtures("way")
def test_contexts_made_afresh_each_step_draw_other_noise() -> None:
    a, b = trained(division.compress)
    assert not same(a, b)


@pytest.mark.usefixtures("way")
def test_the_global_random_state_is_never_touched() -> None:
    model, x = convnet(), images()
    torch.manual_seed(5)
    plain = model(x)
    state = torch.get_rng_state()
    for method in ("division", "fixed-2", "lossless", "low-frequency", "high-frequency"):
        torch.manual_seed(5)
        model.load_state_dict(model.state_dict())
        with division.compress(method, inputs=True):
            ours = model(x)
        assert same(ours.detach(), plain.detach())
        ours.sum().backward()
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("way")
def test_a_run_resumes_to_the_same_bits() -> None:
    whole = division.compress(seed=3)
    first = trained(whole, 2)
    state = whole.state_dict()
    rest = trained(whole, 2)
    resumed = division.compress()
    resumed.load_state_dict(state)
    assert same(trained(resumed, 2), rest)
    assert not same(first, rest)


@pytest.mark.usefixtures("way")
def test_an_attached_model_resumes_to_the_same_bits() -> None:
    def run(model: Any) -> Any:
        model.zero_grad()
        torch.manual_seed(1)
        model(images()).square().sum().backward()
        return grads(model)

    model = convnet()
    with division.attach(model, seed=3) as handle:
        first, state, second = run(model), handle.state_dict(), run(model)
    with division.attach(model) as handle:
        handle.load_state_dict(state)
        assert same(run(model), second)
    assert not same(first, second)


@pytest.mark.usefixtures("way")
def test_the_rank_changes_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = trained(division.compress(seed=3))
    monkeypatch.setattr(seeds, "_rank", lambda: 1)
    assert not same(trained(division.compress(seed=3)), zero)


def test_both_ways_draw_the_same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for way in WAYS:
        go(way, monkeypatch)
        log = Log(Division())
        result = trained(division.compress(log, seed=3))
        drawn.append((log.seeds, result))
    assert len(set(drawn[0][0])) == len(drawn[0][0]) > 8
    assert all(same(each[1], drawn[0][1]) and each[0] == drawn[0][0] for each in drawn)
