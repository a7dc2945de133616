"""What decides the result of a training, as one frozen value, and its checks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import division
from division.train import amp, data, models, optimizers
from division.train.errors import RunError, SettingsError

#: Fields that runs were made without at first, as what they would have been: a run's name tells them only if they differ.
LATER: dict[str, Any] = {"amp": "none", "optimizer": "sgd", "grow": 1}


@dataclass(frozen=True)
class TrainSettings:
    """One training. `None` means the default that belongs to the model, the method, the data set or the optimizer.

    Example:
        >>> TrainSettings(epochs=3).name
        'digits-resnet18-cifar-division-seed0-...'
    """

    method: str = "division"  # a name of `division.methods`
    block: int | None = None  # of the method, where it takes one
    bits: int | None = None  # likewise
    model: str = "resnet18-cifar"  # a name of `models`
    width: int | None = None  # channels of the model's first stage
    data: str = "digits"  # a name of `data.SETS`
    data_dir: str | None = None  # where it lies; the only field that does not change the result
    limit: int | None = None  # at most so many images or sequences of each split
    augment: bool | None = None  # augment the training images
    epochs: int = 8
    batch_size: int = 64
    lr: float | None = None  # at the first step, cosine to 0 at the last
    momentum: float | None = None  # of the optimizer, where it takes one
    weight_decay: float | None = None
    seed: int = 0  # of the weights, the order, the augmentation and the method's noise
    device: str = "cpu"
    amp: str = LATER["amp"]  # a name of `amp.DTYPES`
    optimizer: str = LATER["optimizer"]  # a name of `optimizers.KINDS`
    grow: int = LATER["grow"]  # times its size that the batch may grow to, in the memory that compression freed

    @property
    def augmented(self) -> bool:
        """Whether training images are augmented, the data set's default applied."""
        return data.SETS[self.data].augment if self.augment is None else self.augment

    @property
    def chosen_optimizer(self) -> optimizers.SGD | optimizers.AdamW:
        """The optimizer as it is set, its defaults applied."""
        return optimizers.KINDS[self.optimizer](**self._optimizer_fields())

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides the result: every field but `data_dir`, the optimizer's defaults applied."""
        fields = dataclasses.asdict(self)
        del fields["data_dir"]
        known = self.optimizer in optimizers.KINDS and not self._foreign_fields()
        return fields | (dataclasses.asdict(self.chosen_optimizer) if known else {})

    @property
    def name(self) -> str:
        """A folder name of its own for these settings: the same for equal ones, different for different ones."""
        telling = {key: value for key, value in self.identity.items() if value != LATER.get(key, ...)}
        digest = hashlib.sha256(json.dumps(telling, sort_keys=True).encode()).hexdigest()
        return f"{self.data}-{self.model}-{self.method}-seed{self.seed}-{digest[:8]}"

    def differences(self, other: TrainSettings) -> list[str]:
        """The fields in which `other` would give another result, as "field: ours, then theirs"."""
        mine, theirs = self.identity, other.identity
        return [f"{key}: {mine[key]!r}, then {theirs[key]!r}" for key in mine if mine[key] != theirs[key]]

    def check(self) -> None:
        """Raises SettingsError with every problem found; reads no data and trains nothing."""
        problems = [*self._number_problems(), *self._optimizer_problems(), *self._data_problems()]
        problems += _device_problems(self.device)
        if self.amp not in amp.DTYPES:
            problems.append(f"amp is {self.amp!r}: expected one of {', '.join(amp.DTYPES)}")
        text = self.data in data.SETS and data.SETS[self.data].text
        wrong_model = models.problem(self.model, self.width, text)
        if wrong_model is not None:
            problems.append(wrong_model)
        try:
            division.methods.find(self.method, block=self.block, bits=self.bits)
        except (ValueError, TypeError) as error:
            problems.append(str(error))
        if not problems:
            kind = data.SETS[self.data]
            misfit = models.misfit(self.model, (self.batch_size, *kind.shape), kind.classes or 1000, self.width)
            problems += [] if misfit is None else [misfit]
        if problems:
            raise SettingsError(problems)

    def _number_problems(self) -> list[str]:
        problems = [
            f"{name} is {value}: expected {least} or more"
            for name, value, least in (
                ("epochs", self.epochs, 1),
                ("batch size", self.batch_size, 1),
                ("limit", self.limit, 1),
                ("seed", self.seed, 0),
                ("grow", self.grow, 1),
            )
            if value is not None and value < least
        ]
        unit = data.SETS[self.data].unit if self.data in data.SETS else "images"
        if self.limit is not None and 1 <= self.limit < self.batch_size:
            problems.append(f"limit is {self.limit} {unit}: expected at least one batch of {self.batch_size}")
        if self.lr is not None and not (math.isfinite(self.lr) and self.lr > 0):
            problems.append(f"lr is {self.lr}: expected a finite number above 0")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            problems.append(f"momentum is {self.momentum}: expected 0 or more and less than 1")
        if self.weight_decay is not None and not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            problems.append(f"weight decay is {self.weight_decay}: expected a finite number, 0 or more")
        return problems

    def _optimizer_fields(self) -> dict[str, float]:
        """What is given of the optimizer's own settings."""
        fields = {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
        return {name: value for name, value in fields.items() if value is not None}

    def _foreign_fields(self) -> list[str]:
        return optimizers.foreign(self.optimizer, self._optimizer_fields())

    def _optimizer_problems(self) -> list[str]:
        if self.optimizer not in optimizers.KINDS:
            return [f"optimizer is {self.optimizer!r}: expected one of {', '.join(optimizers.KINDS)}"]
        return [
            f"{name} is {getattr(self, name)} with optimizer {self.optimizer!r}: expected none, "
            f"only {', '.join(other for other in optimizers.KINDS if not optimizers.foreign(other, [name]))} takes one"
            for name in self._foreign_fields()
        ]

    def _data_problems(self) -> list[str]:
        if self.data not in data.SETS:
            return [f"data is {self.data!r}: expected one of {', '.join(data.SETS)}"]
        if data.SETS[self.data].needs_folder:
            if self.data_dir is None:
                return [f"data {self.data!r} is in no package and no folder was given: name it with --data-dir"]
            if not Path(self.data_dir).is_dir():
                return [f"data dir is {self.data_dir}: expected an existing folder that holds {self.data}"]
        return []


def read(path: Path) -> TrainSettings:
    """Settings as `run.py` wrote them to config.json.

    Raises:
        RunError: no such file, not JSON, or fields this version does not know.
    """
    try:
        fields = json.loads(path.read_text())
        return TrainSettings(**fields)
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing: this is no run directory; give the folder of an earlier --out") from error
    except (TypeError, ValueError) as error:
        raise RunError(f"{path} is not the config of a run ({error}): start anew in another folder") from error


def _device_problems(name: str) -> list[str]:
    try:
        device = torch.device(name)
    except RuntimeError:
        return [f"device is {name!r}: expected cpu, cuda or cuda:0, cuda:1, ..."]
    if device.type == "cpu":
        return []
    if device.type != "cuda":
        return [f"device is {name!r}, which the command line does not support: expected cpu or cuda"]
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        gpus = f" or cuda:0 to cuda:{count - 1}" if count else ", no GPU is visible"
        return [f"device is {name!r}: expected cpu{gpus}"]
    return []
