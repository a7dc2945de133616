"""The model of errors in weights' gradients against errors that were made."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from division.methods.weight_error import is_layer, layer_of
from division.saved import Saved

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str, float]] = {
    "conv": (lambda: nn.Conv2d(4, 6, 3), (4, 4, 20, 20), "input", 0.05),
    "strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, bias=False), (4, 4, 21, 21), "input", 0.05),
    "grouped": (lambda: nn.Conv2d(4, 8, 3, groups=2), (4, 4, 20, 20), "input", 0.05),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, groups=6), (4, 6, 20, 20), "input", 0.05),
    "one dim": (lambda: nn.Conv1d(4, 6, 3), (4, 4, 200), "input", 0.05),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 2, stride=2), (4, 4, 16, 16), "input", 0.05),
    "linear": (lambda: nn.Linear(12, 9), (300, 12), "mat1", 0.05),
    "linear without bias": (lambda: nn.Linear(12, 9, bias=False), (300, 12), "self", 0.05),
    "batch norm": (lambda: nn.BatchNorm2d(24), (8, 24, 12, 12), "input", 0.12),
    "group norm": (lambda: nn.GroupNorm(4, 32), (8, 32, 12, 12), "input", 0.12),
    "layer norm": (lambda: nn.LayerNorm(40), (8, 50, 40), "input", 0.12),
}


def saved_of(output: Tensor, x: Tensor, field: str) -> Saved:
    node = output.grad_fn
    assert node is not None
    return Saved(node.name(), field, x, grad_fn=node)


@pytest.mark.parametrize("name", LAYERS)
def test_the_variance_is_that_of_independent_errors(name: str) -> None:
    build, shape, field, tolerance = LAYERS[name]
    torch.manual_seed(0)
    layer = build()
    x = torch.randn(shape).relu() if "norm" not in name else torch.randn(shape) * 2 + 1
    x.requires_grad_()
    output = layer(x)
    layer_found = layer_of(saved_of(output, x, field))
    assert layer_found is not None
    gy = torch.randn_like(output)
    weight = next(layer.parameters())
    foretold = float(layer_found.variance(gy))
    squares = []
    for _ in range(100):
        error = torch.randn(shape) * (x != 0)
        if "norm" in name:
            # Of the weight's gradient the part that is read from the input, as it was normalised.
            eps = 1e-3
            grads = []
            for sign in (1, -1):
                moved = _normalised_with(layer, x.detach(), x.detach() + sign * eps * error)
                grads.append(moved * gy)
            caused = _by_weight(layer, (grads[0] - grads[1]) / (2 * eps))
        else:
            caused = torch.autograd.grad(_linear(layer, error), weight, gy)[0]
            assert layer_found.gradient is not None
            direct = layer_found.gradient(gy, error)
            torch.testing.assert_close(
                direct.mT if direct.shape != caused.shape else direct, caused, rtol=1e-4, atol=1e-4
            )
        squares.append(caused.square().mean())
    assert torch.stack(squares).mean().item() == pytest.approx(foretold, rel=tolerance)


def _linear(layer: nn.Module, x: Tensor) -> Tensor:
    """What the layer makes of ``x``, without its bias."""
    output = layer(x)
    bias = getattr(layer, "bias", None)
    if bias is None:
        return output  # type: ignore[no-any-return]
    return output - bias.detach().reshape(-1, *[1] * (output.dim() - 2)) if output.dim() > 2 else output - bias.detach()


def _normalised_with(layer: nn.Module, x: Tensor, moved: Tensor) -> Tensor:
    """``moved``, normalised by the statistics of ``x``: backward has them as they were."""
    if isinstance(layer, nn.GroupNorm):
        flat, other = (t.reshape(len(x), layer.num_groups, -1) for t in (x, moved))
        std, mean = torch.std_mean(flat, dim=2, correction=0, keepdim=True)
        return ((other - mean) / std).reshape(x.shape)
    dims = (0, 2, 3) if isinstance(layer, nn.BatchNorm2d) else (-1,)
    std, mean = torch.std_mean(x, dim=dims, correction=0, keepdim=True)
    return (moved - mean) / std


def _by_weight(layer: nn.Module, products: Tensor) -> Tensor:
    dims = (0, 1) if isinstance(layer, nn.LayerNorm) else (0, 2, 3)
    return products.sum(dims)


def test_what_has_no_weight_that_is_linear_in_it_is_no_layer() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    for output, field in ((x.sigmoid(), "result"), (x @ x.T, "mat2"), (nn.functional.gelu(x), "self")):
        saved = saved_of(output, x, field)
        assert not is_layer(saved)
        assert layer_of(saved) is None
    frozen = nn.Linear(8, 4).requires_grad_(False)
    assert layer_of(saved_of(frozen(x), x, "mat1")) is None
    norm: Any = nn.LayerNorm(8)
    assert not is_layer(saved_of(norm(x), x, "input"), norms=False)
    assert is_layer(saved_of(norm(x), x, "input"))
