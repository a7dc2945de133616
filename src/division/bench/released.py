"""DIVISION as its released code works, to compare with: the algorithm's faults included, emulated in plain PyTorch.

The faults: where the block does not divide the map, pooling drops the edge and the nearest up-sampling shifts the
blocks; codes are taken against parameters in float32 and decoded with their nearest bfloat16, which shifts the mean.
Linear layers, norms of rows and smooth activations are left as they are, as there. Its way with linear layers is written
but switched off, for want of an op: `released-1d` has it on, as one reads it, block means along the features.
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
from division.methods.places import LINEAR

NAME, ROWS = "released", "released-1d"
EPSILON = 2e-6


@dataclass(frozen=True)
class Misaligned(Codec):
    """The released code's map, or its rows: of tensors of 2 or 3 dims, whose last dim is then what is pooled.

    Codes that reach 2^bits, as they do there now and then, are held to the highest here.

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
        """A map (N, C, H, W), square or not, or rows."""
        if x.dim() not in (2, 3, 4) or x.numel() == 0:
            return f"{x.dim()} dims, neither a map (N, C, H, W) nor rows"
        return super().why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """A plane or row: 2 bytes a whole block, ``bits`` an element, 4 for the parameters."""
        spatial = _spatial(size)
        cells = prod(n // self._side(spatial) for n in spatial)
        return prod(size) // prod(spatial) * (2 * cells + -(-prod(spatial) * self.bits // 8) + 4)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: LFC, codes, and (offset, step), in bfloat16 but the codes."""
        generator = torch.Generator(x.device).manual_seed(seed)
        spatial = _spatial(x.shape)
        planes = x.to(torch.float32).reshape(-1, 1, *spatial)
        pool = F.avg_pool2d if len(spatial) == 2 else F.avg_pool1d
        low = pool(planes, self._side(spatial)).to(torch.bfloat16)
        high = (planes - _up(low, spatial)).flatten(1)
        offset, top = high.amin(-1, keepdim=True), high.amax(-1, keepdim=True)
        step = (top - offset + EPSILON) / (2**self.bits - 1)
        noise = torch.rand(high.shape, generator=generator, device=x.device)
        codes = ((high - offset) / step + noise).floor().clamp(0, 2**self.bits - 1).to(torch.uint8)
        packed = pack_codes(codes, self.bits)
        return packed_like(x, (low, packed, torch.cat((offset, step), -1).to(torch.bfloat16)))

    def decode(self, packed: Packed) -> Tensor:
        """step * code + offset + LFC, of blocks that don't lie where they were averaged."""
        low, packed_codes, scale = packed.parts
        spatial = _spatial(packed.size)
        codes = unpack_codes(packed_codes, prod(spatial), self.bits)
        offset, step = scale.to(torch.float32).split(1, -1)
        x = ((codes * step + offset).view(-1, 1, *spatial) + _up(low, spatial)).view(packed.size)
        order = memory_order(packed.size, packed.stride)
        out = x.to(packed.dtype).permute(order).contiguous()
        return out.permute(sorted(range(x.dim()), key=order.__getitem__))

    def _side(self, spatial: Sequence[int]) -> int:
        return min(self.block, *spatial)

    @classmethod
    def examples(cls) -> list[Codec]:
        """The one that the papers' figures are for."""
        return [cls()]


def _spatial(size: Sequence[int]) -> tuple[int, ...]:
    return tuple(size[2:]) if len(size) == 4 else (size[-1],)


def _up(low: Tensor, spatial: Sequence[int]) -> Tensor:
    return F.interpolate(low.to(torch.float32), size=tuple(spatial), mode="nearest")


@dataclass(frozen=True)
class Released(Method):
    """Maps of convolutions and batch norms in :class:`Misaligned`; other values as they are.

    Args:
        rows: also the inputs of linear layers.

    Example:
        >>> Released()
        Released(block=8, bits=2, rows=False)
    """

    block: int = 8
    bits: int = 2
    rows: bool = False
    name: ClassVar[str] = NAME

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """The map's codec, or None."""
        x, linear = saved.tensor, reading.use is Use.LINEAR
        is_map = reading.axes == "map" and x.dim() == 4 and (linear or reading.norm)
        of_layer = self.rows and linear and saved.node in LINEAR and x.dim() in (2, 3)
        return Misaligned(self.block, self.bits) if is_map or of_layer else None
