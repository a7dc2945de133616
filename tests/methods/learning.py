"""A method that learns the mean square of every gradient, and records how large its codes came out."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

import division
from division.attach import Handle
from division.codecs.codec import Codec
from division.methods import Division
from division.methods.learned import Learned, Learner
from division.methods.method import Gradients, Observer
from division.rules import Reading
from division.saved import Saved


class One(Learned):
    """One number by site."""

    numbers: ClassVar[int | None] = 1


@dataclass(frozen=True)
class Learning(Learner):
    """Codes as ``division`` does."""

    name: ClassVar[str] = "learning"
    learned: One = field(default_factory=One, init=False, repr=False, compare=False)
    calls: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def begin_step(self) -> None:
        self.calls.append("begin")
        self.learned.values |= self.learned.seen.read()

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        return Division().lossy(reading, saved)

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        site = self.learned.sites.site(saved)
        self.calls.append(str(site))
        if site is None:
            return None
        self.learned.note_bytes(site, saved, packed_bytes)

        def observed(inputs: Gradients, outputs: Gradients) -> None:
            (gradient,) = (g for g in outputs[:1] if g is not None)
            self.learned.seen.add(site, gradient.square().mean())

        return observed


def heads_on_one_trunk(method: str, steps: int) -> list[Handle]:
    """Three handles that trained together: of a trunk, and of two heads that read what it returns; the latter two."""
    trunk, one, two = nn.Sequential(nn.Linear(64, 64), nn.GELU()), nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 8))
    handles = [division.attach(part, method) for part in (trunk, one, two)]
    for _ in range(steps):
        h = trunk(torch.randn(64, 64))
        (one(h).square().mean() + two(h).square().mean()).backward()
    for handle in handles:
        handle.remove()
    return handles[1:]
