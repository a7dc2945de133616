"""How much noise a method puts on the gradients of a network: predicted layer by layer, and measured."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from division.codecs.codec import Codec
from division.compress import as_method, compress
from division.methods.learned import Learned
from division.methods.method import Gradients, Method, Observer
from division.methods.weight_error import is_layer, layer_of
from division.private import signed_number
from division.rules import LOSSY, Reading
from division.saved import Saved
from division.sites import Sites

_CONVOLUTIONS = ("ConvolutionBackward0", "MkldnnConvolutionBackward0")


@dataclass(frozen=True)
class LayerVariance:
    """Noise on the gradient of one layer's weight.

    Attributes:
        name: of the weight.
        codec: of the layer's input.
        predicted: sum over the weight's elements of the mean squared error of its gradient, which is the variance where
            codes are unbiased, from the layer's input and the gradient of its output alone.
        measured: the same from the gradients of several backward passes, about the exact one.
        gradient: the squared norm of the exact gradient.
    """

    name: str
    codec: Codec
    predicted: float
    measured: float
    gradient: float


@dataclass(frozen=True)
class GradientVariance:
    """Noise on the gradients of a network.

    Attributes:
        layers: those whose input is coded, in the order in which they ran.
        measured: mean squared error of the gradients of all parameters together, those of norms and biases included.
        gradient: the squared norm of the exact gradients of all parameters.
    """

    layers: tuple[LayerVariance, ...]
    measured: float
    gradient: float

    @property
    def predicted(self) -> float:
        """The sum over the layers: without what codes of other tensors (norms, products, activations) add."""
        return sum(layer.predicted for layer in self.layers)


def gradient_variance(
    model: nn.Module, inputs: Any, loss: Callable[[Any], Tensor], method: str | Method = "actnn", *,
    draws: int = 16, seed: int = 0, layers_only: bool = False,
) -> GradientVariance:  # fmt: skip
    """The variance of a network's gradients under a method's rounding, by layer: predicted and measured.

    A layer's gradient is ``sum over samples and places of g * x``, g the gradient of its output and x what the code of its
    input decodes to, each element rounded on its own: at fraction f between two codes a step apart its variance is
    ``f * (1 - f) * step**2``, a sixth of the squared step where fractions are uniform. So the variance of the gradient is the
    same sum of ``g**2`` times that variance, which is what is predicted: exactly, but for the estimate of the variances, each
    from two codes of the actual input. ActNN (Chen et al., ICML 2021) has the bound that follows, by the norms of each sample's g.

    Both are mean squared errors about the exact gradient: the variance, where codes are unbiased. Of other codes (``blpa``,
    ``comet``, ``jpeg-act``, ``low-frequency``), which may be the same in every draw, it is their error, and what is predicted
    takes the errors of a tensor's elements for unrelated: near enough of rounding to nearest (``comet``, ``jpeg-act``). Where
    they go together, as where values are clipped or frequencies left out (``blpa``, ``low-frequency``), what is measured can
    be ten times as much, and is what counts.

    What is predicted is the noise of a layer's own input. The gradient g is exact where only inputs of convolutions and
    linear layers are coded (``layers_only``), and then the measured variance is the predicted one, but for the few draws it
    comes from. Codes of norms' inputs, products and activations disturb g itself, for all layers before them; that is in
    what is measured, not in what is predicted. Neither covers weights that several layers share, beyond the sum of their
    variances.

    The model's buffers, gradients and random numbers are left as they were, and so is a method that learns: a copy of it
    is used, with what it has learned.

    Args:
        model: in the mode that is meant.
        inputs: the batch: a tensor, or a tuple or dict of arguments.
        loss: makes the loss from the model's output.
        method: an object or a name; none that runs blocks of the model again, such as ``checkpoint``.
        draws: backward passes to measure with, at least 2. The standard error of what is measured is at most
            ``sqrt(2 / draws)`` of it, and far less where many elements take part.
        seed: of the rounding.
        layers_only: code the inputs of convolutions and linear layers alone.

    Raises:
        TypeError: no model.
        ValueError: fewer than 2 draws, or a method that runs blocks again.
        TypeError, ValueError: no method.

    Example:
        >>> import division
        >>> model = nn.Sequential(
        ...     nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2)
        ... )
        >>> found = division.gradient_variance(
        ...     model, torch.randn(8, 3, 10, 10), lambda y: y.square().mean(), draws=64
        ... )
        >>> [layer.name for layer in found.layers]
        ['2.weight', '5.weight']
        >>> all(abs(layer.predicted / layer.measured - 1) < 0.5 for layer in found.layers)
        True
    """
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 2:
        raise ValueError(f"got draws={draws!r}, expected an integer of at least 2")
    if not isinstance(model, nn.Module):
        raise TypeError(f"got {model!r} as the model, expected a torch.nn.Module")
    chosen = _copied(as_method(method))
    if chosen.blocks is not None:
        raise ValueError(
            f"got method {chosen!r}, which runs blocks of the model again and codes nothing inside them; expected one that"
            " codes what is saved there, such as 'division' in the place of 'checkpoint-division'"
        )
    run = _Run(model, inputs, loss)
    probe = _Probe(chosen, layers_only, seed)
    exact = run.gradients(probe, seed)
    drawn = [run.gradients(_Still(chosen, layers_only), seed + 1 + k) for k in range(draws)]
    spread = {name: _error([gradients[name] for gradients in drawn], g) for name, g in exact.items()}
    square = {name: float(g.double().square().sum()) for name, g in exact.items()}
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    layers: dict[str, LayerVariance] = {}
    for key, codec, predicted in probe.found:
        name = own.get(key)
        if name is not None:
            before = layers[name].predicted if name in layers else 0.0
            layers[name] = LayerVariance(name, codec, before + float(predicted), spread[name], square[name])
    ordered = dict.fromkeys(own[key] for key in probe.order if key in own)
    return GradientVariance(
        tuple(layers[name] for name in ordered if name in layers), sum(spread.values()), sum(square.values())
    )


def _error(gradients: list[Tensor], exact: Tensor) -> float:
    """The sum over elements of the mean squared error over draws."""
    return sum(float((g.double() - exact.double()).square().sum()) for g in gradients) / len(gradients)


def _copied(method: Method) -> Method:
    """A copy that learns for itself, and knows the places in the network by the same names."""
    named: dict[int, Any] = {}
    for sites in _sites(method):
        own = named[id(sites)] = Sites()  # a copy of one, as it is, knows no names
        vars(own).update((name, copy.copy(value)) for name, value in vars(sites).items())
    return copy.deepcopy(method, named)


def _sites(value: object) -> Iterator[Sites]:
    """Those of a method, of what it goes around and of what it learned."""
    if isinstance(value, Sites):
        yield value
    elif isinstance(value, Method | Learned):
        for inner in getattr(value, "__dict__", {}).values():
            yield from _sites(inner)


class _Run:
    """Gradients of one batch, as often as they are wanted."""

    def __init__(self, model: nn.Module, inputs: Any, loss: Callable[[Any], Tensor]) -> None:
        self.model, self.loss = model, loss
        self.args = () if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else (inputs,)
        self.kwargs = inputs if isinstance(inputs, dict) else {}
        self.random = torch.get_rng_state()

    def gradients(self, method: Method, seed: int) -> dict[str, Tensor]:
        """Of all parameters that have one, by name; the same random numbers each time."""
        parameters = {name: x for name, x in self.model.named_parameters() if x.requires_grad}
        buffers = {name: x.detach().clone() for name, x in self.model.named_buffers()}
        with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(self.random)
            with compress(method, seed=seed):
                value = self.loss(functional_call(self.model, buffers, self.args, self.kwargs))
            found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        return {name: g for name, g in zip(parameters, found, strict=True) if g is not None}


@dataclass(frozen=True)
class _Still(Method):
    """A method that learns nothing any more, of all tensors or of inputs of layers alone."""

    name: ClassVar[str] = "still"
    method: Method
    layers_only: bool

    def codec(self, reading: Reading, saved: Saved) -> Codec | None:
        if self.layers_only and not is_layer(saved, norms=False):
            return reading.codec
        return self.method.codec(reading, saved)

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        return self.method.lossy(reading, saved)


@dataclass(frozen=True)
class _Probe(_Still):
    """Leaves all tensors, and predicts from them what their codes would do."""

    learns: ClassVar[bool] = True
    seed: int = 0
    found: list[tuple[int, Codec, Tensor]] = field(default_factory=list, compare=False)
    order: list[int] = field(default_factory=list, compare=False)
    chosen: dict[tuple[Any, str | int], Codec | None] = field(default_factory=dict, compare=False)

    def codec(self, reading: Reading, saved: Saved) -> Codec | None:
        if reading.use in LOSSY:
            self.chosen[saved.grad_fn, saved.field] = super().codec(reading, saved)
        return None

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        codec, x, node = self.chosen.pop((saved.grad_fn, saved.field), None), saved.tensor, saved.grad_fn
        layer = layer_of(saved) if is_layer(saved, norms=False) else None
        weight = _weight(node, layer.weight) if layer is not None else None
        if codec is None or layer is None or weight is None or codec.why_not(x) is not None:
            return None
        if codec.least_bytes(x.shape, x.dtype) >= x.nbytes:
            return None
        self.order.append(id(weight))
        noise = _noise(codec, x.detach(), self.seed)
        settings = _settings(node) if saved.node in _CONVOLUTIONS else None

        def predict(grad_inputs: Gradients, grad_outputs: Gradients) -> None:
            gradient, own = grad_outputs[0], grad_inputs[layer.weight]
            if gradient is None or own is None:
                return
            square = gradient.detach().float().square()
            if settings is None:
                total = (square.sum(-1) * noise.sum(-1)).sum()
            else:
                like = torch.empty_like(own, dtype=torch.float32)
                wanted = [False, True, False]
                total = torch.ops.aten.convolution_backward(square, noise, like, None, *settings, wanted)[1].sum()
            self.found.append((id(weight), codec, total))

        return predict


def _noise(codec: Codec, x: Tensor, seed: int) -> Tensor:
    """The variance of what each element decodes to, float32: from two codes, the mean of the squared errors."""
    exact = x.float()
    squares = [(codec.decode(codec.encode(x, seed + k)).float() - exact).square() for k in (-1, -2)]
    return (squares[0] + squares[1]) / 2


def _weight(node: Any, index: int) -> Tensor | None:
    """The parameter that a node's input comes from, through views and casts."""
    source = node.next_functions[index][0]
    while source is not None and not hasattr(source, "variable"):
        source = source.next_functions[0][0] if source.next_functions else None
    return None if source is None else source.variable


def _settings(node: Any) -> tuple[Any, ...]:
    """Stride, padding, dilation, transposed, output padding and groups of a convolution."""
    lists = [
        [signed_number(int(n)) for n in getattr(node, f"_saved_{name}")] for name in ("stride", "padding", "dilation")
    ]
    transposed = bool(getattr(node, "_saved_transposed", False))
    more = getattr(node, "_saved_output_padding", None) or [0] * len(lists[0])
    return *lists, transposed, [signed_number(int(n)) for n in more], int(node._saved_groups)
