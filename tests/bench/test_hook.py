import pytest
import torch
from torch import nn

import division
from division.bench import hook
from division.bench.hook import Case, Chain, Through, measure
from tests.bench.clock import Scripted
from tests.bench.tiny import Tiny


def test_overhead_is_of_the_full_batch_and_the_time_of_a_tensor_of_the_small_one() -> None:
    # the second round begins with the other one
    seconds = {0: 1.0, 1: 1.75, 2: 1.25, 3: 1.0, 4: 2.0, 5: 2.25}
    case = Case("three", lambda: Chain(3), (2, 2), (4, 4), (2, 1))
    (row,) = measure(cases=[case], clock=Scripted(lambda run: seconds[run]))
    assert row["model"] == "three"
    assert row["overhead"] == 0.125
    assert row["us_per_tensor"] == pytest.approx(1e6 * (0.75 + 0.25) / 2 / 3, rel=1e-4)
    assert (row["tensors"], row["coded"]) == (3, 3)
    assert row["device"] == "cpu"


def test_one_batch_is_measured_once() -> None:
    case = Case("three", lambda: Chain(3), (2, 2), (2, 2), (1, 7))
    (row,) = measure(cases=[case], clock=Scripted({0: 1.0, 1: 1.5}.__getitem__))
    assert (row["overhead"], row["tensors"]) == (0.5, 3)


@pytest.mark.parametrize(("model", "coded"), [(Chain(30), 30), (Tiny(), 7)], ids=["chain", "convolutions"])
def test_all_that_has_a_use_passes_through_and_nothing_changes(model: nn.Module, coded: int) -> None:
    x = torch.randn(4, 3, 8, 8)
    plain = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    with division.compress(Through()) as context:
        loss = model(x).sum()
    assert all(map(torch.equal, torch.autograd.grad(loss, list(model.parameters())), plain))
    report = context.report
    assert {r.codec for r in report.records if r.use} <= {"itself", ""}
    assert {r.left for r in report.records if r.use and r.left} <= {
        "weight",
        "made by no node: its owner still holds it",
    }
    assert sum(r.codec == "itself" for r in report.records) == coded


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    next(measure(cases=[Case("three", lambda: Chain(3), (2, 2), (2, 2), (1, 0))]))
    assert torch.equal(before, torch.get_rng_state())


def test_what_is_measured_by_default_is_what_the_documentation_says() -> None:
    assert [(case.model, case.full) for case in hook.CASES] == [("tiny", (8, 8)), ("resnet50", (8, 3, 224, 224))]
    assert [case.model for case in hook.QUICK] == ["tiny", "resnet50"]
