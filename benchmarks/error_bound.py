"""The error-bounded codec beside SZ3: bytes and time at the same bound, on what convolutions read.

The inputs of all convolutions of ResNet-18 and VGG-11 on crops of photographs, after some steps of training; bounds are
shares of a tensor's greatest magnitude. SZ3 (the package `pysz`, its default algorithm) gets each tensor with its four dims
and as one row, and the fewer bytes count; it is timed on its own, without what the codec `sz3` adds. Both are timed in
turns, on one thread and on as many as torch takes (SZ3 as shipped takes one), again and again for a while each; and one call
at a time, where each finds caches and heap as the other left them. Run: ``python -m benchmarks.error_bound``.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from pysz import sz, szConfig, szErrorBoundMode
from torch import Tensor, nn

from benchmarks.rows import provenance, record
from division.bench.tasks import Task
from division.codecs import ErrorBound

TASKS = {"resnet18": Task("resnet18", 112, 16), "vgg11": Task("vgg11", 112, 16)}
STEPS, RATE, BOUNDS, TURNS = 60, 0.01, (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), 5
WHILE = 0.02  # seconds


def inputs(task: Task, seed: int) -> dict[str, Tensor]:
    """What each convolution of the trained network reads of one batch, by the convolution's name; a tensor once."""
    torch.manual_seed(seed)
    model, draw = task.build("cpu").train(), task.batches(seed, "cpu")
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        task.loss(model, draw()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    found: dict[str, Tensor] = {}
    seen: set[int] = set()

    def keep(name: str, x: Tensor) -> None:
        if x.data_ptr() not in seen:
            seen.add(x.data_ptr())
            found[name] = x

    copies = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(lambda _, given, name=name: copies.append((name, given[0])))
    model(draw()[0])
    for name, x in copies:
        keep(name, x)
    return {name: x.detach().contiguous() for name, x in found.items()}


def seconds(turns: list[Callable[[], Any]], least: float) -> list[float]:
    """The median time of each call, in turns of at least so many seconds."""
    taken: list[list[float]] = [[] for _ in turns]
    for _ in range(TURNS):
        for own, call in zip(taken, turns, strict=True):
            start, passed, calls = perf_counter(), 0.0, 0
            while calls == 0 or passed < least:
                call()
                passed, calls = perf_counter() - start, calls + 1
            own.append(passed / calls)
    return [median(own) for own in taken]


def measure(x: Tensor, share: float) -> dict[str, Any]:
    """Bytes and seconds of both at one bound."""
    bound = share * float(x.abs().max())
    codec, values = ErrorBound(bound), x.numpy()
    packed = codec.encode(x, 0)

    def setting(dims: tuple[int, ...]) -> Any:
        made = szConfig()
        made.errorBoundMode, made.absErrorBound = szErrorBoundMode.ABS, bound
        made.setDims(*dims)
        return made

    coded = {dims: sz.compress(values.reshape(dims), setting(dims))[0] for dims in (values.shape, (values.size,))}
    best = min(coded, key=lambda dims: coded[dims].nbytes)
    row: dict[str, Any] = {
        "bound": share, "raw_bytes": x.nbytes, "bytes": packed.nbytes, "zeros": float((x == 0).float().mean()),
        "sz3_bytes": coded[best].nbytes, "sz3_dims": len(best),
    }  # fmt: skip
    turns: list[Callable[[], Any]] = [
        lambda: codec.encode(x, 0),
        lambda: codec.decode(packed),
        lambda: sz.compress(values.reshape(best), setting(best)),
        lambda: sz.decompress(coded[best], np.float32, best),
    ]
    every = torch.get_num_threads()
    for name, threads, least in (("one", 1, WHILE), ("all", every, WHILE), ("alone", every, 0.0)):
        torch.set_num_threads(threads)
        row[name] = seconds(turns, least)
    torch.set_num_threads(every)
    return row


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    source, threads = provenance(), torch.get_num_threads()
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for model, task in TASKS.items():
            with torch.enable_grad():
                tensors = inputs(task, 0)
            for name, x in tensors.items():
                about = {"model": model, "tensor": name, **source, "threads": threads}
                rows += [{**about, **measure(x, share)} for share in BOUNDS]
    record("error_bound", rows)
