"""Every rule says the same of fake tensors, so that what is predicted is what is done."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from division.rules import Reading
from tests.rules.cases import CASES
from tests.rules.harness import Case, Key, inputs_of, readings_of

#: Their results are as long as a mask has ones, which no fake tensor knows.
UNKNOWN_SIZE = {"index by a mask", "index by a mask of two dims and by numbers", "masked_select"}
#: Called by themselves, in float32, torch knows no fake form of them, in 2.13 or later either.
NOT_FAKE = {
    "mkldnn_convolution",
    "mkldnn_convolution, frozen weight",
    "grouped_mm",
    "grid_sample, fallback",
    "grid_sample, fallback, frozen grid",
}


def read(output: Tensor) -> list[tuple[Key, Reading, torch.Size, torch.dtype]]:
    found = [(key, reading, saved.shape, saved.dtype) for key, _, reading, saved in readings_of(output)]
    return sorted(found, key=str)


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in NOT_FAKE], ids=lambda case: case.name)
def test_fake_tensors_are_read_alike(case: Case) -> None:
    inputs = inputs_of(case, torch.float32, "contiguous", special=False)
    expected = read(case.op(*inputs))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes: list[Any] = [mode.from_tensor(x) for x in inputs]
        if case.name in UNKNOWN_SIZE:
            with pytest.raises(DynamicOutputShapeException):
                case.op(*fakes)
            return
        assert read(case.op(*fakes)) == expected
