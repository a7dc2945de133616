"""What `benchmarks/gpu.sh` runs: parity with the CPU, kernels and training steps on a GPU, rows written as they come.

The figures that matter most come first, so that a run cut short leaves them; what the time does not suffice for is left
out and named.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from division import doctor
from division.bench import kernels, rows, step
from division.bench.settings import GPU_SHAPES, QUICK_SHAPES, KernelSettings, StepSettings, Workload
from division.bench.subjects import DTYPES, LAYOUTS, SUBJECTS, Subject, layouts
from division.kernels.cpu import library

START = time.perf_counter()
PARITY_SHAPES = (
    (2, 3, 56, 56),
    (2, 3, 17, 5),
    (1, 5, 112, 112),
    (3, 67, 7, 7),
    (4, 8, 1, 33),
    (2, 4, 3, 6, 5),
    (7, 190),
)
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SEED = 7


def say(text: str) -> None:
    """A line with the seconds since the start."""
    sys.stdout.write(f"[{time.perf_counter() - START:6.1f} s] {text}\n")
    sys.stdout.flush()


class Rows:
    """The rows of one measurement, on the disk after each."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.found: list[rows.Row] = []
        self.name, self.path = name, folder / f"bench_{name}.jsonl" if folder else None
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def add(self, row: rows.Row) -> None:
        """One more."""
        self.found.append(row)
        if self.path is None:
            rows.replace(rows.results(self.name), self.found)
        else:
            with self.path.open("a") as file:
                file.write(rows.line(row))


def inputs(subject: Subject, shape: tuple[int, ...], dtype: str, layout: str) -> Iterator[Tensor]:
    """Tensors that a subject takes: of usual values, and with planes of what is special."""
    x = subject.tensor(shape, dtype, layout, "cpu")
    yield x
    if subject.input == "values":
        special = x.clone()
        special[-1] = 0.3
        for place, value in ((0, float("nan")), (1, float("inf")), (2, -0.0)):
            special[(0, place % len(special[0]), *(0,) * (x.dim() - 2))] = value
        yield special


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, but for the bits of a NaN."""
    if a.shape != b.shape or a.stride() != b.stride() or a.dtype != b.dtype:
        return False
    equal = a.contiguous().view(INTEGERS[a.itemsize]) == b.contiguous().view(INTEGERS[b.itemsize])
    return bool((equal | (a.isnan() & b.isnan()) if a.is_floating_point() else equal).all())


def parity_cases() -> Iterator[tuple[Subject, tuple[int, ...], str, str]]:
    """Every subject on every shape, dtype and layout; the dual codec of 2 bits first."""
    for subject in SUBJECTS:
        for shape in filter(subject.takes, PARITY_SHAPES):
            for dtype in subject.dtypes(tuple(DTYPES)):
                for layout in layouts(shape, LAYOUTS):
                    yield subject, shape, dtype, layout


def differs(subject: Subject, x: Tensor, device: str) -> bool:
    """Whether the device codes or decodes otherwise than the CPU's reference."""
    codec = subject.codec_for(tuple(x.shape))
    there = codec.encode(x.to(device), SEED)
    decoded = codec.decode(there).cpu()
    with library.forced(library.REFERENCE):
        here = codec.encode(x, SEED)
        parts = zip(here.parts, there.parts, strict=True)
        return not (all(same(a, b.cpu()) for a, b in parts) and same(codec.decode(here), decoded))


def differences(device: str, seconds: float) -> list[str]:
    """The cases that differ, of those that the time suffices for: a GPU's kernels are compiled shape by shape."""
    begin, wrong, count = time.perf_counter(), [], 0
    todo = list(parity_cases())
    for subject, shape, dtype, layout in todo:
        if time.perf_counter() - begin > seconds:
            break
        count += 1
        if any(differs(subject, x, device) for x in inputs(subject, shape, dtype, layout)):
            wrong.append(f"{subject.codec_for(shape)} {shape} {dtype} {layout}")
    say(f"parity: {len(wrong)} of {count} cases differ, {len(todo) - count} left out for want of time")
    return wrong


def measure_kernels(settings: KernelSettings, into: Rows, deadline: float) -> None:
    """Kernels, as many cases as the time suffices for."""
    for row in kernels.measure(settings):
        into.add(row)
        place = f"{row['codec']} {row['bits']} {row['shape']} {row['dtype']} {row['layout']}"
        say(f"{row['op']} {place}: {row['gbps']:.0f} GB/s, {row['time_ratio']:.2f} of a copy, {row['body']}")
        if time.perf_counter() - START > deadline:
            say("the time is used up: further kernels are left out")
            return


def main() -> int:
    """Everything, within the time; 1 where a code differs from the CPU's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=300.0, help="after so many, nothing further begins")
    parser.add_argument("--parity-seconds", type=float, default=60.0, help="of these for parity")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="only put the rows of a folder into results")
    given = parser.parse_args()
    if given.keep is not None:
        for path in sorted(given.keep.glob("bench_*.jsonl")):
            target = rows.results(path.stem.removeprefix("bench_"))
            rows.replace(target, rows.read(path))
            say(f"{path} is in {target}")
        return 0
    device = given.device
    if device.startswith("cuda") and not torch.cuda.is_available():
        say("no GPU is visible: nothing to measure (--device cpu --quick tries the script)")
        return 1
    folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    say(json.dumps({key: value for key, value in doctor.examine().items() if key != "bodies"}))
    wrong = differences(device, given.parity_seconds)
    for line in wrong:
        say(f"differs from the CPU: {line}")

    coded = Rows("kernels", folder)
    shapes = QUICK_SHAPES if given.quick else GPU_SHAPES
    usual = KernelSettings(("dual",), (2,), shapes, ("float32", "bfloat16"), device=device, seconds=1.0)
    usual = replace(usual, repeats=3) if given.quick else usual
    measure_kernels(usual, coded, given.seconds)

    if importlib.util.find_spec("torchvision") is None and not given.quick:
        say("torchvision is missing: no training steps")
    else:
        measure_steps(device, given.quick, Rows("step", folder), given.seconds)

    others = tuple(dict.fromkeys(s.name for s in SUBJECTS if s.name != "dual"))
    if time.perf_counter() - START < given.seconds:
        measure_kernels(replace(usual, codecs=("dual",), bits=(1, 4, 8)), coded, given.seconds)
    if time.perf_counter() - START < given.seconds:
        measure_kernels(replace(usual, codecs=others, bits=None), coded, given.seconds)
    say("done")
    return 1 if wrong else 0


def measure_steps(device: str, quick: bool, into: Rows, deadline: float) -> None:
    """Steps of ResNet-50: TF32 and bf16 autocast, both layouts."""
    base = Workload("resnet50", 224, 256, ("none", "division"), device, tf32=True)
    if quick:
        base = replace(base, model="resnet18", image_size=8, batch_size=4)
    for amp in ("none", "bf16"):
        for last in (True, False):
            if time.perf_counter() - START > deadline:
                say("the time is used up: further steps are left out")
                return
            load = replace(base, amp=amp, channels_last=last)
            for row in step.measure(StepSettings((load,), repeats=3 if quick else 20, seconds=20.0)):
                into.add(row)
                how = f"{row['amp']} {row['layout']} {row['method']}"
                peak = "" if row["peak_bytes"] is None else f", peak {row['peak_bytes'] / 2**30:.2f} GiB"
                say(
                    f"{load.title} {how}: {row['throughput_ratio']:.3f} of none, {row['images_per_s']:.0f} images/s{peak}"
                )


if __name__ == "__main__":
    sys.exit(main())
