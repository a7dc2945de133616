"""Layouts of tensors: which can be coded element by element, and how they come back."""

from collections.abc import Callable, Sequence

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


def memory_order(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The dims from outermost to innermost in memory: a dense layout permuted so is contiguous.

    The order of the dims of one element is of no account; the strides that :func:`dense_stride` gives tell the same.

    Example:
        >>> memory_order((2, 3, 4, 5), (60, 1, 15, 3))
        (0, 2, 3, 1)
    """
    ones = [d for d in range(len(size)) if size[d] <= 1]
    return (*ones, *reversed(_by_stride(size, stride)))


def in_memory_order(x: Tensor) -> Tensor:
    """A view of ``x`` with its dims permuted into the order they have in memory: contiguous where ``x`` is dense."""
    return x if x.is_contiguous() else x.permute(memory_order(x.shape, x.stride()))


def from_memory_order(
    make: Callable[[Sequence[int], Sequence[int]], Tensor], size: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """What ``make(size, stride)`` gives when it is handed the dims in memory order, permuted back.

    Example:
        >>> import torch
        >>> x = torch.empty_strided((2, 3), (1, 2))
        >>> from_memory_order(lambda size, stride: x.t(), (2, 3), (1, 2)).stride()
        (1, 2)
    """
    if sorted(stride, reverse=True) == list(stride):
        return make(size, stride)
    order = memory_order(size, stride)
    x = make([size[d] for d in order], [stride[d] for d in order])
    return x.permute(sorted(range(len(order)), key=order.__getitem__))
