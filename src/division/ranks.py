"""What the processes of a data-parallel training agree on, so that each learns the same."""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, distributed


def several_ranks() -> bool:
    """Whether this is one of several processes that train together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def agreed(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The mean of each row over the processes that have one of that name, the same rows everywhere.

    Three exchanges at most, each a small one; every process has to call it equally often, with no rows too. Where a row is
    missing in some process, as after a batch without a gradient there, it gets what the others have. Processes that share
    no name at all, as pipeline stages do, keep to themselves, and so does each group of them that shares any.

    Args:
        rows: by name, float64, one dim, on the CPU.

    Example:
        >>> agreed({"a": torch.tensor([1.0, 2.0], dtype=torch.float64)})
        {'a': tensor([1., 2.], dtype=torch.float64)}
    """
    if not several_ranks():
        return dict(rows)
    names = sorted(rows)
    flat = torch.cat([rows[name] for name in names]) if names else torch.zeros(0, dtype=torch.float64)
    lengths = [len(rows[name]) for name in names]
    if _same_everywhere((names, lengths)):
        return dict(zip(names, _mean(flat).split(lengths), strict=True)) if names else {}
    found: list[dict[str, list[float]]] = [{}] * distributed.get_world_size()
    distributed.all_gather_object(found, {name: row.tolist() for name, row in rows.items()})
    group = _sharing([set(each) for each in found], distributed.get_rank())
    gathered: dict[str, list[list[float]]] = {}
    for rank in group:
        for name, row in found[rank].items():
            gathered.setdefault(name, []).append(row)
    return {
        name: torch.tensor(own, dtype=torch.float64).mean(0)
        for name, own in sorted(gathered.items())
        if len({len(row) for row in own}) == 1
    }


def _sharing(names: Sequence[set[str]], rank: int) -> list[int]:
    """The ranks that share names with this one, or with one that does; a rank without names goes with all, if they are one group."""
    groups: list[set[int]] = []
    for own in range(len(names)):
        if names[own]:
            joined = [group for group in groups if any(names[own] & names[other] for other in group)]
            groups = [group for group in groups if group not in joined] + [{own}.union(*joined)]
    if not names[rank]:
        return sorted(groups[0]) if len(groups) == 1 else []
    return sorted(next(group for group in groups if rank in group))


def _same_everywhere(value: object) -> bool:
    mark = int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:6], "little")
    marks = torch.tensor([mark, -mark], dtype=torch.int64, device=_device())
    distributed.all_reduce(marks, distributed.ReduceOp.MAX)
    return bool(marks.tolist() == [mark, -mark])


def _mean(values: Tensor) -> Tensor:
    total = values.to(_device())
    distributed.all_reduce(total)
    return total.cpu() / distributed.get_world_size()


def _device() -> torch.device:
    """Where the process group's backend takes tensors."""
    if "nccl" in distributed.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
