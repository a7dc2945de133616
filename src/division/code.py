"""Codes of saved tensors: what pack hands to autograd, how unpack reads it, and who shares one."""

from collections.abc import Callable
from math import prod
from typing import Any
from weakref import ref

from torch import Tensor

from division.account import Record
from division.codecs.codec import Codec, Packed
from division.codecs.shape import Shape
from division.private import Storage, plain, uncompiled

Key = tuple[Any, ...]
_ROOM = 1024  # storages before those of codes that are gone are looked for


class Code:
    """A saved tensor in coded form: what pack hands to autograd. Alive as long as a graph needs it.

    Where another node turns out to keep the same memory as it is, a code on top would only add to that: it is then
    given up for the original (:meth:`keep`), or for what is kept elsewhere of that (:meth:`take`).
    """

    __slots__ = (
        "__weakref__", "beside", "codec", "key", "original", "own_bytes", "owner", "packed", "records", "storage", "version",
        "whole",
    )  # fmt: skip

    def __init__(
        self, codec: Codec, packed: Packed | None, own_bytes: int, owner: Record, storage: Storage, key: Key
    ) -> None:
        self.codec = codec
        self.beside: Code | None = None  # its companion, which others find as long as this one lives
        self.key = key
        self.packed = packed
        self.original: Tensor | None = None
        self.whole: Code | None = None  # that of the memory as it is, which it is read from
        self.version = 0
        self.own_bytes = own_bytes  # without what it shares with its companion
        self.owner = owner
        self.records: list[Record] = []
        self.storage = storage  # pins the address in the key of this code, which would be reused at once

    def keep(self, x: Tensor, reason: str) -> None:
        """Stand for the tensor by itself from now on; the account's lines then say why it was left.

        Args:
            x: any tensor of the same memory, not changed since this code was made.
            reason: what the lines say.
        """
        offset, size, stride, _, version = self.key
        self.version, self.original = version, x.detach().as_strided(size, stride, offset)
        self.packed = None
        for record in self.records:
            record.packed_bytes, record.coded_by, record.sharer, record.left = 0, None, None, reason
            record.least = None

    def take(self, whole: "Code") -> None:
        """Stand for its part of the memory that another code keeps as it is."""
        self.packed, self.beside, self.own_bytes = None, None, 0
        self.whole, self.codec = whole, whole.codec
        for record in self.records:
            record.packed_bytes, record.coded_by, record.sharer, record.least = 0, whole.codec, whole.owner, None
        whole.records += self.records

    def part(self, key: Key) -> "Code":
        """A code that stands for another tensor in the memory that this one keeps as it is."""
        code = Code(self.codec, None, 0, self.owner, self.storage, key)
        code.whole, code.records = self, self.records
        return code

    def serves(self, key: Key) -> bool:
        """Whether a tensor can be read from this code, which keeps its own as it is: all of the memory, or the same part."""
        offset, size, _, dtype, version = self.key
        if (dtype, version) != key[-2:]:
            return False
        return key == self.key or (offset == 0 and prod(size) * dtype.itemsize == self.storage.nbytes)


@uncompiled
def unpack(code: Code) -> Tensor:
    """Autograd's unpack: the same values each time, from any thread."""
    if code.whole is not None:
        offset, size, stride = code.key[:3]
        tensor = unpack(code.whole)
        return tensor if code.key == code.whole.key else tensor.as_strided(size, stride, offset)
    packed = code.packed
    if packed is None:
        return _unchanged(code)
    with plain(packed.device):
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
            f"a {x.dtype} tensor {tuple(x.shape)} that backward of {code.owner.owner} needs was changed in place: it is"
            f" at version {x._version}, expected version {code.version}; clone it before changing it"
        )
    return x


class Codes:
    """The codes alive, found again by the tensor they stand for.

    Threads may lose each other's entries: such a code is not shared, and lives as long as any.
    """

    def __init__(self) -> None:
        self._alive: dict[int, list[ref[Code]]] = {}  # by the address of the storage
        self._left: dict[int, tuple[Record, Storage]] = {}
        self._room = _ROOM

    def begin_step(self) -> None:
        """Forget which tensors were left in the last step."""
        self._left = {}

    def leave(self, x: Tensor, record: Record, storage: Storage) -> None:
        """Note that a node keeps this tensor as it is, and with it all memory under it: codes of it are given up.

        Args:
            record: the account's line for the tensor.
            storage: the memory under it.
        """
        self._left[storage.address] = record, storage
        for each in self._alive.get(storage.address, ()):
            code = each()
            if code is None or code.packed is None or not code.packed.nbytes:
                continue
            # Of what was changed since, or is seen in another dtype, the code is all there is.
            if code.key[-2:] == (x.dtype, x._version) and not (x.is_conj() or x.is_neg()):
                code.keep(x, _kept_for(record))

    def why_left(self, storage: Storage) -> str:
        """Why a code of this memory would gain nothing: some node keeps it as it is; "" if none is known to."""
        left = self._left.get(storage.address)
        return "" if left is None else _kept_for(left[0])

    def code(
        self, x: Tensor, storage: Storage, owner: Record, codec: Codec, next_seed: Callable[[], int]
    ) -> tuple[Code, bool]:
        """A code of the tensor by this codec, and whether another saved tensor has it already.

        Args:
            storage: the memory under the tensor.
            owner: the account's line for the saved tensor that asks.
        """
        key = key_of(x)
        alive = [
            found for each in self._alive.get(storage.address, ()) if (found := each()) and found.packed is not None
        ]
        for found in alive:
            if found.codec == codec and found.key == key:
                return found, True
        for found in alive:
            if found.codec.whole and found.serves(key) and not isinstance(codec, Shape):
                return (found if found.key == key else found.part(key)), True
        companion = codec.companion(x)
        beside, had = self.code(x, storage, owner, companion, next_seed) if companion else (None, False)
        signs = beside.packed if beside is not None else None
        with plain(x.device):
            seed = next_seed() if codec.draws else 0
            packed = codec.encode(x.detach(), seed) if signs is None else codec.encode_beside(x.detach(), seed, signs)
        codec.made(packed)
        own_bytes = codec.own_bytes(packed)
        if companion is not None and signs is not None and had:
            own_bytes -= companion.own_bytes(signs)
        code = Code(codec, packed, own_bytes, owner, storage, key)
        code.beside = beside
        for found in alive if codec.whole else ():
            if found.packed is not None and found.packed.nbytes and code.serves(found.key):
                found.take(code)
        self._add(code)
        return code, False

    def _add(self, code: Code) -> None:
        if len(self._alive) >= self._room:
            self._sweep()
        codes = self._alive.setdefault(code.storage.address, [])
        if codes:
            codes[:] = [each for each in codes if each() is not None]
        codes.append(ref(code))

    def _sweep(self) -> None:
        """Drop the storages whose codes are gone; now and then, which costs less than being told of each."""
        for address, codes in list(self._alive.items()):
            if all(code() is None for code in codes):
                self._alive.pop(address, None)
        self._room = max(_ROOM, 2 * len(self._alive))


def _kept_for(record: Record) -> str:
    return f"kept as it is for {record.owner}"


def key_of(x: Tensor) -> Key:
    """What tells a tensor's values from any other's in the same storage: offset, size, stride, dtype, version.

    Not from those of its lazily conjugated or negated view, which is the same memory.
    """
    return x.storage_offset(), x.shape, x.stride(), x.dtype, x._version
