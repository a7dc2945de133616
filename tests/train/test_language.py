import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from division.train import language, models
from division.train.language import Attention, Decoder


def tokens(count: int = 12) -> Tensor:
    return torch.randint(256, (2, count), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", language.NETWORKS)
def test_a_logit_depends_on_no_later_token(name: str) -> None:
    network, x = models.build(name, 0, 256, 16, width=32), tokens()
    before = network(x)
    assert before.shape == (2, 12, 256)
    for place in (0, 5, 11):
        changed = x.clone()
        changed[:, place] = (x[:, place] + 1) % 256
        after = network(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place])
        assert ((after - before)[:, place:].abs().amax(-1) > 0).all()


@pytest.mark.parametrize("name", language.NETWORKS)
def test_the_first_loss_is_that_of_a_guess(name: str) -> None:
    logits = models.build(name, 0, 256, 64)(tokens(64)).detach()
    assert abs(float(models.cross_entropy(logits, torch.randint(256, (2, 64)))) - math.log(256)) < 0.2


def test_gpt_ties_its_head_and_llama_has_no_bias() -> None:
    gpt, llama = (models.build(name, 0, 256, 16, width=64) for name in ("gpt", "llama"))
    assert isinstance(gpt, Decoder)
    assert isinstance(llama, Decoder)
    assert gpt.head.weight is gpt.tokens.weight
    assert llama.head.weight is not llama.tokens.weight
    assert not [name for name, _ in llama.named_parameters() if "bias" in name]
    assert {type(m) for m in llama.modules()} & {nn.LayerNorm, nn.GELU} == set()
    # Embedding, positions, per block 12 w² + 13 w, last norm; embedding, per block (4 + 8) w² + 2 w, last norm, head.
    w = 64
    assert sum(p.numel() for p in gpt.parameters()) == (256 + 16) * w + 4 * (12 * w * w + 13 * w) + 2 * w
    inner = 8 * w // 3
    assert sum(p.numel() for p in llama.parameters()) == 2 * 256 * w + 4 * (4 * w * w + 3 * w * inner + 2 * w) + w


@pytest.mark.parametrize("rotary", [True, False])
def test_attention_is_the_formula(rotary: bool) -> None:
    attention, x = Attention(64, 10, rotary).double(), torch.randn(2, 7, 64, dtype=torch.float64)
    q, k, v = (part.unflatten(-1, (2, 32)).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=-1))
    if rotary:
        # As complex numbers: channel i and i + 16 of a head turn by position / 10000^(i / 16).
        angles = torch.arange(7)[:, None] * 10_000.0 ** (-torch.arange(16) / 16)
        turns = torch.polar(torch.ones(7, 16, dtype=torch.float64), angles.double())
        q, k = (torch.complex(part[..., :16], part[..., 16:]) * turns for part in (q, k))
        scores = (q @ k.mH).real
    else:
        scores = q @ k.mT
    scores = (scores / 32**0.5).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -math.inf)
    expected = attention.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected, rtol=1e-5, atol=1e-6)


def test_cross_entropy_is_the_mean_over_every_token() -> None:
    logits, labels = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    each = [-logits[b, t].log_softmax(-1)[labels[b, t]] for b in range(2) for t in range(5)]
    torch.testing.assert_close(models.cross_entropy(logits, labels), torch.stack(each).mean())
    flat = torch.randn(4, 7)
    assert torch.equal(models.cross_entropy(flat, labels[0, :4]), F.cross_entropy(flat, labels[0, :4]))


@pytest.mark.parametrize(
    ("name", "width", "text", "said"),
    [
        ("gpt", 40, True, "multiple of 32"),
        ("gpt", 0, True, "multiple of 32"),
        ("resnet18", None, True, "expected gpt, llama"),
        ("llama", None, False, "reads text"),
        ("gpt", 64, True, None),
    ],
)
def test_networks_fit_their_data(name: str, width: int | None, text: bool, said: str | None) -> None:
    found = models.problem(name, width, text)
    assert found is None if said is None else said in str(found)
