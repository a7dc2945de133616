"""SZ3 itself as a codec, to compare the error-bounded one with."""

import importlib
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.codecs.error_bound import check_bound
from division.codecs.layout import from_memory_order, in_memory_order
from division.kernels.reference.packing import pack_small, unpack_small
from division.private import is_fake

_MOST_DIMS = 4


@register
@dataclass(frozen=True)
class Sz3(Codec):
    """float32 tensors by SZ3 (its default: interpolation, then Huffman, then zstd), on the CPU, by way of `pysz`.

    The bound is SZ3's to keep; it did for every finite value that the tests tried. It does not keep zeros: with
    ``zeros``, a tensor that has some also keeps a bit for each element, which is 0 where the element is, and they are
    put back. A GPU's tensors go through host memory. What SZ3 makes no smaller is kept as it is, and so is a tensor with
    a value that is not finite.

    Source: SZ3 (Liang et al., IEEE TBD 2023). COMET's released code hands it a tensor as one row, as ``flat`` does.

    Args:
        bound: the most an element may be off; above 0 and finite.
        relative: it is a share of the greatest magnitude in the tensor.
        flat: the tensor is one row, not one of up to four dims (those before the last three count as one).
        zeros: exact zeros stay zeros, for a bit an element.

    Raises:
        ValueError: a bound out of range.
        ImportError: `pysz` is not installed.
    """

    bound: float
    relative: bool = False
    flat: bool = False
    zeros: bool = True
    name: ClassVar[str] = "sz3"
    promises: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        check_bound(self.bound)
        if not available():
            raise ImportError("got codec sz3 without SZ3, expected the package pysz: pip install 'division[sz3]'")

    def why_not(self, x: Tensor) -> str | None:
        """float32 is needed: the bound would not survive the rounding to fewer bits."""
        return f"dtype {x.dtype}" if x.dtype != torch.float32 else super().why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """The most: the elements as they are, and with ``zeros`` a bit for each."""
        elements = math.prod(size)
        return elements * dtype.itemsize + (-(-elements // 8) if self.zeros else 0)

    def least_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """None that SZ3 promises: 0."""
        return 0

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: SZ3's bytes, or as many as the elements have; with ``zeros``, the bits, if any is 0. ``seed`` is not used."""
        if is_fake(x):
            payload, mask = (x.new_empty(n, dtype=torch.uint8) for n in (4 * x.numel(), -(-x.numel() // 8)))
            return packed_like(x, (payload, mask) if self.zeros else (payload,))
        values = in_memory_order(x).detach().cpu().contiguous()
        zero = values == 0
        mask = pack_small((~zero).view(-1).to(torch.uint8), 1) if zero.any() else torch.empty(0, dtype=torch.uint8)
        parts = (self._compressed(values), mask) if self.zeros else (self._compressed(values),)
        return packed_like(x, tuple(part.to(x.device) for part in parts))

    def _compressed(self, values: Tensor) -> Tensor:
        raw = torch.empty(values.numel(), dtype=torch.float32).copy_(values.view(-1)).view(torch.uint8)
        if not values.numel():
            return raw
        most = float(torch.maximum(values.max(), -values.min()))
        bound = self.bound * (most or 1.0) if self.relative else self.bound
        if not (math.isfinite(most) and 0 < bound < math.inf):
            return raw
        pysz = importlib.import_module("pysz")
        setting = pysz.szConfig()
        setting.errorBoundMode = pysz.szErrorBoundMode.ABS
        setting.absErrorBound = bound
        setting.setDims(*self._dims(values.shape))
        found: Any = pysz.sz.compress(values.numpy().reshape(self._dims(values.shape)), setting)[0]
        return torch.from_numpy(np.array(found)) if found.nbytes < raw.nbytes else raw

    def _dims(self, size: Sequence[int]) -> tuple[int, ...]:
        if self.flat or len(size) == 0:
            return (math.prod(size),)
        lead = max(len(size) - _MOST_DIMS + 1, 1)
        return (math.prod(size[:lead]), *size[lead:])

    def decode(self, packed: Packed) -> Tensor:
        """What SZ3 makes of its bytes, with zeros put back."""
        return from_memory_order(
            lambda size, stride: self._elements(packed, size).as_strided(size, stride), packed.size, packed.stride
        )

    def _elements(self, packed: Packed, size: Sequence[int]) -> Tensor:
        """The elements in memory order, one after the other."""
        count = math.prod(size)
        if is_fake(packed.parts[0]):
            return packed.parts[0].new_empty(count, dtype=packed.dtype)
        payload, *mask = (part.cpu() for part in packed.parts)
        if payload.numel() == 4 * count:
            values = payload.clone().view(torch.float32)
        else:
            dims = self._dims(size)
            found = importlib.import_module("pysz").sz.decompress(payload.numpy(), np.float32, dims)[0]
            values = torch.from_numpy(np.array(found)).view(-1)
        if mask and mask[0].numel():
            values.masked_fill_(unpack_small(mask[0], 1, count) == 0, 0.0)
        return values.to(packed.device)

    @classmethod
    def examples(cls) -> list[Codec]:
        """Each setting; none where SZ3 is not installed."""
        if not available():
            return []
        return [cls(0.01), cls(1e-3, relative=True, zeros=False), cls(0.1, flat=True)]


def available() -> bool:
    """Whether there is a `pysz` to import; imports nothing."""
    return importlib.util.find_spec("pysz") is not None
