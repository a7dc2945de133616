"""Data sets by name. A new one is a file with a `load(data_dir)` and a line in `SETS`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from division.train.data.images import DataSet, Split, Subset, Tensors

__all__ = ["SETS", "DataSet", "Kind", "Split", "Subset", "Tensors", "load"]


@dataclass(frozen=True)
class Kind:
    """What is known of a data set before it is read."""

    channels: int  # 0 for text
    size: int  # of a square image, or of a sequence
    classes: int | None  # None: as many as there are folders
    augment: bool  # by default
    needs_folder: bool
    source: str  # module:function

    @property
    def text(self) -> bool:
        """Whether it holds sequences of tokens, int64 (B, size), with a label for each token."""
        return self.channels == 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image or sequence."""
        return (self.size,) if self.text else (self.channels, self.size, self.size)

    @property
    def labels(self) -> int:
        """How many labels one image or sequence has."""
        return self.size if self.text else 1

    @property
    def unit(self) -> str:
        """What is counted, in plural."""
        return "sequences" if self.text else "images"


SETS: dict[str, Kind] = {
    "digits": Kind(1, 32, 10, augment=False, needs_folder=False, source="digits:load"),
    "photos": Kind(1, 32, 17, augment=False, needs_folder=False, source="photos:load"),
    "cifar10": Kind(3, 32, 10, augment=True, needs_folder=True, source="cifar:load10"),
    "cifar100": Kind(3, 32, 100, augment=True, needs_folder=True, source="cifar:load100"),
    "imagenet": Kind(3, 224, None, augment=True, needs_folder=True, source="imagenet:load"),
    "text": Kind(0, 128, 256, augment=False, needs_folder=False, source="text:load"),
}


def load(name: str, data_dir: Path | None = None, limit: int | None = None) -> DataSet:
    """Reads a data set.

    Args:
        name: a key of `SETS`.
        data_dir: where `cifar10`, `cifar100` and `imagenet` lie.
        limit: at most so many images or sequences of each split, spread evenly over it.

    Raises:
        DataNotFoundError: it is not there, saying where it was looked for.
    """
    module, function = SETS[name].source.split(":")
    data: DataSet = getattr(importlib.import_module(f"{__name__}.{module}"), function)(data_dir)
    if limit is None:
        return data
    train, val = (Subset(split, min(limit, len(split))) for split in (data.train, data.val))
    return DataSet(train, val, data.mean, data.std, data.classes)
