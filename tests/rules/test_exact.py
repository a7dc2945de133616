"""Every rule: gradients with exact codes equal plain PyTorch's, bit for bit."""

from collections.abc import Iterator

import pytest
import torch

from division.rules import Use, known_nodes
from tests.rules.cases import CASES
from tests.rules.harness import LAYOUTS, Case, coded, differ, gradients, inputs_of

#: Met only on a GPU: see test_elsewhere.py.
ELSEWHERE = {
    ("CudnnBatchNormBackward0", "input"),
    ("MiopenBatchNormBackward0", "input"),
    ("FusedRmsNormBackward0", "input"),
    *(
        (f"ScaledDotProduct{form}AttentionBackward0", field)
        for form in ("Flash", "Efficient", "Cudnn")
        for field in ("query", "key", "value", "output")
    ),
    *(("ScaledDotProductFusedAttentionOverrideableBackward0", field) for field in ("query", "key", "value", "output")),
}
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def test_every_rule_has_a_case() -> None:
    rules = {(node, field) for node, fields in known_nodes().items() for field in fields}
    assert {key for case in CASES for key in case.uses} | ELSEWHERE == rules


def variants() -> Iterator[tuple[torch.dtype, str, bool]]:
    yield from ((torch.float32, layout, special) for layout in LAYOUTS for special in (False, True))
    yield from ((dtype, layout, True) for dtype in (torch.float64, torch.bfloat16) for layout in LAYOUTS[:3:2])


@each_case
def test_gradients_equal_plain_ones(case: Case) -> None:
    wrong = []
    for variant in variants():
        inputs = inputs_of(case, *variant)
        try:
            expected, _ = gradients(case, inputs, None)
        except RuntimeError:  # not every op has every dtype and layout
            assert variant[:2] != (torch.float32, "contiguous")
            continue
        got, found = gradients(case, inputs, coded)
        if variant[1] == "contiguous":
            assert case.uses.items() <= found.items()
        wrong += [f"{variant}: {difference}" for difference in differ(got, expected)]
    assert wrong == []


@pytest.mark.parametrize("case", [case for case in CASES if case.double], ids=lambda case: case.name)
def test_double_backward_equals_plain(case: Case) -> None:
    for special in (False, True):
        inputs = inputs_of(case, torch.float32, "contiguous", special)
        expected, _ = gradients(case, inputs, None, double=True)
        got, _ = gradients(case, inputs, coded, double=True)
        assert differ(got, expected) == []


def test_uses_are_all_met() -> None:
    assert {use for case in CASES for use in case.uses.values()} == set(Use)
