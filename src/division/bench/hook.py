"""What the way into autograd costs without a codec: steps with every saved tensor kept as it is, but as a code."""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import division
from division.bench import networks
from division.bench.rows import Row, provenance, significant
from division.bench.timing import Clock, Wall, alternate
from division.codecs import Codec, Packed
from division.methods import Method

OPS = 300  # of the model `tiny`


@dataclass(frozen=True)
class Itself(Codec):
    """The tensor as its own code: no work, and no other memory than its own.

    Example:
        >>> x = torch.randn(2, 3)
        >>> Itself().decode(Itself().encode(x, seed=0)) is x
        True
    """

    name: ClassVar[str] = "itself"
    promises: ClassVar[frozenset[str]] = frozenset({"exact", "fixed_size"})

    def why_not(self, x: Tensor) -> None:
        """Refuses nothing."""

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """0: no tensor is too small for it."""
        return 0

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Part: ``x``."""
        return Packed((x,), x.shape, x.stride(), x.dtype, x.device)

    def decode(self, packed: Packed) -> Tensor:
        """What was encoded, the same object each time."""
        return packed.parts[0]

    @classmethod
    def examples(cls) -> list[Codec]:
        """The one there is."""
        return [cls()]


class Through(Method):
    """Passes every saved tensor that has a rule through pack and unpack, as `Itself`; weights and the batch are left.

    Example:
        >>> context = division.compress(Through())
        >>> with context:
        ...     loss = Chain(6)(torch.randn(2, 3)).sum()
        >>> [record.codec for record in context.report.records]
        ['itself', 'itself', 'itself', 'itself', 'itself', 'itself']
    """

    name: ClassVar[str] = "through"

    def codec(self, reading: Any, saved: Any) -> Codec:
        """`Itself`, whatever the use."""
        return _ITSELF

    def lossy(self, reading: Any, saved: Any) -> Codec:
        """`Itself`."""
        return _ITSELF


_ITSELF = Itself()


class Chain(nn.Module):
    """So many ops one after another, each of which saves its result alone. Takes (N, M), gives (N, M)."""

    def __init__(self, ops: int = OPS) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(()))
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        """Tanh, ReLU and sigmoid by turns."""
        y = x + self.start
        for i in range(self.ops):
            y = (y.tanh, y.relu, y.sigmoid)[i % 3]()
        return y


@dataclass(frozen=True)
class Case:
    """A model, and the batches of its steps.

    Attributes:
        model: in the rows' column of that name.
        build: makes it.
        small: shape of the batch by which the time of a saved tensor is taken: the step is as short as it can be, so
            that this time isn't lost in its noise.
        full: shape of the batch by which the overhead is taken.
        rounds: steps with each batch, at most.
    """

    model: str
    build: Callable[[], nn.Module]
    small: tuple[int, ...]
    full: tuple[int, ...]
    rounds: tuple[int, int]


def _resnet50() -> nn.Module:
    return networks.build("resnet50", 224)


CASES = (
    Case("tiny", Chain, (8, 8), (8, 8), (200, 0)),
    Case("resnet50", _resnet50, (2, 3, 33, 33), (8, 3, 224, 224), (40, 15)),
)
QUICK = (
    Case("tiny", Chain, (8, 8), (8, 8), (5, 0)),
    Case("resnet50", _resnet50, (2, 3, 33, 33), (2, 3, 33, 33), (3, 0)),
)


def measure(quick: bool = False, cases: Sequence[Case] | None = None, clock: Clock | None = None) -> Iterator[Row]:
    """Measures steps (forward, sum, backward) on the CPU, plain and with all saved tensors passed through, in turn.

    Args:
        quick: few and small steps, which show that it works.
        cases: what to measure; by default `CASES`, or `QUICK`.
        clock: for the times; by default that of the CPU.

    Yields:
        one row a model: `model`; `overhead`, the share by which a step takes longer (0.03 = 3 %); `us_per_tensor`, the
        time that it takes longer, in µs for each tensor saved, pack and unpack together; `tensors` saved in a step,
        and how many of them were `coded`; the rest of the columns is :func:`division.bench.rows.provenance`.

    Example:
        >>> [row] = measure(cases=[Case("tiny", Chain, (2, 2), (2, 2), (3, 0))])
        >>> row["tensors"], row["coded"]
        (300, 300)
    """
    for case in cases or (QUICK if quick else CASES):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = case.build()
            small, full = torch.randn(case.small), torch.randn(case.full)
        context = division.compress(Through(), seed=0)
        short = _times(model, small, context, case.rounds[0], clock or Wall())
        long = short if case.full == case.small else _times(model, full, context, case.rounds[1], clock or Wall())
        records = context.report.records
        yield {
            "model": case.model,
            "overhead": significant(statistics.median(b / a for a, b in long) - 1),
            "us_per_tensor": significant(1e6 * statistics.median(b - a for a, b in short) / len(records)),
            "tensors": len(records),
            "coded": sum(not record.left for record in records),
            **provenance(),
        }


def _times(
    model: nn.Module, batch: Tensor, context: division.compress, rounds: int, clock: Clock
) -> list[tuple[float, float]]:
    """Seconds of a step without and with the context, round by round."""

    def step(around: contextlib.AbstractContextManager[object]) -> None:
        with around:
            loss = model(batch).sum()
        loss.backward()
        model.zero_grad()

    gc.collect()
    works = {"plain": lambda: step(contextlib.nullcontext()), "through": lambda: step(context)}
    times = alternate(works, clock, most=rounds, least=min(5, rounds))
    return list(zip(times["plain"].seconds, times["through"].seconds, strict=True))
