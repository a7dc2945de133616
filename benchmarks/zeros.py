"""What exact zeros are worth: error of each codec on results of ReLU, with `Zeros` around it and without.

The results of ReLU that convolutions and linear layers read in a small ResNet-18 on photographs, after 150 steps; relative
error of what is decoded, root mean square over the tensors. The zero pattern is kept for ReLU's own backward anyway, so
both cost the same. Run: ``python -m benchmarks.zeros``.
"""

import argparse
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

import division
from benchmarks.rows import provenance, record
from division.bench.released import Misaligned
from division.codecs import Codec, Dual, Group, Zeros
from division.methods import Method, Reading, Saved
from division.train import data, models

STEPS, BATCH, SEEDS = 150, 64, 3


@dataclass(frozen=True)
class Collect(Method):
    """Codes nothing, and keeps a copy of every result of ReLU that backward reads."""

    found: list[Tensor] = field(default_factory=list)
    name = "collect"

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        made = saved.tensor.grad_fn
        if made is not None and made.name() == "ReluBackward0":
            self.found.append(saved.tensor.detach().clone())
        return None


CANDIDATES: dict[str, Codec] = {
    **{f"`dual`, block 8, {bits} bits": Dual(8, bits) for bits in (1, 2, 4, 8)},
    **{f"as published, block 8, {bits} bits": Misaligned(8, bits) for bits in (1, 2, 4, 8)},
    **{f"`group` of 256 of a sample, {bits} bits": Group(bits, 256, "sample") for bits in (1, 2, 4, 8)},
    **{f"`group` of a plane, {bits} bits": Group(bits, None, "plane") for bits in (2, 4)},
    "`group` of the tensor, 4 bits": Group(4, None, "tensor"),
}


def activations(seed: int) -> list[Tensor]:
    """Results of ReLU of one batch in the trained network."""
    torch.manual_seed(seed)
    split, draw = data.load("photos").train, torch.Generator().manual_seed(seed)
    model = models.build("resnet18-cifar", 1, 17, 32, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(STEPS):
        x, y = split.batch(torch.randint(len(split), (BATCH,), generator=draw))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    collect = Collect()
    with division.compress(collect):
        model(split.batch(torch.randint(len(split), (BATCH,), generator=draw))[0])
    return collect.found


def error(codec: Codec, tensors: list[Tensor]) -> float:
    """Relative error over all tensors."""
    with torch.no_grad():
        squares = [((codec.decode(codec.encode(x, i)) - x).norm() / x.norm()) ** 2 for i, x in enumerate(tensors)]
    return float(torch.stack(squares).mean().sqrt())


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    source = provenance()
    rows: list[dict[str, object]] = []
    for seed in range(SEEDS):
        tensors = activations(seed)
        zeros = sum(int((x == 0).sum()) for x in tensors) / sum(x.numel() for x in tensors)
        for name, codec in CANDIDATES.items():
            found = {"plain": error(codec, tensors), "zeros": error(Zeros(codec), tensors)}
            rows.append({"codec": name, "seed": seed, "tensors": len(tensors), "share_of_zeros": zeros, **found})
    record("zeros", [{**row, **source} for row in rows])
