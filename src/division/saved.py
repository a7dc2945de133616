"""One saved tensor: what it is, whether to code it, and what autograd is then given for it."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor, strided
from torch.autograd.function import BackwardCFunction
from torch.nn import Buffer, Parameter

from division.account import EXCLUDED, HELD, NO_RULE, STATE, WEIGHT, Record
from division.code import Code, Codes, unpack
from division.codecs.bits import Mask, is_mask
from division.codecs.codec import Codec
from division.private import bytes_without_storage, is_fake, storage_of
from division.rules import LOSSY, Reading, Use

NO_SMALLER = "its code would be no smaller"
_READ = (*LOSSY, Use.SIGN)
_OF_VALUES = (*_READ, Use.SHAPE)  # masks and indices are no weights
_PLAIN = (Tensor, Parameter, Buffer)
# A weight seen through these is still the weight.
_DISGUISES = frozenset(
    {
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
    }
)


class Saved(NamedTuple):
    """A tensor that a node saved: what a method may look at when it chooses a codec.

    Attributes:
        node: autograd's name of the operation, e.g. ``ConvolutionBackward0``.
        field: autograd's name of the tensor within the node; its index among the saved tensors of a custom Function.
        tensor: the tensor; not to be kept or changed.
        module: qualified name of the module at work, "" where no model is attached.
        grad_fn: the node itself, not to be kept; None where there is none to show.
    """

    node: str
    field: str | int
    tensor: Tensor
    module: str = ""
    grad_fn: Any = None


class _Field(NamedTuple):
    """A saved field of a kind of node, and the attributes that give it raw and read."""

    name: str
    raw: str
    read: str


# All custom Functions save one list. Their classes may be made on the fly, so that none is kept in the table.
_CUSTOM = (_Field("", "_raw_saved_tensors", "saved_tensors"),)
_MANY = (tuple, list)
_fields_by_kind: dict[type, tuple[_Field, ...]] = {}


def fields_of(kind: type) -> tuple[_Field, ...]:
    """What nodes of this class save."""
    fields = _fields_by_kind.get(kind)
    if fields is not None:
        return fields
    if issubclass(kind, BackwardCFunction):
        return _CUSTOM
    names = (a.removeprefix("_raw_saved_") for a in dir(kind) if a.startswith("_raw_saved_"))
    fields = _fields_by_kind[kind] = tuple(_Field(name, f"_raw_saved_{name}", f"_saved_{name}") for name in names)
    return fields


def raw_fields(node: Any, fields: tuple[_Field, ...]) -> Iterator[tuple[str | int, Any, str, int | None]]:
    """(field, raw saved tensor, attribute to read it from, index within that) of everything a node saved.

    Nothing is read here: reading runs an unpack hook where there is one, and raises where the tensor was changed in
    place. Of a custom Function, fields are the indices into ``saved_tensors``; a field that holds a list of tensors
    gives ``field[i]`` for each.
    """
    for field, raw_name, name in fields:
        raw = getattr(node, raw_name)
        if isinstance(raw, _MANY):
            for i, item in enumerate(raw):
                yield f"{field}[{i}]" if field else i, item, name, i
        else:
            yield field, raw, name, None


def is_weight(x: Tensor) -> bool:
    """Whether ``x`` is a weight, or one seen through views, transposes, casts and expansions alone."""
    base = x._base
    # A plain Tensor is no Parameter; to ask isinstance takes long.
    if (type(x) is not Tensor and isinstance(x, Parameter)) or (base is not None and isinstance(base, Parameter)):
        return True
    node = x.grad_fn
    if node is None:
        return x.requires_grad
    while is_disguise(name := node.name()):
        sources = node.next_functions
        node = sources[0][0] if sources else None
        if node is None:
            return False
    return name.endswith("AccumulateGrad")


@lru_cache(maxsize=1024)
def is_disguise(node: str) -> bool:
    """Whether a weight seen through what a node of this name made is still the weight."""
    return node.rstrip("0123456789").removesuffix("Backward") in _DISGUISES


def why_left(x: Tensor, fakes: bool) -> str:
    """Why a tensor of this kind is never touched, whatever the rule says; "" if it may be."""
    if type(x) not in _PLAIN and not (fakes and is_fake(x)):
        return f"a {type(x).__name__}, not a plain tensor"
    if x.layout is not strided:
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
    if reading.given and not inputs:
        return HELD
    if reading.use in _OF_VALUES and is_weight(x):
        return WEIGHT
    if reading.use in _READ and x.grad_fn is None and not isinstance(saved.field, int):
        if reading.factor and x.numel() > 1 and is_mask(x):
            reading = Reading(Use.MASK, Mask())
        elif not inputs:
            return HELD
    codec = choice(reading, saved)
    if codec is None:
        return "the method leaves this use"
    reason = codec.why_not(x)
    if reason is not None:
        return reason
    if not _gains(codec, codec.least_bytes(x.shape, x.dtype), x):
        return NO_SMALLER
    return codec


def record_of(x: Tensor, module: str, node: str, field: str, use: str) -> Record:
    """The account's line for a saved tensor, not coded yet."""
    if x.layout is strided and not x.is_nested:
        return Record(module, node, field, use, x.shape, x.dtype, x.nbytes, storage_of(x))
    shape = () if x.is_nested else x.shape
    return Record(module, node, field, use, shape, x.dtype, bytes_without_storage(x))


def handle(
    saved: Saved, record: Record, raw: Any, reading: Reading, codes: Codes, next_seed: Callable[[], int],
    choice: Callable[[Reading, Saved], Codec | None], inputs: bool,
) -> None:  # fmt: skip
    """Code one saved tensor that may be coded, if it should be, and say on its record what was done.

    The code is made first; only then are the hooks registered, and pack merely returns it: a failure before that
    leaves the saved tensor as it was.
    """
    codec = choose(reading, saved, inputs, choice)
    if isinstance(codec, str):
        record.left = codec
        return
    x, storage = saved.tensor, record.reference
    assert storage is not None
    if reason := codes.why_left(storage):
        record.left = reason  # not even a code of no bytes, whose decoding takes memory in backward
        return
    code = coded(x, record, codec, codes, next_seed)
    if code is not None:
        raw.register_hooks(lambda _: code, unpack)


def coded(x: Tensor, record: Record, codec: Codec, codes: Codes, next_seed: Callable[[], int]) -> Code | None:
    """The code of a tensor, new or shared, and on its record what was done; None if it comes out no smaller."""
    assert record.reference is not None
    code, shared = codes.code(x, record.reference, record, codec, next_seed)
    own_bytes = code.own_bytes
    if not (_gains(codec, own_bytes, x) or shared) and _depends_on_values(codec, x):
        if type(x) in _PLAIN:
            record.left = NO_SMALLER
            return None
        own_bytes = x.nbytes  # of a fake tensor the most is made
    code.records.append(record)
    record.coded_by = code.codec
    if shared:
        record.sharer = code.owner
        return code
    record.packed_bytes = own_bytes
    if type(x) not in _PLAIN and _depends_on_values(codec, x):
        record.least = codec.least_bytes(x.shape, x.dtype)
    return code


def _gains(codec: Codec, nbytes: int, x: Tensor) -> bool:
    """Whether a code of so many bytes leaves less in the memory that the tensor lies in."""
    return nbytes < x.nbytes or (nbytes == x.nbytes and codec.elsewhere)


def _depends_on_values(codec: Codec, x: Tensor) -> bool:
    """Whether the bytes of a code are known only once it is made."""
    return codec.least_bytes(x.shape, x.dtype) < codec.packed_bytes(x.shape, x.dtype)


def why_without_rule(x: Tensor, field: str | int) -> str:
    """Why a saved tensor of unknown use is left."""
    if is_weight(x):
        return WEIGHT
    return STATE if field in ("running_mean", "running_var") else NO_RULE


def why_excluded(x: Tensor, field: str | int, is_state: bool) -> str:
    """Why a saved tensor of an excluded part is left: a weight or state is that before all else."""
    reason = why_without_rule(x, field)
    if reason != NO_RULE:
        return reason
    return STATE if is_state else EXCLUDED
