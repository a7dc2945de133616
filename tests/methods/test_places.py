"""Which dims of a saved tensor count tokens, for tensors that real layers save."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import division
from division.codecs.codec import Codec
from division.methods import Method
from division.methods.places import Tokens, is_map, tokens_of
from division.rules import Reading
from division.saved import Saved

Found = dict[tuple[str, str], Tokens | str | None]


@dataclass(frozen=True)
class Probe(Method):
    """Codes nothing, and notes how each tensor would be read."""

    found: Found = field(default_factory=dict)

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        is_plane = is_map(reading, saved.tensor)
        self.found[saved.node, str(saved.field)] = "map" if is_plane else tokens_of(reading, saved)
        return None


def reads(run: Callable[[Tensor], Tensor], *shape: int) -> Found:
    probe = Probe()
    x = torch.randn(shape, requires_grad=True) * 1.0
    with division.compress(probe):
        run(x)
    return probe.found


LINEAR, BATCHED = ("AddmmBackward0", "mat1"), "BmmBackward0"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 64, 8), Tokens(0, 64, 32)),
        ((3, 197, 8), Tokens(0, 197, 33)),
        ((2, 7, 7, 8), Tokens(0, 49, 25)),
        ((2, 5, 4, 3, 8), Tokens(0, 60, 30)),
        ((1, 64, 8), Tokens(0, 64, 32)),
        ((2, 7, 8), None),
        ((64, 8), None),
    ],
    ids=str,
)
def test_a_linear_layer_knows_what_was_flattened(shape: tuple[int, ...], expected: Tokens | None) -> None:
    layer = nn.Linear(8, 5)
    assert reads(layer, *shape)[LINEAR] == expected
    # Under autocast the flattened view is one of a copy.
    with torch.autocast("cpu", torch.bfloat16):
        assert reads(layer, *shape)[LINEAR] == expected


def test_a_layer_that_flattens_itself() -> None:
    """As some language models do."""
    weight, bias = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(5))
    found = reads(lambda x: torch.addmm(bias, x.view(-1, 8), weight), 2, 40, 8)
    assert found[LINEAR] == Tokens(0, 40, 40)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_multihead_attention_brings_samples_behind_tokens(dropout: float) -> None:
    """Of (samples, tokens, features) it makes (tokens, samples, features), before its projections flatten that."""
    attention = nn.MultiheadAttention(16, 2, dropout, batch_first=True)
    found = reads(lambda x: attention(x, x, x, need_weights=False)[0], 3, 50, 16)
    assert found["MmBackward0", "self"] == found[LINEAR] == Tokens(0, 50, 25, interleaved=True)


def test_heads_are_features() -> None:
    layer = nn.Linear(24, 5)
    found = reads(lambda x: layer(x.transpose(1, 2).reshape(-1, 24)), 3, 4, 50, 6)
    assert found[LINEAR] == Tokens(0, 50, 25)
    found = reads(lambda x: layer(x.permute(2, 0, 1, 3).reshape(-1, 24)), 3, 4, 50, 6)
    assert found[LINEAR] == Tokens(0, 50, 25, interleaved=True)
    for swap in (lambda x: x.transpose(-2, -3), lambda x: x.permute(1, -3, 2), lambda x: x.permute(-2, -3, -1)):
        found = reads(lambda x, swap=swap: layer(swap(x).reshape(-1, 24)), 3, 50, 24)  # type: ignore[misc]
        assert found[LINEAR] == Tokens(0, 50, 25, interleaved=True)
    # Tokens and heads in one: what the dims are then is anyone's guess.
    assert reads(lambda x: nn.Linear(12, 5)(x.transpose(1, 2).reshape(-1, 12)), 3, 4, 50, 6)[LINEAR] is None


def test_rows_that_come_from_nowhere_have_no_tokens() -> None:
    assert reads(lambda x: F.linear(x[0], torch.randn(5, 8), torch.randn(5)), 2, 40, 8) == {}
    weight = nn.Parameter(torch.randn(5, 8))
    assert reads(lambda x: F.linear(x[:, 0], weight, torch.randn(5)), 64, 40, 8)[LINEAR] is None


def test_products_of_attention_know_the_tokens_by_where_features_lie() -> None:
    def attend(x: Tensor) -> Tensor:
        q, k, v = (x * i for i in (1.0, 2.0, 3.0))
        return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)

    probe = Probe()
    x = torch.randn(6, 50, 16, requires_grad=True) * 1.0
    with division.compress(probe):
        scores = torch.bmm(x * 2.0, (x * 3.0).transpose(1, 2))
    assert probe.found[BATCHED, "self"] == Tokens(1, None, 25)
    assert probe.found[BATCHED, "mat2"] == Tokens(2, None, 25)
    with division.compress(probe):
        torch.bmm(scores.softmax(-1), x * 2.0)
    assert probe.found[BATCHED, "mat2"] == Tokens(1, None, 25)
    assert reads(attend, 6, 50, 16)[BATCHED, "mat2"] == Tokens(1, None, 25)


def test_norms_take_the_last_dim_for_features() -> None:
    norm = ("NativeLayerNormBackward0", "input")
    assert reads(nn.LayerNorm(8), 2, 64, 8)[norm] == Tokens(1, None, 32)
    assert reads(nn.LayerNorm(8), 2, 14, 14, 8)[norm] == Tokens((1, 2), None, 33)
    assert reads(nn.LayerNorm(8), 2, 56, 56, 8)[norm] == Tokens(2, None, 28)
    assert reads(nn.LayerNorm(8), 64, 8)[norm] is None


def test_an_activation_behind_a_linear_layer_has_features_last_and_behind_a_convolution_a_map() -> None:
    gelu = ("GeluBackward0", "self")
    mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU())
    assert reads(mlp, 2, 14, 14, 8)[gelu] == Tokens((1, 2), None, 33)
    assert reads(mlp, 2, 64, 8)[gelu] == Tokens(1, None, 32)
    assert reads(mlp, 64, 8)[gelu] is None
    assert reads(nn.Sequential(nn.Conv2d(8, 16, 3), nn.GELU()), 2, 8, 14, 14)[gelu] == "map"


def test_predict_sees_the_same() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    x = torch.randn(2, 48, 32)
    with division.compress(inputs=True) as context:
        model(x).sum()
    predicted = division.predict(model, x)
    codecs = {r.owner: r.codec for r in context.report.records if "GELU" in r.owner.upper()}
    foretold = {f"{r.node}.{r.field}": r.codec for r in predicted.report.records if "Gelu" in r.node}
    assert codecs == foretold
    assert "axis" in str(foretold)


@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 40, 40), -1), ((6, 40, 40), 2), ((4, 5, 16, 16), 1), ((40, 40), 0)])
def test_a_softmax_that_is_nan_leaves_the_others_alone(shape: tuple[int, ...], dim: int) -> None:
    """As of an attention row that is masked as a whole."""
    x = torch.randn(shape)
    x.movedim(dim, -1)[..., 0, :] = -torch.inf
    x.requires_grad_()
    gradients: list[Tensor] = []
    for context in (division.compress("division"), division.disabled()):
        with context:
            y = (x * 1).softmax(dim)
            loss = (y.movedim(dim, -1)[..., 1:, :] * torch.arange(shape[dim])).square().sum()
        gradients += torch.autograd.grad(loss, x)
    ours, plain = gradients
    assert plain.isnan().any()
    assert torch.equal(ours.isnan(), plain.isnan())
    known = ~plain.isnan()
    assert (ours[known] - plain[known]).norm() < 0.05 * plain[known].norm()
