"""Which code suits token tensors: gradient error of candidates on a small vision transformer and a small GPT.

The transformer (torchvision's, 4 blocks, width 96, 64 tokens) classifies crops of photographs, the GPT (4 blocks, width
128, 128 tokens) reads the `text` data; 300 steps of AdamW, 3 seeds. Each candidate codes the inputs of linear layers, norms,
activations and attention; a row holds what is kept of them and the relative error of the whole gradient, mean of 3
draws. Run: ``python -m benchmarks.tokens``.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer

import division
from benchmarks.rows import provenance, record
from division.bench.fidelity import fidelity
from division.codecs import Codec, Dual, Group, Packed
from division.codecs.codec import packed_like
from division.methods import Method, Reading, Saved, Use
from division.methods.places import is_map, tokens_of
from division.train import data, models

STEPS, DRAWS, SEEDS = 300, 3, (0, 1, 2)


@dataclass(frozen=True)
class DualAlongTokens(Codec):
    """The dual codec in its 1-D form along the tokens of ``(samples, tokens, features)``, which may be flattened."""

    inner: Dual
    shape: tuple[int, ...]
    interleaved: bool = False
    name = "dual_along_tokens"
    promises = frozenset({"unbiased"})

    def packed_bytes(self, size: torch.Size, dtype: torch.dtype) -> int:
        return self.inner.packed_bytes((prod(self.shape[:-2]), self.shape[-1], self.shape[-2]), dtype)

    def encode(self, x: Tensor, seed: int) -> Packed:
        return packed_like(x, self.inner.encode(self._map(x), seed).parts)

    def decode(self, packed: Packed) -> Tensor:
        samples, tokens, features = prod(self.shape[:-2]), *self.shape[-2:]
        as_map = replace(packed, size=(samples, features, tokens), stride=(tokens * features, 1, features))
        x = self.inner.decode(as_map).transpose(1, 2)
        x = (x.transpose(0, 1) if self.interleaved else x).reshape(packed.size)
        return torch.empty_strided(x.shape, packed.stride, dtype=x.dtype).copy_(x)

    def _map(self, x: Tensor) -> Tensor:
        samples, tokens, features = prod(self.shape[:-2]), *self.shape[-2:]
        if self.interleaved:
            return x.reshape(tokens, samples, features).permute(1, 2, 0)
        return x.reshape(samples, tokens, features).transpose(1, 2)

    @classmethod
    def examples(cls) -> list[Codec]:
        return [cls(Dual(), (2, 8, 4))]


Bits = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Candidate(Method):
    """One way of coding token tensors.

    Args:
        along: ``"tokens"``, ``"features"`` or ``"dual"``.
        size: of a group or block.
        bits: of inputs of linear layers; norms; activations; queries and keys; values and results.
    """

    along: str
    size: int
    bits: Bits
    name = "candidate"

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        x = saved.tensor
        if is_map(reading, x):
            return Dual(8, 2)
        bits = self.bits[_kind(reading, saved)]
        tokens = tokens_of(reading, saved)
        if tokens is None or self.along == "features":
            return Group(bits, self.size if self.along == "features" else 64, -1)
        if self.along == "tokens":
            count = tokens.group if self.size == 32 else self.size
            return Group(bits, count, tokens.axis, tokens.span, tokens.interleaved)
        shape = x.shape if tokens.span is None else (x.shape[0] // tokens.span, tokens.span, x.shape[1])
        return DualAlongTokens(Dual(self.size, bits), tuple(shape), tokens.interleaved)


def _kind(reading: Reading, saved: Saved) -> int:
    if reading.exponent:
        return 3
    if "Attention" in saved.node:
        return 4
    return 1 if reading.norm else 2 if reading.use is Use.SMOOTH else 0


CANDIDATES: dict[str, Candidate] = {
    "all 2 bits, 32 tokens": Candidate("tokens", 32, (2, 2, 2, 2, 2)),
    "queries and keys 4, else 2, 32 tokens": Candidate("tokens", 32, (2, 2, 2, 4, 2)),
    "queries and keys 8, else 2, 32 tokens": Candidate("tokens", 32, (2, 2, 2, 8, 2)),
    "the same, values and results 4": Candidate("tokens", 32, (2, 2, 2, 8, 4)),
    "the same, activations 4": Candidate("tokens", 32, (2, 2, 4, 8, 4)),
    "the same, norms 4": Candidate("tokens", 32, (2, 4, 4, 8, 4)),
    "the same, values and results 8: as `division`": Candidate("tokens", 32, (2, 4, 4, 8, 8)),
    "as `division`, 16 tokens": Candidate("tokens", 16, (2, 4, 4, 8, 8)),
    "as `division`, 64 tokens": Candidate("tokens", 64, (2, 4, 4, 8, 8)),
    "as `division`, 32 features": Candidate("features", 32, (2, 4, 4, 8, 8)),
    "as `division`, 64 features": Candidate("features", 64, (2, 4, 4, 8, 8)),
    "as `division`, dual, block 8 along tokens": Candidate("dual", 8, (2, 4, 4, 8, 8)),
    "as `division`, dual, block 16 along tokens": Candidate("dual", 16, (2, 4, 4, 8, 8)),
    "linear 2, all else 8, 32 tokens": Candidate("tokens", 32, (2, 8, 8, 8, 8)),
    "all 4 bits, 32 tokens": Candidate("tokens", 32, (4, 4, 4, 4, 4)),
    "linear 4, all else 8, 32 tokens": Candidate("tokens", 32, (4, 8, 8, 8, 8)),
}

Draw = Callable[[], tuple[Tensor, Tensor]]


def vision(draw: torch.Generator) -> tuple[nn.Module, Draw, float]:
    """The transformer, its batches, and a learning rate."""
    split = data.load("photos").train
    model = nn.Sequential(models.GreyAsColour(), VisionTransformer(32, 4, 4, 4, 96, 384, num_classes=17))
    return model, lambda: split.batch(torch.randint(len(split), (64,), generator=draw)), 3e-3


def language(draw: torch.Generator) -> tuple[nn.Module, Draw, float]:
    """The GPT, its batches, and a learning rate."""
    split = data.load("text").train
    model = models.build("gpt", 0, 256, 128, 128)
    return model, lambda: split.batch(torch.randint(len(split), (16,), generator=draw)), 1e-3


NETWORKS = {"ViT": vision, "GPT": language}


def gradient(model: nn.Module, batch: tuple[Tensor, Tensor], context: division.compress) -> Tensor:
    """The whole gradient of one step, flattened."""
    with context:
        loss = models.cross_entropy(model(batch[0]), batch[1])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def measure(network: str, seed: int) -> list[dict[str, object]]:
    """A row for each candidate, after training."""
    torch.manual_seed(seed)
    model, draw, rate = NETWORKS[network](torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    for _ in range(STEPS):
        x, y = draw()
        loss = models.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    batch = draw()
    exact = gradient(model, batch, division.compress("none"))
    rows: list[dict[str, object]] = []
    for name, candidate in CANDIDATES.items():
        context = division.compress(candidate, seed=seed)
        found = fidelity(exact, torch.stack([gradient(model, batch, context) for _ in range(DRAWS)]))
        kept = context.report.packed_bytes / context.report.raw_bytes
        rows.append(
            {"network": network, "seed": seed, "candidate": name, "kept": kept, "relative_error": found.relative_error}
        )
    return rows


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    source = provenance()
    rows = [row for network in NETWORKS for seed in SEEDS for row in measure(network, seed)]
    record("tokens", [{**row, **source} for row in rows])
