"""Which body an op uses on a device, and why not a faster one."""

from dataclasses import dataclass

import torch

from division.kernels import gpu, ops
from division.kernels.cpu import library


@dataclass(frozen=True)
class Body:
    """What runs when an op is called.

    Attributes:
        op: name of the op.
        device: type of the device: ``"cpu"``, ``"cuda"``, ...
        body: ``"reference"`` (plain PyTorch), ``"portable"``, ``"avx2"``, ``"avx512"`` (C++) or ``"triton"``.
        why: why not a faster one; "" if this is the fastest there is.
    """

    op: str
    device: str
    body: str
    why: str


def body_of(op: str, device: str | torch.device) -> Body:
    """The body that an op uses now for tensors on a device, as far as their dtype and layout allow it.

    float64, and layouts that the faster bodies don't take, go to the reference body all the same.

    Raises:
        ValueError: an unknown op; the message lists the known ones.

    Example:
        >>> body_of("dual_encode", "mps").body
        'reference'
    """
    if op not in ops.names():
        raise ValueError(f"got op {op!r}, expected one of {', '.join(ops.names())}")
    kind = torch.device(device).type
    if kind == "cpu" and "CPU" in ops.keys(op):
        return Body(op, kind, library.body(), library.why())
    if kind == "cuda" and "CUDA" in ops.keys(op):
        runs, why = gpu.status()
        return Body(op, kind, "triton" if runs else "reference", "" if runs else why)
    if kind == "cuda":
        return Body(op, kind, "reference", gpu.status()[1])
    return Body(op, kind, "reference", f"{op} has no other body for {kind}")
