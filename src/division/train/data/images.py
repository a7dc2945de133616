"""What a data set hands to the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Split(Protocol):
    """The images of one split, or its text (`Sequences` of text.py), read by index."""

    def __len__(self) -> int:
        """How many images or sequences there are."""
        ...

    def batch(self, indices: Tensor, augment: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Images and labels.

        Args:
            indices: int64 of shape (B,).
            augment: random stream for the augmentation; without one the images come as they are.

        Returns:
            standardised images, float32 of shape (B, C, H, W), and labels, int64 of shape (B,), both on the CPU.
        """
        ...


@dataclass(frozen=True)
class DataSet:
    """Training and validation images or text, with what images were standardised by (one figure a channel)."""

    train: Split
    val: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int


@dataclass(frozen=True)
class Tensors:
    """A split held in memory: standardised images, float32 (N, C, H, W), and labels, int64 (N,).

    `pad` and `flip` are the augmentation: with `flip` half of the images are mirrored; then `pad` pixels are added on
    every side ("constant": of the value `border`, one a channel; or "reflect") and a window of the old size is cut out
    anywhere.
    """

    images: Tensor
    labels: Tensor
    pad: int = 0
    pad_mode: str = "constant"
    border: tuple[float, ...] = ()
    flip: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, augment: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """See `Split`."""
        images = self.images[indices]
        if augment is not None:
            images = self._augmented(images, augment)
        return images, self.labels[indices]

    def _augmented(self, images: Tensor, random: torch.Generator) -> Tensor:
        count, _, height, width = images.shape
        if self.flip:
            mirrored = torch.rand(count, generator=random) < 0.5
            images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        if self.pad:
            padded = self._padded(images)  # (B, C, H + 2 pad, W + 2 pad)
            corner = torch.randint(2 * self.pad + 1, (2, count), generator=random)
            rows = corner[0][:, None] + torch.arange(height)  # (B, H)
            columns = corner[1][:, None] + torch.arange(width)  # (B, W)
            taken = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
            images = taken.permute(0, 3, 1, 2).contiguous()
        return images

    def _padded(self, images: Tensor) -> Tensor:
        sides = (self.pad,) * 4
        if self.pad_mode != "constant":
            return torch.nn.functional.pad(images, sides, mode=self.pad_mode)
        border = torch.tensor(self.border or (0.0,) * images.shape[1])[None, :, None, None]
        return torch.nn.functional.pad(images - border, sides) + border


@dataclass(frozen=True)
class Subset:
    """`count` images or sequences of another split, spread evenly over it."""

    split: Split
    count: int

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Tensor, augment: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """See `Split`."""
        return self.split.batch(indices * len(self.split) // self.count, augment)
