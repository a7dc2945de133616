"""What coding one tensor alone does to the gradient, by brute force."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

import division
from division.codecs.codec import Codec
from division.codecs.group import Group
from division.methods import Method
from division.rules import Reading
from division.saved import Saved
from division.sites import Sites
from tests.models import Copy


@dataclass(frozen=True)
class Alone(Method):
    """Codes the tensors of some sites, and keeps all others exactly."""

    name: ClassVar[str] = "alone"
    sites: Sites
    chosen: frozenset[str]
    codec_there: Codec

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        return self.codec_there if self.sites.site(saved) in self.chosen else Copy()


def gradient(model: nn.Module, step: Callable[[], Tensor], method: str | Method, seed: int = 0) -> Tensor:
    """The gradient of all parameters as one vector."""
    with division.compress(method, seed=seed):
        loss = step()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def effects(
    model: nn.Module, step: Callable[[], Tensor], items: Sequence[frozenset[str]], bits: int, seeds: int
) -> list[float]:
    """Of each set of sites, the mean square of the gradient's error with these tensors alone coded."""
    sites = Sites()
    sites.bind(dict(model.named_parameters()))
    exact = gradient(model, step, "none")
    found = []
    for item in items:
        alone = Alone(sites, item, Group(bits, 256, "tensor"))
        errors = [(gradient(model, step, alone, seed) - exact).square().sum().item() for seed in range(seeds)]
        found.append(sum(errors) / seeds)
    return found


def ranks(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).argsort().argsort().double()


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation of values without ties."""
    return float(torch.corrcoef(torch.stack([ranks(one), ranks(other)]))[0, 1])


def items_of(sensitivities: Mapping[str, float]) -> dict[frozenset[str], float]:
    """Sites that share a sensitivity, as they do where they save one tensor, and that sensitivity."""
    together: dict[float, set[str]] = {}
    for site, value in sensitivities.items():
        together.setdefault(value, set()).add(site)
    return {frozenset(sites): value for value, sites in together.items()}
