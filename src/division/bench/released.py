"""DIVISION as its released code works, to compare with: the algorithm's faults included, emulated in plain PyTorch.

The faults: where the block does not divide the map, pooling drops the edge and the nearest up-sampling shifts the
blocks; codes are taken against parameters in float32 and decoded with their nearest bfloat16, which shifts the mean.
Linear layers, norms of rows and smooth activations are left as they are, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like
from division.codecs.layout import memory_order
from division.kernels.reference.quantize import pack_codes, unpack_codes
from division.methods import Method, Reading, Saved, Use

NAME = "released"
EPSILON = 2e-6


@dataclass(frozen=True)
class Misaligned(Codec):
    """The released code's map. Codes that reach 2^bits, as they do there now and then, are held to the highest here.

    Args:
        block: side of the pooling window.
        bits: width of the codes.

    Example:
        >>> x = torch.randn(1, 2, 16, 16)
        >>> codec = Misaligned()
        >>> bool((codec.decode(codec.encode(x, seed=0)) - x).abs().max() < 3)
        True
    """

    block: int = 8
    bits: int = 2
    name: ClassVar[str] = "misaligned"
    promises: ClassVar[frozenset[str]] = frozenset({"fixed_size"})

    def why_not(self, x: Tensor) -> str | None:
        """Square or not, a map (N, C, H, W)."""
        return f"{x.dim()} dims, not a map (N, C, H, W)" if x.dim() != 4 or x.numel() == 0 else super().why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """A plane: 2 bytes a whole block, ``bits`` an element, 4 for the parameters."""
        side = min(self.block, *size[2:])
        cells = prod(n // side for n in size[2:])
        return size[0] * size[1] * (2 * cells + -(-prod(size[2:]) * self.bits // 8) + 4)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: LFC, codes, and (offset, step), in bfloat16 but the codes."""
        generator = torch.Generator(x.device).manual_seed(seed)
        x32 = x.to(torch.float32)
        low = F.avg_pool2d(x32, min(self.block, *x.shape[2:])).to(torch.bfloat16)
        high = (x32 - self._up(low, x.shape)).flatten(2)
        offset, top = high.amin(-1, keepdim=True), high.amax(-1, keepdim=True)
        step = (top - offset + EPSILON) / (2**self.bits - 1)
        noise = torch.rand(high.shape, generator=generator, device=x.device)
        codes = ((high - offset) / step + noise).floor().clamp(0, 2**self.bits - 1).to(torch.uint8)
        packed = pack_codes(codes.flatten(0, 1), self.bits)
        return packed_like(x, (low, packed, torch.cat((offset, step), -1).to(torch.bfloat16)))

    def decode(self, packed: Packed) -> Tensor:
        """step * code + offset + LFC, of blocks that don't lie where they were averaged."""
        low, packed_codes, scale = packed.parts
        codes = unpack_codes(packed_codes, prod(packed.size[2:]), self.bits).view(*packed.size[:2], -1)
        offset, step = scale.to(torch.float32).split(1, -1)
        x = (codes * step + offset).view(packed.size) + self._up(low, packed.size)
        order = memory_order(packed.size, packed.stride)
        out = x.to(packed.dtype).permute(order).contiguous()
        return out.permute(sorted(range(4), key=order.__getitem__))

    def _up(self, low: Tensor, size: Sequence[int]) -> Tensor:
        return F.interpolate(low.to(torch.float32), size=tuple(size[2:]), mode="nearest")

    @classmethod
    def examples(cls) -> list[Codec]:
        """The one that the papers' figures are for."""
        return [cls()]


@dataclass(frozen=True)
class Released(Method):
    """Maps of convolutions and batch norms in :class:`Misaligned`; other values as they are.

    Example:
        >>> Released()
        Released(block=8, bits=2)
    """

    block: int = 8
    bits: int = 2
    name: ClassVar[str] = NAME

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """The map's codec, or None."""
        is_map = reading.axes == "map" and saved.tensor.dim() == 4 and (reading.use is Use.LINEAR or reading.norm)
        return Misaligned(self.block, self.bits) if is_map else None
