"""One saved tensor: what it is, whether to code it, and what autograd is then given for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from division.account import EXCLUDED, STATE, WEIGHT, Record
from division.code import Codes, unpack
from division.codecs.bits import Mask, is_mask
from division.codecs.codec import Codec
from division.private import bytes_without_storage, is_fake, storage_of
from division.rules import LOSSY, Reading, Use

_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
# A weight seen through these is still the weight.
_DISGUISES = [
    "Alias",
    "Detach",
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Reshape",
    "AsStrided",
    "T",
    "Transpose",
    "Permute",
    "Movedim",
    "Expand",
    "ToCopy",
    "To",
    "Clone",
    "Squeeze",
    "Unsqueeze",
    "Select",
    "Slice",
    "Narrow",
    "Unbind",
    "Split",
    "SplitWithSizes",
    "Chunk",
    "Flatten",
    "Unflatten",
    "Diagonal",
]


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that a node saved: what a method may look at when it chooses a codec.

    Attributes:
        node: autograd's name of the operation, e.g. ``ConvolutionBackward0``.
        field: autograd's name of the tensor within the node; its index among the saved tensors of a custom Function.
        tensor: the tensor; not to be kept or changed.
        module: qualified name of the module at work, "" where no model is attached.
    """

    node: str
    field: str | int
    tensor: Tensor
    module: str = ""

    @property
    def owner(self) -> str:
        """Whose saved tensor it is, for a person to read."""
        return f"{self.module} {self.node}.{self.field}".strip()


def raw_fields(node: Any) -> Iterator[tuple[str | int, Any, Callable[[], Any]]]:
    """(field, raw saved tensor, how to read it) of everything a node saved.

    Nothing is read here: reading runs an unpack hook where there is one, and raises where the tensor was changed in
    place. Of a custom Function, fields are the indices into ``saved_tensors``; a field that holds a list of tensors
    gives ``field[i]`` for each.
    """
    for name in _raw_names(type(node)):
        raw = getattr(node, f"_raw_{name}")
        if name == "saved_tensors":
            yield from ((i, item, partial(_item, node, name, i)) for i, item in enumerate(raw))
        elif isinstance(raw, tuple | list):
            field = name.removeprefix("saved_")
            yield from ((f"{field}[{i}]", item, partial(_item, node, f"_{name}", i)) for i, item in enumerate(raw))
        else:
            yield name.removeprefix("saved_"), raw, partial(getattr, node, f"_{name}")


def _item(node: Any, name: str, index: int) -> Any:
    return getattr(node, name)[index]


# Weakly: the class of a custom Function's node may be made on the fly, and what it holds with it.
_names_by_type: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()


def _raw_names(kind: type) -> tuple[str, ...]:
    names = _names_by_type.get(kind)
    if names is None:
        found = (a.removeprefix("_raw_") for a in dir(kind) if a.startswith("_raw_saved_"))
        names = _names_by_type[kind] = tuple(found)
    return names


def is_weight(x: Tensor) -> bool:
    """Whether ``x`` is a weight, or one seen through views, transposes, casts and expansions alone."""
    base = x._base
    if isinstance(x, torch.nn.Parameter) or isinstance(base, torch.nn.Parameter):
        return True
    if x.is_leaf:
        return x.requires_grad
    node = x.grad_fn
    while node is not None and node.next_functions:
        if node.name().rstrip("0123456789").removesuffix("Backward") not in _DISGUISES:
            return False
        node = node.next_functions[0][0]
    return node is not None and node.name().endswith("AccumulateGrad")


def why_left(x: Tensor, fakes: bool) -> str:
    """Why a tensor of this kind is never touched, whatever the rule says; "" if it may be."""
    if type(x) not in _PLAIN and not (fakes and is_fake(x)):
        return f"a {type(x).__name__}, not a plain tensor"
    if x.layout is not torch.strided:
        return f"layout {x.layout}"
    if x.is_nested:
        return "a nested tensor"
    if x.is_conj() or x.is_neg():
        # Same memory, other values: it must not share a code, and a codec may read the memory as it is.
        return "a lazily conjugated or negated view"
    return ""


def choose(
    reading: Reading, saved: Saved, inputs: bool, choice: Callable[[Reading, Saved], Codec | None]
) -> Codec | str:
    """The codec for a saved tensor whose use is known, or why it is left.

    Args:
        inputs: whether tensors that no node made are coded too.
        choice: the method's.
    """
    x = saved.tensor
    if reading.use in LOSSY or reading.use is Use.SIGN:
        if is_weight(x):
            return WEIGHT
        if x.grad_fn is None and not isinstance(saved.field, int):
            if reading.factor and x.numel() > 1 and is_mask(x):
                reading = Reading(Use.MASK, Mask())
            elif not inputs:
                return "made by no node: its owner still holds it"
    codec = choice(reading, saved)
    if codec is None:
        return "the method leaves this use"
    reason = codec.why_not(x)
    if reason is not None:
        return reason
    if codec.packed_bytes(x.shape, x.dtype) >= x.nbytes:
        return "its code would be no smaller"
    return codec


def record_of(saved: Saved, use: str) -> Record:
    """The account's line for a saved tensor, not coded yet."""
    x = saved.tensor
    record = Record(saved.module, saved.node, str(saved.field), use, (), x.dtype, 0)
    if x.layout is torch.strided and not x.is_nested:
        record.shape, record.raw_bytes = tuple(x.shape), x.nbytes
        record.storage, record.storage_bytes, record.reference = storage_of(x)
    else:
        record.shape = () if x.is_nested else tuple(x.shape)
        record.storage, record.raw_bytes = id(record), bytes_without_storage(x)
        record.storage_bytes = record.raw_bytes
    return record


def handle(
    saved: Saved, raw: Any, reading: Reading | None, codes: Codes, next_seed: Callable[[], int],
    choice: Callable[[Reading, Saved], Codec | None], *, inputs: bool = False, fakes: bool = False,
) -> Record:  # fmt: skip
    """Code one saved tensor if it may and should be, and say what was done.

    The code is made first; only then are the hooks registered, and pack merely returns it: a failure before that
    leaves the saved tensor as it was.
    """
    record = record_of(saved, reading.use.name.lower() if reading else "")
    left = why_left(saved.tensor, fakes)
    if left or reading is None:
        record.left = left or _without_rule(saved)
        return record
    codec = choose(reading, saved, inputs, choice)
    if isinstance(codec, str):
        record.left = codec
        return record
    reason = codes.why_left(saved.tensor)
    if reason and codec.packed_bytes(saved.tensor.shape, saved.tensor.dtype):
        record.left = reason
        return record
    code, shared = codes.code(saved.tensor, saved.owner, codec, next_seed)
    raw.register_hooks(lambda _: code, unpack)
    code.records.append(record)
    record.codec = str(code.codec)
    if shared:
        record.shared = code.owner
    else:
        record.packed_bytes = code.own_bytes
    return record


def _without_rule(saved: Saved) -> str:
    if is_weight(saved.tensor):
        return WEIGHT
    return STATE if saved.field in ("running_mean", "running_var") else "no rule"


def why_excluded(saved: Saved, is_state: bool) -> str:
    """Why a saved tensor of an excluded part is left: a weight or state is that before all else."""
    reason = _without_rule(saved)
    if reason != "no rule":
        return reason
    return STATE if is_state else EXCLUDED
