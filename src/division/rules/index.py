"""Indices, exact in the narrowest type that holds their range, which the node tells without a look at the values.

Of tensors that are indexed, or written into by index, backward asks for no more than the size.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from division.codecs.bits import Mask
from division.codecs.index import Narrow
from division.private import operand_size, output_size, signed_number
from division.rules.use import Reading, Rule, Table, Use, unread

Size = tuple[int, ...]
#: How many index tensors of one advanced indexing have a rule.
_MOST = 8
_mask = Reading(Use.MASK, Mask())


@lru_cache(maxsize=1024)
def _narrow(limit: int, signed: bool = False, given: bool = False) -> Reading | None:
    limit = max(1, limit)
    return None if limit > 1 << 31 else Reading(Use.INDEX, Narrow(limit, signed), given=given)


def _of(node: Any) -> Size | None:
    """The size of the only operand that can take a gradient, and so does."""
    return operand_size(node, 0)


def _into(node: Any) -> Size | None:
    """The size of what is written into, which is the result's."""
    return output_size(node)


def _saved(node: Any) -> Size | None:
    return tuple(node._saved_self_sym_sizes)


def _along_dim(size: Callable[[Any], Size | None], signed: bool) -> Rule:
    """Indices along one dim."""

    def rule(node: Any) -> Reading | None:
        sizes = size(node)
        if sizes is None:
            return None
        return _narrow(sizes[signed_number(node._saved_dim)] if sizes else 1, signed)

    return rule


def _flat(size: Callable[[Any], Size | None]) -> Rule:
    """Indices into all elements."""

    def rule(node: Any) -> Reading | None:
        sizes = size(node)
        return None if sizes is None else _narrow(math.prod(sizes), True)

    return rule


def _planes(dims: int) -> Rule:
    """Flat indices into the planes of the result."""

    def rule(node: Any) -> Reading | None:
        sizes = output_size(node)
        return None if sizes is None else _narrow(math.prod(sizes[-dims:]))

    return rule


def _item(i: int, size: Callable[[Any], Size | None]) -> Rule:
    """One of the tensors of an advanced indexing: indices, negative ones too, or a mask, which may cover many dims."""

    def rule(node: Any) -> Reading | None:
        sizes, indices = size(node), node._saved_indices
        kind = indices[i].dtype
        if sizes is None or kind is torch.uint8:
            return None
        if kind is torch.bool:
            return _mask
        masks = (torch.bool, torch.uint8)
        dim = sum(each.dim() if each is not None and each.dtype in masks else 1 for each in indices[:i])
        return _narrow(sizes[dim], True)

    return rule


def _items(size: Callable[[Any], Size | None]) -> dict[str, Rule]:
    return {f"indices[{i}]": _item(i, size) for i in range(_MOST)}


def _words(node: Any) -> Reading | None:
    return _narrow(node._saved_weight_sym_argsize_0, given=True)


def _labels(classes: int) -> Rule:
    """Class numbers, along this dim of the operand, and the number that stands for no class."""

    def rule(node: Any) -> Reading | None:
        sizes, none = _of(node), signed_number(node._saved_ignore_index)
        return None if sizes is None else _narrow(max(sizes[classes], abs(none) + 1), none < 0, given=True)

    return rule


_result = {"indices": _along_dim(_saved, False)}
_cumulative: dict[str, Rule] = {"indices": _along_dim(_of, False), "self": unread}
_written: dict[str, Rule] = {"index": _along_dim(_into, True)}
_written_from: dict[str, Rule] = {**_written, "source": unread}

RULES: Table = {
    "SortBackward0": _result,
    "SortBackward1": _result,
    "TopkBackward0": _result,
    "MaxBackward0": _result,
    "MinBackward0": _result,
    "MedianBackward1": _result,
    "NanmedianBackward1": _result,
    "KthvalueBackward0": _result,
    "ModeBackward0": _result,
    "CummaxBackward0": _cumulative,
    "CumminBackward0": _cumulative,
    "MaxUnpool2DBackward0": {"indices": _planes(2)},
    "MaxUnpool3DBackward0": {"indices": _planes(3)},
    "EmbeddingBackward0": {"indices": _words},
    "EmbeddingBagBackward0": {"indices": _words},
    "NllLossBackward0": {"target": _labels(-1), "self": unread},
    "NllLoss2DBackward0": {"target": _labels(1), "self": unread},
    "GatherBackward0": {"index": _along_dim(_of, True), "self": unread},
    "TakeBackward0": {"index": _flat(_of), "self": unread},
    "PutBackward0": {"index": _flat(_into), "source": unread},
    "IndexSelectBackward0": {"index": _along_dim(_saved, True)},
    "IndexAddBackward0": _written_from,
    "IndexCopyBackward0": _written_from,
    "IndexFillBackward0": _written,
    "IndexFillBackward1": _written,
    "ScatterBackward0": _written,
    "ScatterBackward1": _written,
    "ScatterAddBackward0": _written,
    "ScatterReduceBackward0": _written,
    "IndexBackward0": _items(_saved),
    "IndexPutBackward0": _items(_into),
}
