"""How far a method's gradients are from exact ones: whole gradients of networks that are trained for a while."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

import division
from division.bench.baselines import RECOMPUTED, blocks, checkpointed
from division.bench.released import NAME, ROWS, Released
from division.bench.rows import Row, provenance, significant
from division.bench.settings import FidelitySettings
from division.bench.tasks import TASKS, Batch, Task
from division.methods import Method

Tell = Callable[[int, str], object]


class Fidelity(NamedTuple):
    """Of draws of a gradient beside the exact one.

    Attributes:
        cosine: of the angle between a draw and the exact gradient; mean over the draws.
        relative_error: length of the difference over that of the exact gradient; mean over the draws.
        bias: the same of the draws' expectation, as far as so few tell: the noise that is left in their mean is taken
            off; 0 where that is all there is.
    """

    cosine: float
    relative_error: float
    bias: float


def fidelity(exact: Tensor, draws: Tensor) -> Fidelity:
    """Compares draws of a gradient with the exact one.

    Args:
        exact: float (P,).
        draws: float (K, P), K of 2 or more.

    Example:
        >>> fidelity(torch.tensor([3.0, 4.0]), torch.tensor([[3.0, 9.0], [3.0, -1.0]])).relative_error
        1.0
    """
    exact, count = exact.double(), len(draws)
    size, mean = float(exact.norm()), draws.mean(0, dtype=torch.float64)
    cosine = [float(draw.double() @ exact) / float(draw.double().norm()) / size for draw in draws]
    error = [float((draw - exact).norm()) / size for draw in draws]
    noise = sum(float((draw - mean).square().sum()) for draw in draws) / (count - 1) / count  # of the mean
    excess = float((mean - exact).square().sum()) - noise
    bias = 0.0 if excess < 0 else excess**0.5 / size  # NaN stays NaN
    return Fidelity(statistics.fmean(cosine), statistics.fmean(error), bias)


def units(settings: FidelitySettings) -> int:
    """What :func:`measure` counts up to: one for each network, seed, and number of steps."""
    return len(settings.models) * len(settings.seeds) * len(settings.steps)


def measure(settings: FidelitySettings, tell: Tell = lambda done, what: None) -> Iterator[Row]:
    """Trains each network plainly, and compares gradients of one batch on the way.

    Args:
        settings: checked before anything is trained.
        tell: called with the units done and what is measured next.

    Yields:
        rows with the columns that `docs/benchmarks.md` names.

    Raises:
        SettingsError: with every problem of the settings.
    """
    settings.check()
    source, done = provenance(settings.device), 0
    for name in settings.models:
        task = TASKS[name]
        for seed in settings.seeds:
            with _seeded(seed, settings.device):
                model = task.build(settings.device)
                train, trained = _trainer(task, model, seed, settings.device), 0
                probe = task.batches(1_000_000 + seed, settings.device)()
                for steps in sorted(settings.steps):
                    tell(done, f"{name}, seed {seed}, {steps} steps")
                    loss = train(steps - trained)
                    trained = steps
                    for row in _compared(task, model, probe, settings, seed):
                        yield {"model": name, "seed": seed, "steps": steps, "loss": loss, **row, **source}
                    done += 1


@contextlib.contextmanager
def _seeded(seed: int, device: str) -> Iterator[None]:
    """The same random numbers each time, the global generators left as they were."""
    gpus = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        yield


def _trainer(task: Task, model: nn.Module, seed: int, device: str) -> Callable[[int], float | None]:
    optimizer, draw = task.optimizer(model), task.batches(seed, device)

    def train(steps: int) -> float | None:
        """So many steps more; the mean loss of the last ten, or None."""
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = task.loss(model, draw())
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        optimizer.zero_grad()
        return significant(statistics.fmean(map(float, losses[-10:]))) if losses else None

    return train


def _compared(task: Task, model: nn.Module, batch: Batch, settings: FidelitySettings, seed: int) -> Iterator[Row]:
    exact, raw, _ = _gradient(task, model, batch, "none", 0)
    for name in settings.methods:
        draws, packed = [], 0
        for draw in range(settings.draws):
            gradient, _, packed = _gradient(task, model, batch, name, 1000 * seed + draw)
            draws.append(gradient)
        found = fidelity(exact, torch.stack(draws))
        yield {
            "method": name,
            "cosine": significant(found.cosine),
            "relative_error": significant(found.relative_error),
            "bias": significant(found.bias),
            "draws": settings.draws,
            "raw_bytes": raw,
            "packed_bytes": packed,
        }


def _method(name: str) -> Method:
    """What is around the forward: nothing around blocks that are recomputed."""
    if name in (NAME, ROWS):
        return Released(rows=name == ROWS)
    return division.methods.find("none" if name in RECOMPUTED else name)


def _gradient(task: Task, model: nn.Module, batch: Batch, name: str, seed: int) -> tuple[Tensor, int, int]:
    """The whole gradient, flat, under the same dropout masks and from the same running statistics each time."""
    buffers = [(b, b.clone()) for b in model.buffers()]
    context, recompute = division.compress(_method(name), seed=seed), None
    with _seeded(0, batch[0].device.type), contextlib.ExitStack() as around:
        if name in RECOMPUTED:
            recompute = division.recompute(RECOMPUTED[name], seed=seed)
            around.enter_context(checkpointed(blocks(model), recompute))
        around.enter_context(context)
        loss = task.loss(model, batch)
    packed = context.report.packed_bytes + (recompute.packed_bytes if recompute else 0)
    weights = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    flat = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, gradients, strict=True)]
    return torch.cat([g.flatten() for g in flat]), context.report.raw_bytes, packed
