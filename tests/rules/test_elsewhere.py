"""Nodes that only a GPU makes, met under fake tensors on the device cuda."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from division.rules import Use
from tests.rules.harness import readings_of

pytestmark = pytest.mark.skipif(
    not torch.backends.cuda.is_built(), reason="this torch can't make a graph on the device cuda, not even a fake one"
)


def found(output: Tensor) -> dict[tuple[str, str], tuple[Use, torch.Size]]:
    return {key: (reading.use, saved.shape) for key, _, reading, saved in readings_of(output)}


@pytest.mark.parametrize(
    ("training", "frozen", "use"),
    [(True, False, Use.SMOOTH), (True, True, Use.SMOOTH), (False, False, Use.LINEAR), (False, True, Use.SHAPE)],
)
@pytest.mark.parametrize("op", ["cudnn_batch_norm", "miopen_batch_norm"])
def test_batch_norms_of_cuda(op: str, training: bool, frozen: bool, use: Use) -> None:
    with FakeTensorMode(), torch.device("cuda"):
        x = torch.randn(2, 4, 6, 5, requires_grad=True)
        weight, bias = (torch.randn(4, requires_grad=not frozen) for _ in range(2))
        y = getattr(torch, op)(x, weight, bias, torch.zeros(4), torch.ones(4), training, 0.1, 1e-5)[0]
        node = "CudnnBatchNormBackward0" if op.startswith("cudnn") else "MiopenBatchNormBackward0"
        assert found(y) == {(node, "input"): (use, x.shape)}


def test_rms_norm_of_cuda() -> None:
    with FakeTensorMode(), torch.device("cuda"):
        x, weight = torch.randn(6, 8, requires_grad=True), torch.randn(8, requires_grad=True)
        y = torch.nn.functional.rms_norm(x, (8,), weight)
        assert found(y) == {("FusedRmsNormBackward0", "input"): (Use.SMOOTH, x.shape)}


def test_dropout_of_cuda() -> None:
    with FakeTensorMode(), torch.device("cuda"):
        x = torch.randn(6, 8, requires_grad=True)
        y = torch.nn.functional.dropout(x, 0.3)
        assert found(y) == {("NativeDropoutBackward0", "result1"): (Use.MASK, x.shape)}
