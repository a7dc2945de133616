"""Automatic mixed precision by name: one spelling for training and for benchmarks."""

from __future__ import annotations

import torch

#: What autocast computes convolutions and matrix products in; None leaves it off.
DTYPES: dict[str, torch.dtype | None] = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(name: str, device: str) -> torch.autocast:
    """A new context for forward and loss.

    Args:
        name: a key of `DTYPES`.
        device: cpu, cuda or cuda:1.

    Example:
        >>> with autocast("bf16", "cpu"):
        ...     torch.nn.Linear(2, 3)(torch.ones(1, 2)).dtype
        torch.bfloat16
    """
    dtype = DTYPES[name]
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None)


def scaler(name: str, device: str) -> torch.amp.GradScaler:
    """Scales the loss under `fp16`, whose small gradients would become 0; lets everything through under the others.

    Arguments as for `autocast`.

    Example:
        >>> scaler("fp16", "cpu").is_enabled(), scaler("bf16", "cpu").is_enabled()
        (True, False)
    """
    return torch.amp.GradScaler(torch.device(device).type, enabled=DTYPES[name] is torch.float16)
