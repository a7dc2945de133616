"""What an architecture is to the tests: how to build a small one, what to feed it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from division.codecs.codec import Codec
from division.rules import Reading
from division.saved import Saved
from tests.models import Copy, Copying


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        build: makes it from a random configuration, in training mode with its dropout on.
        batch: makes its arguments, by position or by name.
        package: what it comes from.
        sample: whether it stands for its group in the default run; the others are slow.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[], list[Any] | dict[str, Any]]
    package: str
    sample: bool = False


class Called(nn.Module):
    """A model called by position or by name, which gives only the tensors of its output.

    Weights that begin as zero become noise: behind them, or in front of them, every gradient would be zero.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for p in model.parameters():
                if not p.any():
                    p.normal_(0, 0.1, generator=generator)

    def forward(self, batch: list[Any] | dict[str, Any]) -> list[Tensor]:
        output = self.model(**batch) if isinstance(batch, dict) else self.model(*batch)
        return list(tensors(output))


def tensors(output: Any) -> list[Tensor]:
    """The floating tensors in the output of any model, nested ones too, in order."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() and output.requires_grad else []
    if isinstance(output, dict):
        output = list(output.values())
    return [x for item in output for x in tensors(item)] if isinstance(output, list | tuple) else []


@dataclass(frozen=True)
class DenseCopy(Copy):
    """A copy that leaves tensors with gaps: dense, torch's loops round the last bit of GELU and SiLU another way."""

    name: ClassVar[str] = "dense copy"

    def why_not(self, x: Tensor) -> str | None:
        span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        return super().why_not(x) or (None if span == x.numel() else "has gaps")


@dataclass(frozen=True)
class DenseCopying(Copying):
    """`Copying` without tensors with gaps."""

    name: ClassVar[str] = "dense copying"

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        return DenseCopy()


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def numbers(most: int, *shape: int) -> Tensor:
    """Whole numbers from 5, since small ones are often special tokens, to below ``most``."""
    return torch.randint(5, most, shape, generator=torch.Generator().manual_seed(1))
