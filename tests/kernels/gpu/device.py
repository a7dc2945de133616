"""Every op on a CUDA device against the CPU: a line for each result whose bits differ, and how many were compared.

``python -m tests.kernels.gpu.device`` runs it alone, in a process for each of some cores: most of its time goes into
compiling. They must be processes in which Triton isn't interpreted.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import division.codecs  # noqa: F401  (defines the ops)
from division.kernels import gpu
from division.kernels.ops import call
from tests.codecs import kinds
from tests.kernels.gpu.maps import BITS, DTYPES, laid_out, values
from tests.kernels.gpu.same import same

SHAPES = (
    (64, 512, 7, 7),
    (32, 64, 56, 56),
    (4, 8, 112, 112),
    (3, 67, 4, 4),
    (5, 13, 14, 14),
    (1, 2, 400, 300),
    (4, 8, 33),
    (1, 3, 5000),
    (2, 4, 3, 6, 5),
    (1, 2, 20, 40, 48),
)
BOTH = ("contiguous", "channels_last")
WORKERS = min(12, os.cpu_count() or 1)
Arguments = tuple[Any, ...]
#: Name of an op, what is special about the call, and its arguments once they are wanted.
Check = tuple[str, str, Callable[[], Arguments]]


def dual(size: tuple[int, ...], dtype: torch.dtype, layout: str, bits: int) -> Iterator[Check]:
    """Both ways."""
    about = f"{size} {dtype} {layout} {bits} bits"

    def encode() -> Arguments:
        return laid_out(values(size, dtype, 1), layout), 8, bits, 5

    def decode() -> Arguments:
        x = encode()[0]
        return *call("dual_encode")(x, 8, bits, 5), list(size), list(x.stride()), dtype, 8, bits

    yield "dual_encode", about, encode
    yield "dual_decode", about, decode


def pool(size: tuple[int, ...], dtype: torch.dtype, layout: str) -> Iterator[Check]:
    """Both ways."""

    def there() -> Arguments:
        return laid_out(values(size, dtype, 1), layout), 8

    def back() -> Arguments:
        x = there()[0]
        return call("block_pool")(x, 8), list(size), list(x.stride()), dtype, 8

    yield "block_pool", f"{size} {dtype} {layout}", there
    yield "block_spread", f"{size} {dtype} {layout}", back


def group(size: tuple[int, ...], dtype: torch.dtype, layout: str, bits: int) -> Iterator[Check]:
    """Both ways."""
    about = f"{size} {dtype} {layout} {bits} bits"

    def encode() -> Arguments:
        return laid_out(values((*size, 1), dtype, 2)[..., 0], layout), 1, 64, [bits], 5

    def decode() -> Arguments:
        x = encode()[0]
        return *call("group_encode")(*encode()), list(size), list(x.stride()), dtype, 1, 64, [bits]

    yield "group_encode", about, encode
    yield "group_decode", about, decode


def mixed(size: tuple[int, ...], dtype: torch.dtype, layout: str, bits: float) -> Iterator[Check]:
    """Both ways."""
    about, total = f"{size} {dtype} {layout} {bits} bits", int(size[0] * bits)

    def encode() -> Arguments:
        return laid_out(values((*size, 1), dtype, 2)[..., 0], layout), 256, total, 5

    def decode() -> Arguments:
        x = encode()[0]
        return *call("mixed_encode")(*encode()), list(size), list(x.stride()), dtype, 256

    yield "mixed_encode", about, encode
    yield "mixed_decode", about, decode


def ranged(size: tuple[int, ...], dtype: torch.dtype, layout: str) -> Iterator[Check]:
    """Rows by parameters that are given."""

    def encode() -> Arguments:
        x = laid_out(values((*size, 1), dtype, 2)[..., 0], layout).nan_to_num(0.0, 1.0, -1.0)
        scale = torch.tensor([-1.0, 2.0**-7], dtype=torch.bfloat16).repeat(size[0], 1, 1)
        return x, scale, 1, 8, 5

    yield "ranged_encode", f"{size} {dtype} {layout}", encode


def frequency(size: tuple[int, ...], dtype: torch.dtype, layout: str) -> Iterator[Check]:
    """Both ways."""

    def encode() -> Arguments:
        return laid_out(values(size, dtype, 4), layout), 8.0, 0.3

    def decode() -> Arguments:
        x = encode()[0]
        return *call("frequency_encode")(*encode()), list(size), list(x.stride()), dtype, 8.0, 0.3

    yield "frequency_encode", f"{size} {dtype} {layout}", encode
    yield "frequency_decode", f"{size} {dtype} {layout}", decode


def error_bound(kind: str, dtype: torch.dtype, bound: float) -> Iterator[Check]:
    """Both ways."""
    x, limit = kinds.values(kind, 70_001).to(dtype), torch.tensor([bound])
    code = call("error_bound_encode")(x, limit)
    yield "error_bound_encode", f"{kind} {dtype} {bound}", lambda: (x, limit)
    yield "error_bound_decode", f"{kind} {dtype} {bound}", lambda: (*code, limit, [70_001], [1], dtype)


def exact(size: tuple[int, ...], dtype: torch.dtype, layout: str) -> Iterator[Check]:
    """The ops on single elements."""
    about, x = f"{size} {dtype} {layout}", laid_out(values(size, dtype, 3), layout)
    target, bounds = (list(size), list(x.stride()), dtype), (-0.5, 1.0)
    inside, mask = (x, *bounds, True, False, True), (x > 0).to(dtype)
    yield "bits_encode", about, lambda: inside
    yield "bits_decode", about, lambda: (call("bits_encode")(*inside), *target, 1.0, 0.25)
    yield "interval_encode", about, lambda: (x, *bounds)
    yield "interval_decode", about, lambda: (call("interval_encode")(x, *bounds), *target, [0.0, 1.0, 0.5, 2.0])
    yield "mask_encode", about, lambda: (mask,)
    yield "mask_decode", about, lambda: (call("mask_encode")(mask), torch.ones(1, dtype=dtype), *target[:2])


def window(kernel: int, stride: int, padding: int) -> Iterator[Check]:
    """Indices of a pooling."""
    about = ([30, 22], [kernel] * 2, [stride] * 2, [padding] * 2, [1, 1])
    x = torch.randn(3, 5, 30, 22, generator=torch.Generator().manual_seed(0))
    _, index = torch.nn.functional.max_pool2d(x, kernel, stride, padding, return_indices=True)
    yield "window_encode", f"{about}", lambda: (index, *about)
    yield (
        "window_decode",
        f"{about}",
        lambda: (call("window_encode")(index, *about), list(index.shape), list(index.stride()), *about),
    )


def checks_of_rows() -> Iterator[Check]:
    """Those of groups, by rows."""
    for dtype, bits in product(DTYPES, (1, 2, 3, 4, 8, 16)):
        yield from group((64, 1024), dtype, "contiguous", bits)
    for size, layout in product(((7, 3, 190), (2, 5, 9, 11)), ("contiguous", "reversed")):
        yield from group(size, torch.float32, layout, 2)
    for dtype, average in product(DTYPES, (1, 1.5, 2, 3.25, 6, 8)):
        yield from mixed((64, 1027), dtype, "contiguous", average)
    for size, layout in product(((7, 3, 190), (5, 64, 14, 14)), ("contiguous", "reversed")):
        yield from mixed(size, torch.float32, layout, 2.5)
    for size, dtype, layout in product(((64, 1024), (2, 16, 9, 11)), DTYPES, ("contiguous", "reversed")):
        yield from ranged(size, dtype, layout)


def checks() -> Iterator[Check]:
    """All of them, always in the same order."""
    for size, dtype, layout in product(SHAPES, DTYPES, BOTH):
        yield from dual(size, dtype, layout, 2)
    for dtype, layout, bits in product(DTYPES, BOTH, BITS):
        yield from dual((2, 3, 17, 5), dtype, layout, bits)
    for size, layout in product(SHAPES, BOTH):
        yield from pool(size, torch.float32, layout)
    for size in ((2, 3, 17, 5), (2, 4, 3, 6, 5)):
        yield from dual(size, torch.bfloat16, "reversed", 4)
    yield from checks_of_rows()
    for size, layout in product(SHAPES, BOTH):
        yield from frequency(size, torch.float32, layout)
    for dtype in DTYPES:
        yield from frequency((2, 3, 17, 5), dtype, "reversed")
    for size, dtype, layout in product(((64, 1024), (2, 16, 9, 11)), (torch.float32, torch.bfloat16), BOTH):
        yield from exact(size, dtype, layout)
    for kind, dtype, bound in product(kinds.KINDS, kinds.DTYPES, (1e-3, 0.3)):
        yield from error_bound(kind, dtype, bound)
    yield from window(3, 2, 1)
    yield from window(2, 2, 0)


def moved(x: Tensor) -> Tensor:
    """The tensor on the device, with its strides."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda").copy_(x)


def differs(name: str, arguments: Arguments) -> bool:
    """Whether the op gives other bits on the device than on the CPU."""
    got = tree_leaves(call(name)(*tree_map(lambda a: moved(a) if isinstance(a, Tensor) else a, arguments)))
    return not all(same(a.cpu(), b) for a, b in zip(got, tree_leaves(call(name)(*arguments)), strict=True))


def compare(part: int, parts: int) -> int:
    """One part of the checks; 1 if any result differs."""
    compared = wrong = 0
    for number, (name, about, arguments) in enumerate(checks()):
        if number % parts == part:
            compared += 1
            if differs(name, arguments()):
                wrong += 1
                sys.stdout.write(f"{name} {about}\n")
    sys.stdout.write(f"{wrong} of {compared} differ on {torch.cuda.get_device_name()}\n")
    return min(wrong, 1)


def main() -> int:
    """All of the checks, shared among processes; 0 if all results are the same."""
    if len(sys.argv) > 1:
        return compare(int(sys.argv[1]), int(sys.argv[2]))
    runs, why = gpu.status()
    sys.stdout.write(f"{why}\n")
    sys.stdout.flush()
    if not runs:
        return 1
    command = [sys.executable, "-m", "tests.kernels.gpu.device"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen([*command, str(part), str(WORKERS)], env=env) for part in range(WORKERS)]
    return max(worker.wait() for worker in workers)


if __name__ == "__main__":
    sys.exit(main())
