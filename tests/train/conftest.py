"""A network and settings small enough that a whole training takes a moment."""

import pytest
from torch import nn

from division.train import models
from division.train.settings import TrainSettings


def tiny(channels: int, classes: int, width: int) -> nn.Module:
    """One strided convolution with everything a checkpoint must hold: weights, running statistics, dropout."""
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(4 * 16, classes),
    )


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> TrainSettings:
    """Two epochs of three steps, with dropout and augmentation."""
    monkeypatch.setitem(models.OWN, "tiny", tiny)
    return TrainSettings(model="tiny", limit=48, batch_size=16, epochs=2, augment=True)
