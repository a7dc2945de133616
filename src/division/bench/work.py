"""One network, its optimizer and one batch: a training step of it under any method."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain

import torch

import division
from division.bench import networks
from division.bench.baselines import BASELINES, RECOMPUTED, blocks, checkpointed
from division.bench.settings import Workload
from division.train import amp, models

Phase = Callable[[str], AbstractContextManager[object]]
PHASES = ("forward", "backward", "update")


class Work:
    """Everything a training step needs; all methods train the same weights on the same batch.

    Args:
        workload: already checked.

    Example:
        >>> work = Work(Workload("resnet18", 8, 2, ("none", "division")))
        >>> work.step("division")
        >>> raw, packed = work.accounts("division")
        >>> packed < raw
        True
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        device, size = workload.device, workload.image_size
        with _seeded(device):
            self.model = networks.build(workload.model, size).to(device)
            self.images = torch.randn(workload.batch_size, 3, size, size, device=device)
            self.labels = torch.randint(networks.classes(workload.model, size), (workload.batch_size,), device=device)
        if workload.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.images = self.images.contiguous(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.blocks = blocks(self.model)
        # "none" is plain PyTorch, without a context.
        names = [name for name in workload.methods if name not in BASELINES and name != "none"]
        self.contexts = {
            name: division.compress(name, seed=0, model=self.model, optimizer=self.optimizer) for name in names
        }
        self.beside = division.compress(seed=0)  # checkpointed blocks
        self.recomputing = {name: division.recompute(bits, seed=0) for name, bits in RECOMPUTED.items()}

    def step(self, method: str, phase: Phase = contextlib.nullcontext) -> None:
        """Forward, backward, and SGD with momentum; the gradients are let go of at the end.

        Args:
            method: one of the workload's.
            phase: entered with the name of each of `PHASES` in turn.
        """
        with phase("forward"):
            loss = self._loss(self._around(method))
        with phase("backward"):
            loss.backward()
        with phase("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()

    def accounts(self, method: str) -> tuple[int, int]:
        """(raw bytes, packed bytes) that the report of one forward tells, nothing trained: of `none` or of a codec method."""
        context = self.contexts.get(method) or division.compress("none")
        self._loss(context)
        return context.report.raw_bytes, context.report.packed_bytes

    def sizes(self) -> dict[str, int]:
        """Bytes of what is there in any case: weights (with the network's buffers), momentum, and the batch."""
        states = [x for state in self.optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
        weights = chain(self.model.parameters(), self.model.buffers())
        return {
            "weight_bytes": sum(x.nbytes for x in weights),
            "momentum_bytes": sum(x.nbytes for x in states),
            "batch_bytes": self.images.nbytes + self.labels.nbytes,
        }

    def _loss(self, around: AbstractContextManager[object]) -> torch.Tensor:
        with around, amp.autocast(self.workload.amp, self.workload.device):
            return models.cross_entropy(self.model(self.images), self.labels)

    @contextlib.contextmanager
    def _recomputed(self) -> Iterator[None]:
        with self.beside, checkpointed(self.blocks):
            yield

    def _around(self, method: str) -> AbstractContextManager[object]:
        if method == "none":
            return contextlib.nullcontext()
        if method == "checkpoint":
            return checkpointed(self.blocks)
        if method in self.recomputing:
            return checkpointed(self.blocks, self.recomputing[method])
        if method == "checkpoint+division":
            return self._recomputed()
        if method == "save_on_cpu":
            return torch.autograd.graph.save_on_cpu(pin_memory=torch.device(self.workload.device).type == "cuda")
        return self.contexts[method]


@contextlib.contextmanager
def _seeded(device: str) -> Iterator[None]:
    """The same weights and batch each time, the global generators left as they were."""
    gpus = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(0)
        yield


@contextlib.contextmanager
def tf32(workload: Workload) -> Iterator[None]:
    """Float32 products of a GPU as the workload wants them."""
    if torch.device(workload.device).type != "cuda":
        yield
        return
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if workload.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = workload.tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions
