"""What to measure, as frozen values, and the checks of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch

import division
from division.bench.baselines import BASELINES, BLOCKWISE, RECOMPUTED
from division.bench.networks import problem
from division.bench.released import NAME as RELEASED
from division.bench.released import ROWS as RELEASED_ROWS
from division.bench.subjects import DTYPES, LAYOUTS, NAMES, Shape, widths
from division.bench.tasks import TASKS
from division.train import amp
from division.train.errors import SettingsError

T = TypeVar("T")
S = TypeVar("S", "KernelSettings", "Workload", "StepSettings", "FidelitySettings")

#: Maps of ResNet-50 at 224x224 and of ResNet-18 at 32x32, and a matrix as a linear layer sees it.
CPU_SHAPES: tuple[Shape, ...] = (
    (32, 64, 56, 56), (8, 64, 112, 112), (64, 512, 7, 7), (64, 256, 14, 14), (4096, 2048),
)  # fmt: skip
GPU_SHAPES: tuple[Shape, ...] = ((256, 256, 56, 56),)
QUICK_SHAPES: tuple[Shape, ...] = ((2, 3, 17, 5), (1, 8, 16, 16), (4, 96))
METHODS = ("none", "division", "offload", *BASELINES)
#: What `bench fidelity` compares with besides methods.
OTHERS = (RELEASED, RELEASED_ROWS, *RECOMPUTED)
#: Without fp16, whose scaler skips the first steps until it finds its scale: steps that are to be measured.
AMP = tuple(name for name in amp.DTYPES if name != "fp16")


def listed(text: str | None) -> tuple[str, ...] | None:
    """The parts of a list with commas; None as it is.

    Example:
        >>> listed("dual, bits")
        ('dual', 'bits')
    """
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def shapes(text: str | None) -> tuple[Shape, ...] | None:
    """Shapes as a command line gives them; None as it is.

    Raises:
        SettingsError: one that is none.

    Example:
        >>> shapes("32x64x56x56, 64x512")
        ((32, 64, 56, 56), (64, 512))
    """
    return _each(text, lambda part: tuple(int(n) for n in part.split("x")), "shape", "numbers such as 32x64x56x56")


def numbers(text: str | None, what: str) -> tuple[int, ...] | None:
    """Whole numbers as a command line gives them; None as it is.

    Raises:
        SettingsError: one that is none.
    """
    return _each(text, int, what, "a whole number")


def _each(text: str | None, read: Callable[[str], T], what: str, expected: str) -> tuple[T, ...] | None:
    parts = listed(text)
    if parts is None:
        return None
    found, problems = [], []
    for part in parts:
        try:
            found.append(read(part))
        except ValueError:
            problems.append(f"{what} is {part!r}: expected {expected}")
    if problems:
        raise SettingsError(problems)
    return tuple(found)


def device_problem(name: str) -> str | None:
    """What is wrong with the name of a device, or None."""
    try:
        device = torch.device(name)
    except RuntimeError:
        return f"device is {name!r}: expected cpu, cuda or cuda:1"
    if device.type not in ("cpu", "cuda"):
        return f"device is {name!r}, which the command line does not support: expected cpu or cuda"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cpu" or (device.index or 0) < count:
        return None
    return f"device is {name!r}: expected cpu" + (f" or cuda:0 to cuda:{count - 1}" if count else ", no GPU is visible")


def _unknown(what: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    if not given:
        return [f"no {what} is given: expected some of {', '.join(known)}"]
    return [f"{what} is {name!r}: expected one of {', '.join(known)}" for name in given if name not in known]


def _refuse(problems: Sequence[str | None]) -> None:
    found = [problem for problem in problems if problem is not None]
    if found:
        raise SettingsError(found)


@dataclass(frozen=True)
class KernelSettings:
    """What `bench kernels` measures: every combination that makes sense.

    Example:
        >>> KernelSettings(codecs=("dual",), shapes=((2, 3, 8, 8),)).check()
    """

    codecs: tuple[str, ...] = NAMES
    bits: tuple[int, ...] | None = None  # of these widths alone
    shapes: tuple[Shape, ...] = CPU_SHAPES
    dtypes: tuple[str, ...] = tuple(DTYPES)
    layouts: tuple[str, ...] = LAYOUTS
    device: str = "cpu"
    body: str | None = None  # on the CPU: the body that is to do the work, whatever is the fastest here
    repeats: int = 50  # runs of each op, at most
    seconds: float = 0.7  # for one codec on one tensor, after which no further run begins

    def check(self) -> None:
        """Raises SettingsError with every problem found."""
        shape_problems = [
            f"shape is {'x'.join(map(str, shape))}: expected 1 to 5 sizes of 1 or more"
            for shape in self.shapes
            if not 1 <= len(shape) <= 5 or min(shape) < 1
        ]
        shape_problems += [
            f"shape is {'x'.join(map(str, shape))}: expected 2^32 elements at most"
            for shape in self.shapes
            if shape and min(shape) > 0 and prod(shape) > 1 << 32
        ]
        _refuse(
            [
                *_unknown("codec", self.codecs, NAMES),
                *self._bit_problems(),
                *_unknown("dtype", self.dtypes, tuple(DTYPES)),
                *_unknown("layout", self.layouts, LAYOUTS),
                *shape_problems,
                None if self.shapes else "no shape is given: expected one such as 32x64x56x56",
                None if self.repeats >= 1 else f"repeats is {self.repeats}: expected 1 or more",
                device_problem(self.device),
                f"body is {self.body!r} on {self.device}: expected none, only the CPU has bodies to choose from"
                if self.body is not None and self.device != "cpu"
                else None,
            ]
        )

    def _bit_problems(self) -> list[str]:
        known = widths(self.codecs)
        if self.bits is None or not known:
            return []
        expected = f"expected some of {', '.join(map(str, known))}, the widths of these codecs"
        if not self.bits:
            return [f"no bits are given: {expected}"]
        return [f"bits is {bits}: {expected}" for bits in self.bits if bits not in known]


@dataclass(frozen=True)
class Workload:
    """One network at one size, trained by several methods.

    Args:
        model: a name of `division.bench.networks`.
        methods: names of `division.methods`, or of `division.bench.baselines`; `none`, which the others are measured
            against, comes first whether given or not.
        amp: ``"bf16"`` runs forward and loss under autocast.
        tf32: whether a GPU may round the factors of float32 products to TF32.
    """

    model: str
    image_size: int
    batch_size: int
    methods: tuple[str, ...] = METHODS
    device: str = "cpu"
    amp: str = "none"
    channels_last: bool = False
    tf32: bool = False

    def __post_init__(self) -> None:
        others = tuple(method for method in self.methods if method != "none")
        object.__setattr__(self, "methods", ("none", *others))

    @property
    def title(self) -> str:
        """The network and its size, for a person to read."""
        return f"{self.model} {self.image_size}x{self.image_size}, batch {self.batch_size}"

    def check(self) -> None:
        """Raises SettingsError with every problem found; trains nothing."""
        sizes = (("image size", self.image_size), ("batch size", self.batch_size))
        problems = [f"{name} is {value}: expected 1 or more" for name, value in sizes if value < 1]
        problems += _unknown("amp", (self.amp,), AMP)
        if len(set(self.methods)) < len(self.methods):
            problems.append(f"methods are {', '.join(self.methods)}: expected each once")
        for method in self.methods:
            try:
                if method not in BASELINES:
                    division.methods.find(method)
            except ValueError as error:
                problems.append(f"{error}, {', '.join(BASELINES)}")
        wrong_device = device_problem(self.device)
        problems += [] if wrong_device is None else [wrong_device]
        if not problems:
            wrong = problem(
                self.model, self.image_size, self.batch_size, blockwise=bool(set(BLOCKWISE) & set(self.methods))
            )
            problems += [] if wrong is None else [wrong]
        _refuse(problems)


@dataclass(frozen=True)
class StepSettings:
    """What `bench step` measures.

    Example:
        >>> StepSettings().workloads[0].title
        'resnet18 32x32, batch 128'
    """

    workloads: tuple[Workload, ...] = (
        Workload("resnet18", 32, 128),
        Workload("resnet50", 224, 8),
        Workload("resnet50", 224, 32, ("none", "division")),
    )
    repeats: int = 15  # steps of each method, at most
    seconds: float = 130.0  # for the steps of one workload, after which no further round begins
    peak: bool = True  # whether to measure the most memory a step holds

    def check(self) -> None:
        """Raises SettingsError with every problem found; trains nothing."""
        problems: dict[str, None] = {}
        if self.repeats < 1:
            problems[f"repeats is {self.repeats}: expected 1 or more"] = None
        for workload in self.workloads:
            try:
                workload.check()
            except SettingsError as error:
                problems.update(dict.fromkeys(error.problems))
        _refuse(list(problems))


@dataclass(frozen=True)
class FidelitySettings:
    """What `bench fidelity` measures: each method on each network, for each seed, after each number of steps.

    Example:
        >>> FidelitySettings(models=("gpt",), seeds=(0,)).check()
    """

    models: tuple[str, ...] = tuple(TASKS)
    methods: tuple[str, ...] = ("division", "fixed-2", "fixed-4", RELEASED)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: tuple[int, ...] = (0, 300)
    draws: int = 4  # of each gradient
    device: str = "cpu"

    def check(self) -> None:
        """Raises SettingsError with every problem found; trains nothing."""
        problems = _unknown("model", self.models, tuple(TASKS))
        for method in self.methods:
            try:
                if method not in OTHERS:
                    division.methods.find(method)
            except ValueError as error:
                problems.append(f"{error}, {', '.join(OTHERS)}")
        for what, given in (("method", self.methods), ("seed", self.seeds), ("number of steps", self.steps)):
            if not given:
                problems.append(f"no {what} is given: expected one or more")
            elif len(set(given)) < len(given):
                problems.append(f"a {what} is given twice: {', '.join(map(str, given))}")
        problems += [f"steps is {n}: expected 0 or more" for n in self.steps if n < 0]
        problems += [f"seed is {n}: expected 0 or more" for n in self.seeds if n < 0]
        problems += [] if self.draws >= 2 else [f"draws is {self.draws}: expected 2 or more"]
        _refuse([*problems, device_problem(self.device)])


def default_shapes(device: str) -> tuple[Shape, ...]:
    """The shapes to measure on a device where none are given."""
    return GPU_SHAPES if device.startswith("cuda") else CPU_SHAPES


QUICK_KERNELS = KernelSettings(shapes=QUICK_SHAPES, dtypes=("float32",), repeats=3, seconds=0.0)
QUICK_FIDELITY = FidelitySettings(("resnet18-cifar",), ("division", RELEASED), (0,), (0, 2), draws=2)
QUICK_STEP = StepSettings((Workload("resnet18", 8, 4, ("none", "division", "checkpoint")),), repeats=2, seconds=0.0)
#: (image size, batch size on a CPU, on a GPU) of a model for which no size is given.
SIZES = {"resnet18": (32, 128, 512), "resnet50": (224, 8, 256)}
OTHER_SIZES = (224, 8, 64)


def changed(settings: S, given: Mapping[str, Any]) -> S:
    """The settings with what is given and not None.

    Example:
        >>> changed(KernelSettings(), {"repeats": 3, "body": None}).repeats
        3
    """
    return dataclasses.replace(settings, **{name: value for name, value in given.items() if value is not None})


def workloads(
    models: Sequence[str] | None, image_size: int | None, batch_size: int | None, *, device: str, quick: bool
) -> tuple[Workload, ...]:
    """The workloads that are meant: of the models given, or else the usual ones; sizes where given.

    Example:
        >>> [w.title for w in workloads(["resnet50"], None, 16, device="cpu", quick=False)]
        ['resnet50 224x224, batch 16']
    """
    on_gpu = device.startswith("cuda")
    if models is not None:
        usual = [SIZES.get(model, OTHER_SIZES) for model in models]
        found = tuple(Workload(m, s[0], s[1 + on_gpu]) for m, s in zip(models, usual, strict=True))
    elif quick:
        found = QUICK_STEP.workloads
    elif on_gpu:
        found = (Workload("resnet50", 224, 256),)
    else:
        found = StepSettings().workloads
    sizes = {"image_size": image_size, "batch_size": batch_size, "device": device}
    return tuple(dict.fromkeys(changed(workload, sizes) for workload in found))
