"""What the processes of a data-parallel training agree on, so that each learns the same."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, distributed


def several_ranks() -> bool:
    """Whether this is one of several processes that train together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def mean_over_ranks(names: Sequence[str], values: Tensor) -> Tensor:
    """The mean of the values over all processes, where all of them hold values of these names; else the values as given.

    Two small exchanges over the default process group: whether the names are the same everywhere, then the values. Every
    process has to call it equally often. Without a process group, or with one process, there is nothing to do.

    Args:
        names: what the values are of, in order.
        values: float64, one dim, on the CPU, of any length.

    Example:
        >>> mean_over_ranks(["a", "b"], torch.tensor([1.0, 2.0], dtype=torch.float64))
        tensor([1., 2.], dtype=torch.float64)
    """
    if not several_ranks():
        return values
    device = _device()
    text = repr((list(names), tuple(values.shape))).encode()
    mark = int.from_bytes(hashlib.sha256(text).digest()[:6], "little")
    marks = torch.tensor([mark, -mark], dtype=torch.int64, device=device)
    distributed.all_reduce(marks, distributed.ReduceOp.MAX)
    if marks.tolist() != [mark, -mark]:
        return values  # pipeline stages, say, which have nothing in common
    total = values.to(device)
    distributed.all_reduce(total)
    return total.cpu() / distributed.get_world_size()


def _device() -> torch.device:
    """Where the process group's backend takes tensors."""
    if "nccl" in distributed.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
