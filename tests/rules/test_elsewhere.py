"""Nodes that only a GPU makes, met under fake tensors on the device cuda."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from division.rules import Use
from tests.rules.harness import nodes_of, readings_of

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


aten = torch.ops.aten


@pytest.mark.parametrize(
    ("node", "op"),
    [
        ("ScaledDotProductFlashAttentionBackward0", aten._scaled_dot_product_flash_attention),
        (
            "ScaledDotProductEfficientAttentionBackward0",
            lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True),
        ),
        (
            "ScaledDotProductCudnnAttentionBackward0",
            lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True),
        ),
        (
            "ScaledDotProductFusedAttentionOverrideableBackward0",
            aten._scaled_dot_product_fused_attention_overrideable,
        ),
    ],
)
def test_attention_of_cuda(node: str, op: Callable[..., Any]) -> None:
    with FakeTensorMode(), torch.device("cuda"):
        q, k, v = (torch.randn(2, 3, n, 16, dtype=torch.float16, requires_grad=True) for n in (8, 5, 5))
        y = op(q, k, v)[0]
        exponents = {key[1] for key, _, reading, _ in readings_of(y) if reading.exponent}
        assert exponents == {"query", "key"}
        assert found(y) == {
            (node, "query"): (Use.SMOOTH, q.shape),
            (node, "key"): (Use.SMOOTH, k.shape),
            (node, "value"): (Use.LINEAR, v.shape),
            (node, "output"): (Use.LINEAR, q.shape),
        }


def test_grid_sample_of_cuda() -> None:
    with FakeTensorMode(), torch.device("cuda"):
        x, grid = torch.randn(2, 3, 8, 9, requires_grad=True), torch.rand(2, 4, 4, 2)
        y = torch.nn.functional.grid_sample(x, grid, align_corners=False)
        assert found(y) == {("GridSampler2DBackward0", "input"): (Use.SHAPE, x.shape)}


def test_a_recurrent_cell_of_cuda_is_left_alone() -> None:
    with FakeTensorMode(), torch.device("cuda"):
        h, c = torch.nn.LSTMCell(9, 5)(torch.randn(4, 9) * 1)
        names = {node.name() for node in nodes_of(h + c)}
        assert "ThnnFusedLstmCellBackward0" in names
        assert {key[0] for key in found(h + c)} == {"MmBackward0"}


def test_dropout_of_cuda() -> None:
    with FakeTensorMode(), torch.device("cuda"):
        x = torch.randn(6, 8, requires_grad=True)
        y = torch.nn.functional.dropout(x, 0.3)
        assert found(y) == {("NativeDropoutBackward0", "result1"): (Use.MASK, x.shape)}
