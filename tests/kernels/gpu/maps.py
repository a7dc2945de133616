"""Maps to compare bodies on: shapes, layouts and values that are odd in every way."""

import math
from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BITS = (1, 2, 4, 8)
LAYOUTS = ("contiguous", "channels_last", "reversed", "rotated", "gapped", "steps", "expanded")


def laid_out(x: Tensor, layout: str) -> Tensor:
    """A tensor equal to a contiguous one, in another layout."""
    dims = range(x.dim())
    if layout == "channels_last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "reversed":
        return x.permute(*reversed(dims)).contiguous().permute(*reversed(dims))
    if layout == "rotated":
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout == "gapped":
        wide = torch.full([n + 1 for n in x.shape], math.nan, dtype=x.dtype)
        inside = wide[tuple(slice(n) for n in x.shape)]
        return inside.copy_(x)
    if layout == "steps":
        return torch.stack((x, torch.full_like(x, math.nan)), -1).select(-1, 0)
    if layout == "expanded":
        return x[:1].expand(x.shape)
    return x


def values(size: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """A contiguous map of which each plane is of some kind: ordinary, of one value, with a NaN, at the ends of floats."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    limit, rows = torch.finfo(dtype).max, x.view(size[0] * size[1], -1)
    for row in rows:
        kind, spot = (int(n) for n in torch.randint(0, 1 << 20, (2,), generator=generator))
        first, here = float(row[0]), spot % row.numel()
        if kind % 16 == 0:
            row.fill_(first)
        elif kind % 16 == 1:
            row.fill_(-0.0)
        elif kind % 16 == 2:
            row[here] = (math.nan, math.inf, -math.inf)[spot % 3]
        elif kind % 16 == 3:
            row.fill_((math.nan, math.inf, -math.inf)[spot % 3])
        elif kind % 16 == 4:
            row.clamp_(-1, 1).mul_(limit)
        elif kind % 16 == 5:
            row.mul_(2.0**-132)
        elif kind % 16 == 6:
            row.relu_()
        elif kind % 16 == 7:
            row.add_(1000.0)
        elif kind % 16 == 8:
            row.fill_(limit if spot % 2 else -limit)
        elif kind % 16 == 9:
            row.mul_(2.0**-115)
    return x.clamp_(-math.inf, math.inf).to(dtype)


def sizes(most: int = 300, side: int = 20) -> st.SearchStrategy[tuple[int, ...]]:
    """``(N, C, *spatial)`` with planes of a few hundred cells at most."""
    spatial = st.lists(st.integers(1, side), min_size=1, max_size=3).filter(lambda dims: math.prod(dims) <= most)
    return st.builds(lambda n, c, dims: (n, c, *dims), st.integers(1, 3), st.integers(1, 5), spatial)
