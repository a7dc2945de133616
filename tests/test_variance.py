"""Predicted and measured variance of gradients: every kind of layer, and what is left as it was."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import division
from division.codecs import Codec, ErrorBound, Group
from division.methods import Method
from division.rules import Reading
from division.saved import Saved


@dataclass(frozen=True)
class Few(Method):
    """Everything in few bits."""

    name: ClassVar[str] = "few"
    size: int = 64

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        return Group(2, self.size, "sample")


def after(layer: nn.Module, size: tuple[int, ...]) -> tuple[nn.Module, Tensor]:
    """A layer whose input an operation made, and a batch."""
    return nn.Sequential(nn.Identity(), nn.Hardtanh(-9, 9), layer), torch.randn(size).requires_grad_()


LAYERS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "conv2d": lambda: after(nn.Conv2d(4, 6, 3, padding=1), (4, 4, 9, 9)),
    "stride, dilation, groups": lambda: after(nn.Conv2d(4, 8, 3, 2, 2, dilation=2, groups=2), (4, 4, 13, 13)),
    "depthwise": lambda: after(nn.Conv2d(6, 6, 3, padding=1, groups=6), (4, 6, 9, 9)),
    "conv1d": lambda: after(nn.Conv1d(4, 6, 5), (6, 4, 60)),
    "conv3d": lambda: after(nn.Conv3d(3, 4, 3), (3, 3, 6, 7, 6)),
    "transposed": lambda: after(nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1), (4, 4, 8, 8)),
    "linear": lambda: after(nn.Linear(90, 12), (24, 90)),
    "linear without bias": lambda: after(nn.Linear(90, 12, bias=False), (24, 90)),
    "linear of tokens": lambda: after(nn.Linear(90, 12), (4, 9, 90)),
}


def square(output: Tensor) -> Tensor:
    return (output * torch.linspace(-1, 2, output.shape[-1])).square().mean()


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer(name: str) -> None:
    torch.manual_seed(0)
    model, x = LAYERS[name]()
    found = division.gradient_variance(model, x, square, Few(), draws=60, layers_only=True)
    (layer,) = found.layers
    assert layer.name == "2.weight"
    assert layer.codec == Group(2, 64, "sample")
    assert layer.measured > 0
    assert layer.predicted == pytest.approx(layer.measured, rel=0.2)
    assert found.predicted == layer.predicted
    assert found.measured == pytest.approx(layer.measured, rel=1e-3)  # a bias has no noise
    assert layer.gradient < found.gradient or name == "linear without bias"


@pytest.mark.parametrize(("method", "most"), [("comet", 1.3), ("jpeg-act", 1.3), ("blpa-4", 12), ("low-frequency", 12)])
def test_codes_that_are_not_unbiased_by_their_error(method: str, most: float) -> None:
    """They are the same in every draw, or nearly: what they do to the gradient is an error, not a variance."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    found = division.gradient_variance(model, torch.randn(8, 3, 16, 16), square, method, draws=4, layers_only=True)
    (layer,) = found.layers
    assert "unbiased" not in layer.codec.promises
    assert 0 < layer.measured < layer.gradient
    assert 0.8 < layer.measured / layer.predicted < most


def test_one_layer_by_hand() -> None:
    """f (1 - f) step^2 from the codes, against the mean squared error it stands for."""
    torch.manual_seed(0)
    x = torch.randn(64, 50)
    codec = Group(2, 50, "sample")
    packed = codec.encode(x, 0)
    step = packed.parts[1][..., 1].float()
    error = (codec.decode(packed) - x).abs()
    noise = error * (step - error)  # of an element f steps above a code: f (1 - f) step^2, whichever way it went
    g = torch.randn(64, 3)
    by_hand = (noise.T @ g.square()).sum()
    drawn = torch.stack([codec.decode(codec.encode(x, seed)).T @ g for seed in range(300)])
    assert float(by_hand) == pytest.approx(float(drawn.var(0).sum()), rel=0.1)
    model = nn.Sequential(nn.Hardtanh(-99, 99), nn.Linear(50, 3, bias=False))
    found = division.gradient_variance(
        model, x.clone().requires_grad_(), lambda y: (y * g).sum(), Few(50), draws=2, layers_only=True
    )
    assert found.predicted == pytest.approx(float(by_hand), rel=0.1)


def test_norms_disturb_what_comes_before() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)
    )
    x = torch.randn(4, 3, 12, 12)
    alone, whole = (
        division.gradient_variance(model, x, square, Few(), draws=24, layers_only=only) for only in (True, False)
    )
    assert [layer.name for layer in alone.layers] == ["2.weight", "5.weight"]
    assert alone.predicted == pytest.approx(whole.predicted, rel=1e-6)
    assert whole.measured > 1.05 * alone.measured


def test_everything_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Conv2d(8, 4, 3))
    x = torch.randn(4, 3, 12, 12)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random, method = torch.get_rng_state(), division.methods.ActNN()
    first = division.gradient_variance(model, x, square, method, draws=3)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert method.learned.steps == 0
    assert division.gradient_variance(model, x, square, method, draws=3) == first


def test_what_a_method_learns_from_values_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), torch.randn(4, 3, 12, 12)
    context = division.compress("mesa", model=model)
    with context:
        loss = square(model(x))
    loss.backward()
    before = context.method.state_dict()
    assert before["sites"]
    division.gradient_variance(model, 100 * x, square, context.method, draws=2)
    assert context.method.state_dict() == before


@pytest.mark.parametrize("named", [True, False])
def test_what_a_method_has_learned_counts(named: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), torch.randn(4, 3, 12, 12)
    context = division.compress("comet", model=model if named else None)
    for _ in range(2):
        with context:
            loss = square(model(x))
        loss.backward()
    sites = context.method.state_dict()["sites"]
    ((bound, _),) = (row for site, row in sites.items() if site.startswith("2.weight" if named else "parameter 1"))
    found = division.gradient_variance(model, x, square, context.method, draws=2)
    assert found.layers[0].codec == ErrorBound(bound)


def test_methods_that_run_blocks_again_and_what_is_no_model_are_refused() -> None:
    model, x = after(nn.Conv2d(4, 6, 3), (2, 4, 8, 8))
    for method in (division.methods.Checkpoint(bits=4), "swap-checkpoint-division"):
        with pytest.raises(ValueError, match=r"which runs blocks of the model again .* expected one that codes"):
            division.gradient_variance(model, x, square, method)
    with pytest.raises(TypeError, match=r"got 3 as the model, expected a torch\.nn\.Module"):
        division.gradient_variance(3, x, square)  # type: ignore[arg-type]


def test_an_exact_method_has_none() -> None:
    model, x = after(nn.Conv2d(4, 6, 3), (2, 4, 8, 8))
    found = division.gradient_variance(model, x, square, "lossless", draws=2)
    assert (found.layers, found.predicted, found.measured) == ((), 0, 0.0)
    assert found.gradient > 0


@pytest.mark.parametrize("draws", [1, 0, True, 2.5])
def test_too_few_draws_are_refused(draws: object) -> None:
    with pytest.raises(ValueError, match="expected an integer of at least 2"):
        division.gradient_variance(nn.Linear(2, 2), torch.randn(2, 2), square, draws=draws)  # type: ignore[arg-type]
