"""Codes of saved tensors: what pack hands to autograd, how unpack reads it, and who shares one."""

from collections.abc import Callable
from typing import Any
from weakref import ref

from torch import Tensor

from division.account import Record
from division.codecs.codec import Codec, Packed
from division.private import StorageWeakRef, plain, storage_of


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

    def leave(self, x: Tensor, owner: str) -> None:
        """Note that a node keeps this tensor as it is; codes of the same tensor are given up for it."""
        key, reference = _key(x)
        reason = f"kept as it is for {owner}"
        self._left[key] = reason, reference
        for code in self._of(key):
            if code.packed is not None and code.packed.nbytes:
                code.keep(x, reason)

    def why_left(self, x: Tensor) -> str:
        """Why a code of this tensor would gain nothing: some node keeps it as it is; "" if none is known to."""
        reason, _ = self._left.get(_key(x)[0], ("", None))
        return reason

    def code(self, x: Tensor, owner: str, codec: Codec, next_seed: Callable[[], int]) -> tuple[Code, bool]:
        """A code of the tensor by this codec, and whether another saved tensor has it already."""
        key, reference = _key(x)
        for code in self._of(key):
            if code.codec == codec and code.packed is not None:
                return code, True
        beside, had = self.code(x, owner, codec.companion, next_seed) if codec.companion else (None, False)
        signs = beside.packed if beside is not None else None
        with plain(x.device.type):
            if signs is None:
                packed = codec.encode(x.detach(), next_seed())
            else:
                packed = codec.encode_beside(x.detach(), next_seed(), signs)
        own_bytes = packed.nbytes - (signs.nbytes if signs is not None and had else 0)
        code = Code(codec, packed, own_bytes, owner, reference)
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


def _key(x: Tensor) -> tuple[Any, StorageWeakRef]:
    """What tells a tensor's values from any other's, for as long as the weak reference is kept."""
    address, _, reference = storage_of(x)
    lazy = x.is_conj(), x.is_neg()  # the same memory, other values
    return (address, x.storage_offset(), x.shape, x.stride(), x.dtype, x._version, lazy), reference
