"""Values that try a bound on errors."""

import math

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
KINDS = (
    "noise", "relu", "sparse", "constant", "ramp", "walk", "signs", "spikes", "huge", "denormal", "greatest", "zero", "odd",
)  # fmt: skip


def values(kind: str, count: int, seed: int = 0) -> Tensor:
    """float32 values of a kind; "odd" holds some that are not finite."""
    x = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    if kind == "relu":
        x.relu_()
    elif kind == "sparse":
        x *= torch.arange(count) % 37 == 5
    elif kind == "constant":
        x.fill_(1.2345)
    elif kind == "ramp":
        x = torch.arange(count) * 0.37 - 100
    elif kind == "walk":
        x = x.cumsum(0)
    elif kind == "signs":
        x = x.sign()
    elif kind == "spikes":
        x[::701] *= 1e4
    elif kind in ("huge", "denormal"):
        x *= 8e37 if kind == "huge" else 1e-40
    elif kind == "greatest":
        x = x.sign() * torch.finfo(torch.float32).max
    elif kind == "zero":
        x.zero_()
    elif kind == "odd":
        x[:: max(count // 3, 1)] = math.nan
        x[1 :: max(count // 2, 1)] = -math.inf
    return x
