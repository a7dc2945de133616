"""The error that a bound on a layer's input causes in the gradient of its weight."""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from division.private import signed_number
from division.saved import Saved

#: Of nodes whose weight's gradient is linear in a saved input: that field, and which gradient of an input the weight's is.
_LAYERS = {
    "ConvolutionBackward0": ("input", 1),
    "MkldnnConvolutionBackward0": ("self", 1),
    "AddmmBackward0": ("mat1", 2),
    "MmBackward0": ("self", 1),
}
#: The same of normalisations, whose weight's gradient is linear in the normalised input.
_NORMS = {
    "NativeBatchNormBackward0": ("input", 1),
    "CudnnBatchNormBackward0": ("input", 1),
    "MiopenBatchNormBackward0": ("input", 1),
    "NativeLayerNormBackward0": ("input", 1),
    "NativeGroupNormBackward0": ("input", 1),
}


class Layer(NamedTuple):
    """What an input that is coded means to the gradient of its layer's weight.

    Attributes:
        weight: which of the node's gradients of inputs is that of the weight.
        norm: whether the layer is a normalisation.
        variance: from the gradient of the layer's output the variance of an element of the weight's gradient, 0-dim, where
            each element of the input that isn't 0 is off by a variance of 1; mean over the elements of the weight.
        gradient: from the gradient of the layer's output and some input, the gradient of the weight; None for a norm.
    """

    weight: int
    norm: bool
    variance: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor] | None


def is_layer(saved: Saved, norms: bool = True) -> bool:
    """Whether this is the input of a layer whose weight's gradient is linear in it, or in it normalised."""
    tables = (_LAYERS, _NORMS) if norms else (_LAYERS,)
    return any(table.get(saved.node, ("",))[0] == saved.field for table in tables)


def layer_of(saved: Saved) -> Layer | None:
    """The layer that saved its input; None where there is none, or its weight takes no gradient.

    The weight's gradient is ``sum over samples and places of gy * x``. Where each element of x that isn't 0 is off by its
    own error of variance v, that of a bound b being ``b**2 / 3``, an element of it is off by ``v * R * sum of gy**2``, R the
    share of x that isn't 0 and the sum over the gradients of one output channel. COMET (Jin et al., VLDB 2022) is
    remembered to say ``a * L * sqrt(M * R) * b`` with a near 0.32, L the mean magnitude of gy and M the batch: the same
    growth in M, R and b; the constant here is derived, and needs no fitting to how gy is distributed.

    The errors are not always independent: where neighbours have one value they have one error, and what is within the bound
    of 0 becomes 0 together. What that adds has to be measured, with ``gradient``.
    """
    norm = saved.node in _NORMS
    field, weight = (_NORMS if norm else _LAYERS).get(saved.node, ("", 0))
    node, x = saved.grad_fn, saved.tensor
    if field != saved.field or node is None or weight >= len(node.next_functions):
        return None
    if node.next_functions[weight][0] is None or not x.numel():
        return None
    if norm:
        return Layer(weight, norm, _of_norm(node, x), None)
    share = torch.count_nonzero(x).to(torch.float32) / x.numel()
    if not saved.node.endswith("ConvolutionBackward0"):
        return Layer(weight, norm, lambda gy: share * _square(gy) / gy.shape[-1], lambda gy, e: e.mT @ gy)
    spread = _spread(node, x)
    variance = lambda gy: share * spread(gy) * _square(gy) / gy.shape[1]  # noqa: E731
    return Layer(weight, norm, variance, _of_convolution(node))


def norm(x: Tensor, order: float = 2, dim: list[int] | None = None) -> Tensor:
    """``torch.linalg.vector_norm`` in float32, or float64 if x is."""
    return torch.linalg.vector_norm(x.detach(), order, dim, dtype=torch.promote_types(x.dtype, torch.float32))


def _square(x: Tensor) -> Tensor:
    """The sum of the squares, 0-dim."""
    return norm(x).square()


def _spread(node: Any, x: Tensor) -> Callable[[Tensor], float]:
    """The share of the output's places that an element of the weight meets: of a transposed convolution not all."""
    if not getattr(node, "_saved_transposed", False):
        return lambda gy: 1.0
    places = prod(x.shape[2:])
    return lambda gy: places / max(1, prod(gy.shape[2:]))


def _of_convolution(node: Any) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The weight's gradient, as the node itself computes it; None where it doesn't tell its settings."""
    try:
        weight = node._saved_weight
        stride, padding, dilation = (
            _sizes(getattr(node, f"_saved_{name}")) for name in ("stride", "padding", "dilation")
        )
        groups = int(node._saved_groups)
        transposed = bool(getattr(node, "_saved_transposed", False))
        more = _sizes(getattr(node, "_saved_output_padding", (0,) * len(stride)))
    except (AttributeError, RuntimeError):
        return None

    def gradient(gy: Tensor, x: Tensor) -> Tensor:
        wanted = [False, True, False]
        own = torch.ops.aten.convolution_backward(
            gy, x, weight, None, stride, padding, dilation, transposed, more, groups, wanted
        )
        return own[1]  # type: ignore[no-any-return]

    return gradient


def _sizes(numbers: Any) -> list[int]:
    return [signed_number(int(n)) for n in numbers]


def _of_norm(node: Any, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Of ``sum of gy * (x - mean) * invstd``; its errors of 0 count too, for few elements are."""
    inverse = getattr(node, "_saved_result2", None)
    if inverse is None or not inverse.numel():
        inverse = x.detach().float().std().reciprocal()
    if "BatchNorm" in node.name() and inverse.dim() == 1:
        others = [dim for dim in range(x.dim()) if dim != 1]
        return lambda gy: (norm(gy, dim=others) * inverse.float()).square().mean()
    square = inverse.detach().float().square().mean()
    features = x.shape[1] if "Group" in node.name() else prod(_normalized(node, x))
    return lambda gy: square * _square(gy) / features


def _normalized(node: Any, x: Tensor) -> tuple[int, ...]:
    shape = getattr(node, "_saved_normalized_shape", None)
    return tuple(signed_number(int(n)) for n in shape) if shape else tuple(x.shape[-1:])
