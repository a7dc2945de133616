"""Layouts of tensors: which can be coded element by element, and how they come back."""

from collections.abc import Sequence

from torch import Tensor


def _by_stride(size: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Dims of more than one element, innermost first; ties keep the later dim innermost."""
    dims = [d for d in range(len(size)) if size[d] > 1]
    return sorted(dims, key=lambda d: (stride[d], -d))


def overlaps(x: Tensor) -> bool:
    """Whether two indices of ``x`` may share one place in memory (an expanded or an overlapping view)."""
    if x.numel() == 0:
        return False
    reach = 0
    for d in _by_stride(x.shape, x.stride()):
        if x.stride(d) <= reach:
            return True
        reach += x.stride(d) * (x.shape[d] - 1)
    return False


def dense_stride(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The strides of a copy of such a view without gaps, its dims in the same order.

    A layout that is dense already keeps its strides exactly, those of one-element dims included; so does an empty one.

    Example:
        >>> dense_stride((2, 3, 4), (100, 1, 3))
        (12, 1, 3)
    """
    step, dense = 1, list(stride)
    if 0 in size:
        return tuple(stride)
    for d in _by_stride(size, stride):
        dense[d] = step
        step *= size[d]
    return tuple(dense)
