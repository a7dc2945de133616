"""Networks that read text by name: `gpt` and `llama`, small decoders that predict the next token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

DEFAULT_WIDTH = 128
DEPTH = 4
HEAD = 32  # channels of an attention head
ROTARY_BASE = 10_000.0


class Attention(nn.Module):
    """Causal self-attention; with `rotary`, positions turn queries and keys (Su et al., arXiv 2104.09864).

    Args:
        width: channels, a multiple of `HEAD`.
        context: the longest sequence.
        rotary: also leaves out the biases, as Llama does.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, width: int, context: int, rotary: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=not rotary)
        self.out = nn.Linear(width, width, bias=not rotary)
        self.rotary = rotary
        if rotary:
            speeds = ROTARY_BASE ** (-torch.arange(0, HEAD, 2) / HEAD)  # (HEAD / 2,)
            angles = (torch.arange(context)[:, None] * speeds).repeat(1, 2)  # (context, HEAD)
            self.register_buffer("cosine", angles.cos(), persistent=False)
            self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) to (B, T, width)."""
        heads = self.qkv(x).unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)  # (3, B, heads, T, HEAD)
        q, k, v = heads.unbind()
        if self.rotary:
            q, k = self._turned(q), self._turned(k)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def _turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        length = x.shape[-2]
        return x * self.cosine[:length] + torch.cat((-second, first), dim=-1) * self.sine[:length]


class GatedLinear(nn.Module):
    """SwiGLU (Shazeer, arXiv 2002.05202): the SiLU of one projection times another, 8/3 as wide, projected back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 8 * width // 3
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to (..., width)."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and a feed-forward part, each after a norm and added to what came in."""

    def __init__(self, width: int, context: int, llama: bool) -> None:
        super().__init__()
        norm = nn.RMSNorm if llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attention = Attention(width, context, rotary=llama)
        self.feed: nn.Module = GatedLinear(width)
        if not llama:
            self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) to (B, T, width)."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Decoder(nn.Module):
    """A decoder in the manner of GPT-2 (learned positions, LayerNorm, GELU, the head tied to the embedding) or of Llama
    (rotary positions, RMSNorm, SwiGLU, a head of its own, no biases).

    Takes int64 (B, T) with T up to `context`, gives logits, float (B, T, vocabulary).

    Args:
        vocabulary: how many tokens there are.
        context: the longest sequence.
        width: channels, a multiple of `HEAD`.
        llama: which of the two.

    Raises:
        ValueError: a width that heads can't share.

    Example:
        >>> network = Decoder(vocabulary=256, context=16, width=32, llama=False)
        >>> network(torch.zeros(2, 16, dtype=torch.int64)).shape
        torch.Size([2, 16, 256])
    """  # noqa: D205

    def __init__(self, vocabulary: int, context: int, width: int, llama: bool) -> None:
        super().__init__()
        wrong = problem(width)
        if wrong is not None:
            raise ValueError(wrong)
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = None if llama else nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, context, llama) for _ in range(DEPTH)))
        self.norm = nn.RMSNorm(width) if llama else nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self._draw()
        if not llama:
            self.head.weight = self.tokens.weight

    def _draw(self) -> None:
        """GPT-2's weights: a deviation of 0.02, less by the root of their number where they add to the same sum."""
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                adds = name.endswith(("attention.out.weight", "feed.2.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * DEPTH) ** 0.5 if adds else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 (B, T) to float (B, T, vocabulary)."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def gpt(vocabulary: int, context: int, width: int) -> nn.Module:
    """A small GPT-2; see `Decoder`."""
    return Decoder(vocabulary, context, width, llama=False)


def llama(vocabulary: int, context: int, width: int) -> nn.Module:
    """A small Llama; see `Decoder`."""
    return Decoder(vocabulary, context, width, llama=True)


NETWORKS: dict[str, Callable[[int, int, int], nn.Module]] = {"gpt": gpt, "llama": llama}


def problem(width: int) -> str | None:
    """What is wrong with a width, or None."""
    if width < HEAD or width % HEAD:
        return f"width is {width}: expected a multiple of {HEAD}, the channels of an attention head"
    return None
