"""`photos`: 32x32 grey crops of the photographs that scikit-image carries; the class is the photograph.

Harder than digits: the validation crops come from a part of each photograph that training never sees.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from division.train.data.images import DataSet, Tensors
from division.train.data.packaged import packaged
from division.train.seeds import stream

# one photograph a scene: motorcycle_right.png and microaneurysms.png show what motorcycle_left.png and retina.jpg show
PHOTOGRAPHS = (
    "astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "coffee.png", "coins.png", "grass.png",
    "gravel.png", "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "page.png", "retina.jpg",
    "rocket.jpg", "text.png",
)  # fmt: skip
SIZE = 32
TRAIN_SHARE = 0.7
TRAIN_CROPS, VAL_CROPS = 4000, 10000


def load(data_dir: Path | None = None) -> DataSet:
    """4,000 training crops and 10,000 validation crops, as even over the 17 photographs as the numbers allow.

    Training crops lie in the left 70 % of a photograph, validation crops in the rest, so they share no pixel. The crops
    of a split are distinct, each is standardised by its own mean and deviation, and both splits are ordered by class.

    Args:
        data_dir: unused, the photographs come with scikit-image.
    """
    photographs = [read(name) for name in PHOTOGRAPHS]
    return DataSet(
        train=_crops(photographs, "train", TRAIN_CROPS),
        val=_crops(photographs, "val", VAL_CROPS),
        mean=(0.0,),
        std=(1.0,),
        classes=len(PHOTOGRAPHS),
    )


def read(name: str) -> Tensor:
    """A photograph in grey (the mean of its channels, so that colour tells nothing): float32 (H, W) in [0, 1]."""
    with Image.open(packaged("scikit-image", "skimage", "data", name)) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.float32)  # (H, W, 3)
    return torch.from_numpy(pixels.mean(axis=2) / 255)


def corners(height: int, width: int, part: str, count: int, label: int) -> Tensor:
    """The top left corners (row, column) of `count` distinct crops of a photograph: int64 of shape (count, 2)."""
    border = int(TRAIN_SHARE * width)
    left, right = (0, border) if part == "train" else (border, width)
    rows, columns = height - SIZE + 1, right - left - SIZE + 1
    chosen = torch.randperm(rows * columns, generator=stream(0, "photos", part, label))[:count].sort().values
    return torch.stack((chosen // columns, left + chosen % columns), dim=1)


def _crops(photographs: list[Tensor], part: str, count: int) -> Tensors:
    images, labels = [], []
    for label, photograph in enumerate(photographs):
        share = count // len(photographs) + (label < count % len(photographs))
        windows = photograph.unfold(0, SIZE, 1).unfold(1, SIZE, 1)  # (H - 31, W - 31, 32, 32), a view
        height, width = photograph.shape
        corner = corners(height, width, part, share, label)
        images.append(windows[corner[:, 0], corner[:, 1]])
        labels.append(torch.full((share,), label))
    crops = torch.cat(images)[:, None]
    std, mean = torch.std_mean(crops, dim=(1, 2, 3), keepdim=True)
    return Tensors((crops - mean) / (std + 1e-3), torch.cat(labels), flip=True)
