"""`cifar10` and `cifar100`, read from the folder the official archive unpacks to. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
import torchvision

from division.train.data.images import DataSet, Tensors
from division.train.errors import DataNotFoundError

MEAN10, STD10 = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
MEAN100, STD100 = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)


def load10(data_dir: Path | None) -> DataSet:
    """CIFAR-10: 50,000 and 10,000 colour images; augmented by mirroring and a crop out of 4 zero pixels around."""
    return _load(torchvision.datasets.CIFAR10, data_dir, MEAN10, STD10, classes=10, pad_mode="constant")


def load100(data_dir: Path | None) -> DataSet:
    """CIFAR-100: the same, with 4 reflected pixels around."""
    return _load(torchvision.datasets.CIFAR100, data_dir, MEAN100, STD100, classes=100, pad_mode="reflect")


def _load(
    kind: type[torchvision.datasets.CIFAR10],
    data_dir: Path | None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    classes: int,
    pad_mode: str,
) -> DataSet:
    if data_dir is None:
        raise DataNotFoundError(f"{kind.__name__} needs --data-dir, the folder that holds {kind.base_folder}/")
    try:
        parts = [kind(data_dir, train=train, download=False) for train in (True, False)]
    except RuntimeError as error:
        raise DataNotFoundError(
            f"no complete {kind.__name__} in {data_dir / kind.base_folder}: expected the files of the official archive "
            f"{kind.filename} there; unpack it in {data_dir}, or give its folder with --data-dir"
        ) from error
    centre, scale = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    border = tuple(-m / s for m, s in zip(mean, std, strict=True))
    splits = []
    for part in parts:
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).float() / 255  # (N, 3, 32, 32)
        images = ((images - centre) / scale).contiguous()
        splits.append(Tensors(images, torch.tensor(part.targets), pad=4, pad_mode=pad_mode, border=border, flip=True))
    return DataSet(splits[0], splits[1], mean, std, classes)
