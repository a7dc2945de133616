"""The networks of `bench fidelity`, each with real data to train it on for a little while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from division.train import data, language, models

Batch = tuple[Tensor, Tensor]
TEXT = "text"
#: Of a network that is no transformer, and of one.
SGD, ADAM = 0.02, 5e-4


@dataclass(frozen=True)
class Task:
    """A network, the size of what it sees, and how it is trained.

    Args:
        model: a name of `division.train.models`.
        size: of the square photographs, or of the sequences of text.
        batch_size: images or sequences a step.
        width: as `division.train.models.build` takes it.
        adam: trained by AdamW, not by SGD with momentum.
    """

    model: str
    size: int
    batch_size: int
    width: int | None = None
    adam: bool = False

    @property
    def text(self) -> bool:
        """Whether it reads text."""
        return self.model in language.NETWORKS

    def build(self, device: str) -> nn.Module:
        """The network in training mode, freshly initialised from torch's global generator."""
        channels, classes = (0, data.SETS[TEXT].classes or 0) if self.text else (3, len(_photographs(self.size)))
        return models.build(self.model, channels, classes, self.size, self.width).to(device)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """What trains it."""
        if self.adam:
            return torch.optim.AdamW(model.parameters(), ADAM)
        return torch.optim.SGD(model.parameters(), SGD, momentum=0.9)

    def batches(self, seed: int, device: str) -> Callable[[], Batch]:
        """A function that draws batch after batch: crops of photographs, or sequences of text, and their labels."""
        generator = torch.Generator().manual_seed(seed)

        def draw() -> Batch:
            x, y = _sequences(self, generator) if self.text else _crops(self, generator)
            return x.to(device), y.to(device)

        return draw

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross entropy."""
        return models.cross_entropy(model(batch[0]), batch[1])


#: Every kind of network that the library has a way with: convolutions plain, residual, dense, depthwise and grouped,
#: transformers for images and for text.
TASKS: dict[str, Task] = {
    "resnet18-cifar": Task("resnet18-cifar", 32, 64, 32),
    "vgg11_bn": Task("vgg11_bn", 64, 16),
    "resnet50": Task("resnet50", 64, 16),
    "densenet121": Task("densenet121", 64, 16),
    "mobilenet_v2": Task("mobilenet_v2", 96, 16),
    "shufflenet_v2_x1_0": Task("shufflenet_v2_x1_0", 96, 32),
    "efficientnet_b0": Task("efficientnet_b0", 96, 16),
    "regnet_y_400mf": Task("regnet_y_400mf", 96, 16),
    "convnext_tiny": Task("convnext_tiny", 64, 16, adam=True),
    "vit_b_16": Task("vit_b_16", 224, 8, adam=True),
    "swin_t": Task("swin_t", 224, 8, adam=True),
    "gpt": Task("gpt", 128, 16, 256, adam=True),
    "llama": Task("llama", 128, 16, 256, adam=True),
}


@lru_cache(maxsize=4)
def _photographs(size: int) -> tuple[Tensor, ...]:
    """Those that crops of this size can be cut from: float32 (H, W)."""
    from division.train.data import photos  # which needs the extra `train`

    found = (photos.read(name) for name in photos.PHOTOGRAPHS)
    return tuple(photograph for photograph in found if min(photograph.shape) >= size)


def _crops(task: Task, generator: torch.Generator) -> Batch:
    """(B, 3, size, size), three times the same grey, each crop standardised; the class is the photograph."""
    photographs = _photographs(task.size)
    labels = torch.randint(len(photographs), (task.batch_size,), generator=generator)
    crops = []
    for label in labels.tolist():
        height, width = (n - task.size + 1 for n in photographs[label].shape)
        row, column = (int(torch.randint(n, (), generator=generator)) for n in (height, width))
        crops.append(photographs[label][row : row + task.size, column : column + task.size])
    images = torch.stack(crops)[:, None]
    std, mean = torch.std_mean(images, dim=(1, 2, 3), keepdim=True)
    return ((images - mean) / (std + 1e-3)).repeat(1, 3, 1, 1), labels


@lru_cache(maxsize=1)
def _text() -> data.Split:
    return data.load(TEXT).train


def _sequences(task: Task, generator: torch.Generator) -> Batch:
    split = _text()
    return split.batch(torch.randint(len(split), (task.batch_size,), generator=generator))
