"""The training loop: cosine learning rate, one compression context around each forward pass and its autocast."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import division
from division.train import amp, data, growth, models
from division.train.errors import SettingsError
from division.train.progress import TrainProgress
from division.train.seeds import order, stream
from division.train.settings import TrainSettings

EVALUATION_BATCH = 250


@dataclass
class Position:
    """Where a training is, and what it has counted."""

    epoch: int = 0
    step: int = 0  # within the epoch
    batch_size: int = 0  # this epoch's; 0 for the one that was set
    seen: int = 0  # images or sequences of the epochs before
    loss_sum: float = 0.0  # over this epoch's images or sequences
    correct: int = 0
    seconds: float = 0.0  # this epoch's steps
    total_seconds: float = 0.0  # all steps
    skipped_steps: int = 0  # this epoch's, whose gradients had overflowed
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry a finished epoch


class Scores(NamedTuple):
    """How good a model is on the validation split: accuracy in percent and mean loss, over every label."""

    top1: float
    loss: float


class Training:
    """A model, its optimizer and scaler, its compression context and a position: all that a checkpoint holds.

    Draws from torch's global generator, so `run.py` forks it. `advance` does one step, `finish_epoch` evaluates.
    """

    def __init__(self, settings: TrainSettings, splits: data.DataSet) -> None:
        self.settings, self.data, self.kind = settings, splits, data.SETS[settings.data]
        self.position = Position(batch_size=settings.batch_size)
        if self.steps == 0:
            most = f"the {len(splits.train)} training {self.kind.unit}"
            raise SettingsError([f"batch size is {settings.batch_size}: expected at most {most}"])
        torch.manual_seed(settings.seed)
        model = models.build(settings.model, self.kind.channels, splits.classes, self.kind.size, settings.width)
        self.model: nn.Module = model.to(settings.device)
        self.optimizer = settings.chosen_optimizer.build(self.model.parameters())
        self.scaler = amp.scaler(settings.amp, settings.device)
        method = division.methods.find(settings.method, block=settings.block, bits=settings.bits)
        self.compression = division.compress(
            method=method, seed=settings.seed, model=self.model, optimizer=self.optimizer
        )
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=settings.device)
        self._correct = torch.zeros((), dtype=torch.int64, device=settings.device)

    @property
    def batch_size(self) -> int:
        """Images or sequences a step, in this epoch."""
        return self.position.batch_size or self.settings.batch_size

    @property
    def steps(self) -> int:
        """Steps of this epoch; a last smaller batch is left out."""
        return len(self.data.train) // self.batch_size

    @property
    def share_done(self) -> float:
        """How much of the training is done, from 0 to 1."""
        return self.steps_done / (self.steps * self.settings.epochs)

    @property
    def done(self) -> bool:
        """Whether every epoch is finished."""
        return self.position.epoch == self.settings.epochs

    @property
    def steps_done(self) -> int:
        """Training steps since the very start, if all epochs had the batch size of this one."""
        return self.position.epoch * self.steps + self.position.step

    def advance(self, indices: Tensor) -> None:
        """One step on the training images or sequences `indices`: int64 (B,)."""
        settings, where = self.settings, self.position
        start = time.perf_counter()
        augment = stream(settings.seed, "augment", where.epoch, where.step) if settings.augmented else None
        inputs, labels = (t.to(settings.device) for t in self.data.train.batch(indices, augment))
        self.optimizer.param_groups[0]["lr"] = self.learning_rate()
        self.compression.calibrate(lambda: self.scaler.scale(self._forward(inputs, labels)[1]))
        self.optimizer.zero_grad()
        outputs, loss = self._forward(inputs, labels)
        self.scaler.scale(loss).backward()
        self._update()
        self._loss_sum += loss.detach().double() * len(labels)
        self._correct += (models.logits(outputs).detach().argmax(-1) == labels).sum()
        where.step += 1
        where.seconds += time.perf_counter() - start

    def _forward(self, inputs: Tensor, labels: Tensor) -> tuple[models.Outputs, Tensor]:
        """Outputs and loss."""
        with self.compression, amp.autocast(self.settings.amp, self.settings.device):
            outputs = self.model(inputs)
            return outputs, models.cross_entropy(outputs, labels)

    def _update(self) -> None:
        """The optimizer's step, unless the scaler finds a gradient that overflowed and skips it."""
        done: list[bool] = []
        watch = self.optimizer.register_step_post_hook(lambda *_: done.append(True))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        watch.remove()
        self.position.skipped_steps += not done

    def learning_rate(self) -> float:
        """Cosine from the optimizer's `lr` at the first step towards 0 after the last; more for a batch that has grown."""
        first = growth.scaled(self.settings.chosen_optimizer.lr, self.batch_size, self.settings.batch_size)
        return first / 2 * (1 + math.cos(math.pi * self.share_done))

    def finish_epoch(self) -> dict[str, Any]:
        """Evaluates, adds an entry to the history, returns it, and moves to the next epoch."""
        where, report = self.position, self.compression.report
        seen = self.steps * self.batch_size
        start = time.perf_counter()
        loss_sum, correct = self.counted()
        where.seconds += time.perf_counter() - start
        scores = self.evaluate()
        entry = {
            "epoch": where.epoch + 1,
            "train_loss": loss_sum / seen,
            "train_top1": 100 * correct / (seen * self.kind.labels),
            "top1": scores.top1,
            "lr": self.optimizer.param_groups[0]["lr"],
            f"{self.kind.unit}_per_s": seen / where.seconds,
            "raw_bytes": report.raw_bytes,
            "packed_bytes": report.packed_bytes,
        }
        if self.kind.text:
            entry["bits_per_byte"] = scores.loss / math.log(2)
        if self.settings.grow > 1:
            entry["batch_size"] = self.batch_size
        if self.scaler.is_enabled():
            entry["skipped_steps"] = where.skipped_steps
        self._loss_sum.zero_()
        self._correct.zero_()
        self.position = Position(
            epoch=where.epoch + 1, total_seconds=where.total_seconds + where.seconds, history=[*where.history, entry],
            batch_size=self._next_batch_size(), seen=where.seen + seen,
        )  # fmt: skip
        return entry

    def _next_batch_size(self) -> int:
        """That of the next epoch: into the memory that the plain training needs at the batch size that was set."""
        report, base = self.compression.report, self.settings.batch_size
        most = min(self.settings.grow, len(self.data.train) // base)
        budget = report.raw_bytes * base // self.batch_size
        kept = report.packed_bytes + report.recomputed_bytes
        return growth.grown(self.batch_size, base, most, kept, budget)

    @torch.no_grad()
    def evaluate(self) -> Scores:
        """Top-1 accuracy and loss over every validation image or sequence, each seen once, under training's autocast."""
        self.model.eval()
        val, correct, loss_sum = self.data.val, 0, 0.0
        for indices in torch.arange(len(val)).split(EVALUATION_BATCH):
            inputs, labels = (t.to(self.settings.device) for t in val.batch(indices))
            with amp.autocast(self.settings.amp, self.settings.device):
                logits = models.logits(self.model(inputs))
                loss = models.cross_entropy(logits, labels)
            correct += int((logits.argmax(-1) == labels).sum())
            loss_sum += float(loss) * len(labels)
        self.model.train()
        return Scores(100 * correct / (len(val) * self.kind.labels), loss_sum / len(val))

    def counted(self) -> tuple[float, int]:
        """This epoch's loss sum and right answers so far; waits for the device."""
        return float(self._loss_sum), int(self._correct)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on bit for bit, as tensors and plain data."""
        self.position.loss_sum, self.position.correct = self.counted()
        on_gpu = torch.device(self.settings.device).type == "cuda"
        return {
            "position": asdict(self.position),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "compression": self.compression.state_dict(),
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state(self.settings.device) if on_gpu else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to where `state_dict` was taken."""
        self.position = Position(**state["position"])
        self._loss_sum.fill_(self.position.loss_sum)
        self._correct.fill_(self.position.correct)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state.get("scaler", {}))  # checkpoints of before there was one have none
        self.compression.load_state_dict(state["compression"])
        torch.set_rng_state(state["random"])
        if state["cuda_random"] is not None:
            torch.cuda.set_rng_state(state["cuda_random"], self.settings.device)


def train(
    training: Training,
    progress: TrainProgress,
    save: Callable[[], None],
    log: Callable[[dict[str, Any]], None],
    checkpoint_steps: int | None = None,
) -> None:
    """Runs a training from its position to the end.

    Args:
        training: a new one, or one whose state was loaded.
        progress: shows it.
        save: called after every epoch, and every `checkpoint_steps` steps.
        log: called with every finished epoch's entry, before `save`.
        checkpoint_steps: None saves after epochs alone.
    """
    settings = training.settings
    while not training.done:
        batches = order(settings.seed, training.position.epoch, len(training.data.train)).split(training.batch_size)
        while training.position.step < training.steps:
            training.advance(batches[training.position.step])
            _show(training, progress)
            if (
                checkpoint_steps
                and training.position.step < training.steps
                and training.steps_done % checkpoint_steps == 0
            ):
                save()
        entry = training.finish_epoch()
        log(entry)
        save()
        unit = training.kind.unit
        bits = f"{entry['bits_per_byte']:.3f} bits a byte  " if training.kind.text else ""
        batch = f"  batch {entry['batch_size']}" if "batch_size" in entry else ""
        skipped = f"  {entry['skipped_steps']} steps skipped" if entry.get("skipped_steps") else ""
        progress.line(
            f"epoch {entry['epoch']}/{settings.epochs}  loss {entry['train_loss']:.4f}  "
            f"train {entry['train_top1']:.2f} %  top-1 {entry['top1']:.2f} %  {bits}{entry[f'{unit}_per_s']:.0f} {unit}/s"
            f"{batch}{skipped}"
        )


def _show(training: Training, progress: TrainProgress) -> None:
    if not progress.live or training.position.step % 5:
        return
    seen = training.position.step * training.batch_size
    loss_sum, correct = training.counted()
    top1, speed = 100 * correct / (seen * training.kind.labels), seen / training.position.seconds
    progress.step(training.share_done, loss_sum / seen, top1, f"{speed:.0f} {training.kind.unit}/s")
