"""The networks of `bench step`: those of `division.train`, with the CIFAR form of ResNet-18 at small images."""

from __future__ import annotations

import torch
from torch import nn

from division.bench.baselines import blocks
from division.train import models

CLASSES = 1000
#: Up to this size `resnet18` is the network of the papers on CIFAR: a 3x3 stem without pooling, 64 channels wide.
SMALL = 64
_CIFAR = "resnet18-cifar"


def network_of(model: str, image_size: int) -> tuple[str, int | None]:
    """The name in `division.train.models` and the width that are meant.

    Example:
        >>> network_of("resnet18", 32), network_of("resnet18", 224)
        (('resnet18-cifar', 64), ('resnet18', None))
    """
    cifar = model == _CIFAR or (model == "resnet18" and image_size <= SMALL)
    return (_CIFAR, 64) if cifar else (model, None)


def classes(model: str, image_size: int) -> int:
    """10 for the CIFAR form, 1000 for the others."""
    return 10 if network_of(model, image_size)[0] == _CIFAR else CLASSES


def build(model: str, image_size: int) -> nn.Module:
    """The network in training mode, freshly initialised from torch's global generator."""
    name, width = network_of(model, image_size)
    return models.build(name, 3, classes(model, image_size), image_size, width)


def problem(model: str, image_size: int, batch_size: int, *, blockwise: bool = False) -> str | None:
    """Why a network can't be had, can't train on such a batch, or can't be checkpointed block by block; or None."""
    name, width = network_of(model, image_size)
    shape = (batch_size, 3, image_size, image_size)
    wrong = models.problem(name, width) or models.misfit(name, shape, classes(model, image_size), width)
    if wrong is None and blockwise and not blocks(_on_meta(model, image_size)):
        return f"model {model!r} is no list of blocks: leave checkpoint out of the methods"
    return wrong


def _on_meta(model: str, image_size: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return build(model, image_size)
