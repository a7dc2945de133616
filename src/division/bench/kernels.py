"""Encode and decode of each codec against a copy of the same tensor, in the same run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from division.bench import malloc
from division.bench.rows import Row, provenance, significant
from division.bench.settings import KernelSettings
from division.bench.subjects import SUBJECTS, Shape, Subject, layouts
from division.bench.timing import Clock, Times, alternate, clock_of
from division.codecs import Packed
from division.kernels.bodies import body_of
from division.kernels.cpu import library
from division.train.errors import SettingsError

Tell = Callable[[int, str], object]
CLONE = "clone"
#: Room for so many of the largest results is made at the beginning.
RESULTS = 16


@dataclass(frozen=True)
class Case:
    """One codec on one tensor."""

    subject: Subject
    shape: Shape
    dtype: str
    layout: str

    @property
    def title(self) -> str:
        """The case, for a person to read."""
        shape = "x".join(map(str, self.shape))
        return f"{self.subject.name} {self.subject.bits} bits, {shape} {self.dtype} {self.layout}"


def cases(settings: KernelSettings) -> list[Case]:
    """All that is to be measured: cases of one shape, dtype and layout together.

    Raises:
        SettingsError: with every problem of the settings, or where nothing is left to measure.

    Example:
        >>> [
        ...     case.title
        ...     for case in cases(KernelSettings(("window",), shapes=((2, 3, 8, 8),), layouts=("contiguous",)))
        ... ]
        ['window 4 bits, 2x3x8x8 int64 contiguous']
    """
    settings.check()
    chosen = [s for s in SUBJECTS if s.name in settings.codecs and (settings.bits is None or s.bits in settings.bits)]
    found = [
        Case(subject, shape, dtype, layout)
        for shape in settings.shapes
        for layout in layouts(shape, settings.layouts)
        for dtype in dict.fromkeys((*settings.dtypes, "float32", "bool", "int64"))
        for subject in chosen
        if subject.takes(shape) and dtype in subject.dtypes(settings.dtypes)
    ]
    if not found:
        raise SettingsError(["nothing to measure: expected codecs, bits and layouts that go with the shapes"])
    return found


def measure(
    settings: KernelSettings, tell: Tell = lambda done, what: None, clock: Clock | None = None
) -> Iterator[Row]:
    """Measures every case; each run of an op beside a copy of the tensor it codes.

    Args:
        settings: checked before anything is measured.
        tell: called with the number of cases done and what is measured next.
        clock: by default that of the device.

    Yields:
        rows with the columns that `docs/benchmarks.md` names: `encode` and `decode` of a case, and `clone` after the
        last case of a shape, dtype and layout.

    Raises:
        SettingsError: with every problem of the settings.
    """
    todo = cases(settings)
    clock = clock or clock_of(settings.device, flush=True)
    source = provenance(settings.device)
    with torch.no_grad(), _forced(settings.body), malloc.keeping(_reserve(todo, settings.device)):
        clones: list[float] = []
        for done, case in enumerate(todo):
            tell(done, case.title)
            times, sizes = _timed(case, settings, clock)
            clones += times[CLONE].seconds
            for op, name in zip(("encode", "decode"), case.subject.ops, strict=True):
                body = body_of(name, settings.device)
                how = {"body": body.body, "why": body.why}
                yield {**_row(case, op, times, sum(sizes)), **how, **source}
            if done + 1 == len(todo) or _tensor(todo[done + 1]) != _tensor(case):
                copied = {CLONE: Times(tuple(clones))}
                of_copy = {"codec": CLONE, "bits": 8 * sizes[0] // _count(case), "body": "torch", "why": ""}
                yield {**_row(case, CLONE, copied, 2 * sizes[0]), **of_copy, **source}
                clones = []


def _reserve(todo: list[Case], device: str) -> int:
    """Bytes of several of the largest results on the CPU."""
    if torch.device(device).type != "cpu":
        return 0
    return RESULTS * max(_count(case) * getattr(torch, case.dtype).itemsize for case in todo)


def _tensor(case: Case) -> tuple[Shape, str, str]:
    return case.shape, case.dtype, case.layout


def _count(case: Case) -> int:
    return torch.Size(case.shape).numel()


def _timed(case: Case, settings: KernelSettings, clock: Clock) -> tuple[dict[str, Times], tuple[int, int]]:
    """The times, and the bytes of the tensor and of its code."""
    codec = case.subject.codec_for(case.shape)
    x = case.subject.tensor(case.shape, case.dtype, case.layout, settings.device)
    packed = codec.encode(x, 0)

    def encode() -> Packed:
        return codec.encode(x, 0)

    def decode() -> Tensor:
        return codec.decode(packed)

    works: dict[str, Callable[[], object]] = {CLONE: x.clone, "encode": encode, "decode": decode}
    least = min(5, settings.repeats)
    times = alternate(works, clock, most=settings.repeats, least=least, seconds=settings.seconds, warm_up=2)
    return times, (x.nbytes, packed.nbytes)


def _row(case: Case, op: str, times: dict[str, Times], counted: int) -> Row:
    own, clone = times[op], times[CLONE]
    return {
        "op": op,
        "codec": case.subject.name,
        "bits": case.subject.bits,
        "shape": list(case.shape),
        "dtype": case.dtype,
        "layout": case.layout,
        "time_ratio": significant(own.median / clone.median),
        "gbps": significant(counted / own.median / 1e9),
        "bytes": counted,
        "seconds": significant(own.median),
        "spread": significant(own.spread),
        "repeats": len(own.seconds),
    }


@contextlib.contextmanager
def _forced(body: str | None) -> Iterator[None]:
    """The CPU's ops use this body inside; None leaves the choice.

    Raises:
        SettingsError: a body that is not here.
    """
    if body is None:
        yield
        return
    if body not in library.RUNNABLE:
        raise SettingsError([f"body is {body!r}: expected one that runs here, {', '.join(library.RUNNABLE)}"])
    with library.forced(body):
        yield
