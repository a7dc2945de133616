"""The kernel that shows whether Triton compiles and launches here."""

import torch
import triton
import triton.language as tl

from division.kernels.gpu.launch import Configuration, Launch


@triton.jit
def probe_kernel(out: tl.tensor) -> None:
    """Write a 1."""
    tl.store(out, 1)


def configurations() -> list[Configuration]:
    """The one there is."""
    return [
        Launch(probe_kernel, (1,), {"out": torch.empty(1, dtype=torch.int32, device="meta")}).configuration("probe")
    ]
