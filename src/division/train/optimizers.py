"""Optimizers by name: what each can be set to, its defaults, and how it is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import nn


@dataclass(frozen=True)
class SGD:
    """`torch.optim.SGD`; the defaults are those that residual networks are commonly trained with on small images."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """One for these parameters."""
        return torch.optim.SGD(parameters, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class AdamW:
    """`torch.optim.AdamW`, with torch's own defaults and betas."""

    lr: float = 1e-3
    weight_decay: float = 0.01

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """One for these parameters."""
        return torch.optim.AdamW(parameters, self.lr, weight_decay=self.weight_decay)


KINDS: dict[str, type[SGD | AdamW]] = {"sgd": SGD, "adamw": AdamW}


def foreign(name: str, given: Iterable[str]) -> list[str]:
    """Those settings of `given` that an optimizer does not have.

    Example:
        >>> foreign("adamw", ["lr", "momentum"])
        ['momentum']
    """
    known = {field.name for field in fields(KINDS[name])}
    return [setting for setting in given if setting not in known]
