"""Logarithms of probabilities: what is decoded has the exponentials of the input, and minus infinity stays."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import division
from division.codecs import Group, Logs, logs
from division.methods import FixedBits, Method
from tests.codecs.contract import decode, encode, same_code


def log_probabilities(*shape: int, dim: int = -1, seed: int = 0) -> Tensor:
    return (4 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).log_softmax(dim)


def test_the_probabilities_are_what_the_inner_codec_makes_of_them() -> None:
    x = log_probabilities(6, 40)
    packed = encode(Logs(Group(8, 32, -1)), x, 3)
    inner = encode(Group(8, 32, -1), x.exp(), 3)
    assert same_code(packed, inner)
    expected = decode(Group(8, 32, -1), inner).clamp_min(0).log()
    assert torch.equal(decode(Logs(Group(8, 32, -1)), packed), expected)


def test_the_mean_over_seeds_of_the_probabilities_is_the_input() -> None:
    x = log_probabilities(5, 64)
    mean = torch.stack([decode(Logs(), encode(Logs(), x, seed)).exp() for seed in range(400)]).mean(0)
    step = x.exp().unflatten(-1, (2, 32)).amax(-1).repeat_interleave(32, -1) / 255
    assert bool(((mean - x.exp()).abs() <= 5 * step / 2 / math.sqrt(400) + 1e-6).all())


@pytest.mark.parametrize("codec", Logs.examples(), ids=repr)
def test_minus_infinity_is_a_probability_of_zero_and_nan_shows(codec: Logs) -> None:
    logits = torch.randn(2, 4, 16, 32)
    logits[..., ::3] = -math.inf
    x = logits.log_softmax(-1)
    out = decode(codec, encode(codec, x, 1))
    assert not out.isnan().any()
    assert bool((out[..., ::3] == -math.inf).all())
    x[1, 2, 3, 4] = math.nan
    out = decode(codec, encode(codec, x, 1))
    assert out[1, 2, 3, 4].isnan()
    assert not out[0].isnan().any()


def test_pieces_have_noise_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_CHUNK", 3 * 64)
    x = log_probabilities(1, 64).repeat(7, 1)
    packed = encode(Logs(), x, 0)
    assert len(packed.parts) == 2 * 3
    assert packed.nbytes == Logs().packed_bytes(x.shape, x.dtype) == 7 * (64 + 8)
    out = decode(Logs(), packed)
    assert len({tuple(row.tolist()) for row in out}) == 7
    assert bool(((out.exp() - x.exp()).abs() <= x.exp().max() / 250).all())


@pytest.mark.parametrize("method", ["division", FixedBits(8), FixedBits(8, 32)], ids=str)
@pytest.mark.parametrize("shape", [(64, 96), (2, 32, 96), (4, 24, 16, 16)], ids=str)
def test_cross_entropy_has_the_gradient_it_should(method: str | Method, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator, requires_grad=True)
    dim = 1 if len(shape) == 4 else len(shape) - 1
    target = torch.randint(shape[dim], [n for d, n in enumerate(shape) if d != dim], generator=generator)

    def loss() -> Tensor:
        logits = x * 3
        flat = logits if len(shape) == 4 else logits.flatten(0, -2)
        return F.cross_entropy(flat, target if len(shape) == 4 else target.flatten())

    (exact,) = torch.autograd.grad(loss(), x)
    with division.compress(method, seed=0) as context:
        noisy = loss()
    coded = {f"{r.node}.{r.field}": r for r in context.report.records if r.codec}
    assert coded["LogSoftmaxBackward0.result"].codec.startswith("logs")
    assert coded["LogSoftmaxBackward0.result"].packed_bytes < x.nbytes / 3
    (gradient,) = torch.autograd.grad(noisy, x)
    assert float((gradient - exact).norm() / exact.norm()) < 0.02


def test_lossless_leaves_them() -> None:
    x = torch.randn(8, 100, requires_grad=True)
    with division.compress("lossless") as context:
        (x + 0).log_softmax(-1).sum()
    assert [r.left for r in context.report.records] == ["the method leaves this use"]


def test_its_settings_survive_json() -> None:
    codec = Logs(Group(4, 8))
    assert division.codecs.from_config(codec.config()) == codec
