"""One saved tensor: whether to code it, whose code it can share, and how autograd gets it back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from division.account import EXCLUDED, STATE, WEIGHT, Record
from division.codecs.bits import Mask, is_mask
from division.codecs.codec import Codec, Packed
from division.private import StorageWeakRef, bytes_without_storage, is_fake, plain, storage_of
from division.rules import Reading, Use

_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_LOSSY = (Use.LINEAR, Use.SMOOTH)
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


class Code:
    """A saved tensor in coded form: what pack hands to autograd. Alive as long as a graph needs it.

    Where another node turns out to keep the very same tensor as it is, a code on top would only add to that: it is then
    given up for the original (:meth:`keep`).
    """

    __slots__ = ("__weakref__", "codec", "original", "own_bytes", "owner", "packed", "records", "storage", "version")

    def __init__(self, codec: Codec, packed: Packed, own_bytes: int, owner: str, storage: StorageWeakRef) -> None:
        self.codec = codec
        self.packed: Packed | None = packed
        self.original: Tensor | None = None
        self.version = 0
        self.own_bytes = own_bytes  # without what it shares with its companion
        self.owner = owner
        self.records: list[Record] = []
        self.storage = storage  # pins the address in the key of this code, which would be reused at once

    def keep(self, x: Tensor, reason: str) -> None:
        """Stand for ``x`` by ``x`` itself from now on; the account's lines then say why it was left."""
        self.version, self.original = x._version, x.detach()
        self.packed = None
        for record in self.records:
            record.packed_bytes, record.codec, record.shared, record.left = 0, "", "", reason


def unpack(code: Code) -> Tensor:
    """Autograd's unpack: the same values each time, from any thread."""
    packed = code.packed
    if packed is None:
        return _unchanged(code)
    with plain(packed.device.type):
        tensor = code.codec.decode(packed)
    if tensor.shape != packed.size or tensor.dtype != packed.dtype or tensor.device != packed.device:
        raise RuntimeError(
            f"codec {code.codec!r} gave back {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, expected"
            f" {packed.dtype} {packed.size} on {packed.device}: a fault of that codec"
        )
    return tensor


def _unchanged(code: Code) -> Tensor:
    """The original, which must be as it was: autograd's own check, made here since its hooks go without."""
    x = code.original
    assert x is not None
    if x._version != code.version:
        raise RuntimeError(
            f"a {x.dtype} tensor {tuple(x.shape)} that backward of {code.owner} needs was changed in place: it is at"
            f" version {x._version}, expected version {code.version}; clone it before changing it"
        )
    return x


class Codes:
    """The codes alive, found again by the tensor they stand for."""

    def __init__(self) -> None:
        self._alive: dict[Any, list[ref[Code]]] = {}
        self._left: dict[Any, tuple[str, StorageWeakRef]] = {}

    def begin_step(self) -> None:
        """Forget which tensors were left in the last step."""
        self._left = {}

    def leave(self, saved: Saved) -> None:
        """Note that a node keeps this tensor as it is; codes of the same tensor are given up for it."""
        x, owner = saved.tensor, _owner(saved)
        key, reference = _key(x)
        reason = f"kept as it is for {owner}"
        self._left[key] = reason, reference
        for code in self._of(key):
            code.keep(x, reason)

    def why_left(self, x: Tensor) -> str:
        """Why a code of this tensor would gain nothing: some node keeps it as it is; "" if none is known to."""
        reason, _ = self._left.get(_key(x)[0], ("", None))
        return reason

    def code(self, saved: Saved, codec: Codec, next_seed: Callable[[], int]) -> tuple[Code, bool]:
        """A code of the tensor by this codec, and whether another saved tensor has it already."""
        x = saved.tensor
        key, reference = _key(x)
        for code in self._of(key):
            if code.codec == codec and code.packed is not None:
                return code, True
        beside, had = self.code(saved, codec.companion, next_seed) if codec.companion else (None, False)
        signs = beside.packed if beside is not None else None
        with plain(x.device.type):
            if signs is None:
                packed = codec.encode(x.detach(), next_seed())
            else:
                packed = codec.encode_beside(x.detach(), next_seed(), signs)
        own_bytes = packed.nbytes - (signs.nbytes if signs is not None and had else 0)
        code = Code(codec, packed, own_bytes, _owner(saved), reference)
        self._add(key, code)
        return code, False

    def _of(self, key: Any) -> list[Code]:
        return [code for each in self._alive.get(key, ()) if (code := each()) is not None]

    def _add(self, key: Any, code: Code) -> None:
        alive, codes = self._alive, self._alive.get(key, [])

        def forget(dead: ref[Code]) -> None:
            codes.remove(dead)
            if not codes and alive.get(key) is codes:
                del alive[key]

        codes.append(ref(code, forget))
        alive[key] = codes


def _owner(saved: Saved) -> str:
    return f"{saved.module} {saved.node}.{saved.field}".strip()


def _key(x: Tensor) -> tuple[Any, StorageWeakRef]:
    """What tells a tensor's values from any other's, for as long as the weak reference is kept."""
    address, _, reference = storage_of(x)
    lazy = x.is_conj(), x.is_neg()  # the same memory, other values
    return (address, x.storage_offset(), x.shape, x.stride(), x.dtype, x._version, lazy), reference


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
    if reading.use in _LOSSY or reading.use is Use.SIGN:
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
    code, shared = codes.code(saved, codec, next_seed)
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
