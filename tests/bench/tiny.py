"""A network small enough that a step takes a moment."""

from torch import Tensor, nn


class Tiny(nn.Module):
    """Two blocks of a convolution, a norm and ReLU, and a linear layer: images of 4 cells or more a side, 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        parts = [(3, 4), (4, 4)]
        members = [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in parts]
        self.blocks = nn.Sequential(*members)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.head = nn.Linear(4 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(x)).flatten(1))
