"""`imagenet`: JPEG folders, `train/<class>/*` and `val/<class>/*`, decoded batch by batch. Nothing is downloaded."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torchvision.transforms.v2.functional as transform
from PIL import Image
from torch import Tensor
from torchvision.datasets import ImageFolder

from division.train.data.images import DataSet
from division.train.errors import DataNotFoundError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE, RESIZE = 224, 256
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)


def load(data_dir: Path | None) -> DataSet:
    """ImageNet, or any data set in its layout.

    Augmented by a random resized crop of 224x224 and mirroring; without, the shorter side becomes 256 and the middle
    224x224 is taken.
    """
    expected = "expected the folders train/<class>/ and val/<class>/ with image files in them"
    if data_dir is None:
        raise DataNotFoundError(f"imagenet needs --data-dir: {expected}")
    try:
        train, val = (ImageFolder(str(data_dir / part)) for part in ("train", "val"))
    except FileNotFoundError as error:
        raise DataNotFoundError(f"no images found in {data_dir} ({error}): {expected}") from error
    if train.classes != val.classes:
        raise DataNotFoundError(
            f"{data_dir}: train has {len(train.classes)} classes, val {len(val.classes)}; {expected}"
        )
    return DataSet(Folder(train.samples), Folder(val.samples), MEAN, STD, classes=len(train.classes))


@dataclass(frozen=True)
class Folder:
    """Image files with their labels, decoded by a few threads."""

    samples: list[tuple[str, int]]
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(torch.get_num_threads()), repr=False)

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Tensor, augment: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """See `Split`. Each image has its own random stream, so the number of threads changes nothing."""
        chosen = [self.samples[i] for i in indices.tolist()]
        seeds: list[int | None] = [None] * len(chosen)
        if augment is not None:
            seeds = torch.randint(2**62, (len(chosen),), generator=augment).tolist()
        images = list(self.threads.map(_read, [path for path, _ in chosen], seeds))
        return torch.stack(images), torch.tensor([label for _, label in chosen])


def _read(path: str, seed: int | None) -> Tensor:
    with Image.open(path) as file:
        image = file.convert("RGB")
    if seed is None:
        image = transform.center_crop(transform.resize(image, [RESIZE]), [SIZE, SIZE])
    else:
        random = torch.Generator().manual_seed(seed)
        image = transform.resized_crop(image, *crop_box(image.height, image.width, random), size=[SIZE, SIZE])
        if torch.rand((), generator=random) < 0.5:
            image = transform.horizontal_flip(image)
    return transform.normalize(transform.to_dtype(transform.pil_to_tensor(image), torch.float32, scale=True), MEAN, STD)


def crop_box(height: int, width: int, random: torch.Generator) -> tuple[int, int, int, int]:
    """Top, left, height and width of a crop whose area (8 to 100 %) and log aspect ratio (3:4 to 4:3) are uniform.

    Ten tries to draw one that fits inside the image; then the largest middle crop of an allowed aspect ratio.
    """

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=random, dtype=torch.float64).item()

    for _ in range(10):
        area = height * width * uniform(*AREA)
        aspect = math.exp(uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(uniform(0, height - h + 1)), int(uniform(0, width - w + 1)), h, w
    h, w = min(height, round(width / ASPECT[0])), min(width, round(height * ASPECT[1]))
    return (height - h) // 2, (width - w) // 2, h, w
