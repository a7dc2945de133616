"""The dual codec: block means in bfloat16 (LFC) and a few-bit residual (HFC), plane by plane."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, packed_like, register
from division.codecs.layout import dense_stride
from division.kernels.ops import call
from division.kernels.reference.dual import BITS, DTYPES, cells
from division.kernels.reference.quantize import code_bytes

_encode, _decode, _pool, _spread, _encode_groups = map(
    call, ("dual_encode", "dual_decode", "block_pool", "block_spread", "group_encode")
)


@register
@dataclass(frozen=True)
class Dual(Codec):
    """Low frequencies in bfloat16, high frequencies in ``bits`` bits, for maps ``(N, C, *spatial)``.

    The LFC is the mean over blocks of ``block`` cells along each of the 1 to 3 spatial dims (over the whole dim where
    it is shorter, over the cells it has at a ragged edge). The HFC is what remains, quantised with stochastic
    rounding between its least and greatest value in the plane. Where a plane's own values span less than its HFC (up
    to 1.25 times that where its least value is 0), as those of a ReLU do, its LFC is kept as 0 and the HFC is the plane
    itself. Packed bytes of a plane of E cells in G blocks:

        2 * G + ceil(E * bits / 8) + 4

    Source: DIVISION (Wang et al., ICML 2023), section 4; where this differs, ``docs/methods.md`` says how.

    Args:
        block: side of the blocks, in cells; at least 1.
        bits: width of the residual's codes: 1, 2, 4 or 8.
        part: ``"both"``; ``"low"`` keeps the LFC alone, ``"high"`` the HFC alone (the paper's ablations), and what
            is not kept decodes as 0.

    Raises:
        ValueError: ``block``, ``bits`` or ``part`` out of range.

    Example:
        >>> x = torch.randn(2, 3, 16, 16)
        >>> codec = Dual(block=8, bits=2)
        >>> packed = codec.encode(x, seed=0)
        >>> packed.nbytes, x.nbytes
        (456, 6144)
        >>> codec.decode(packed).shape
        torch.Size([2, 3, 16, 16])
    """

    block: int = 8
    bits: int = 2
    part: Literal["both", "low", "high"] = "both"
    name: ClassVar[str] = "dual"

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or self.bits not in BITS:
            raise ValueError(f"got bits={self.bits!r} for dual, expected one of {BITS}")
        if not isinstance(self.block, int) or isinstance(self.block, bool) or self.block < 1:
            raise ValueError(f"got block={self.block!r}, expected an integer of at least 1")
        if self.part not in ("both", "low", "high"):
            raise ValueError(f"got part={self.part!r}, expected 'both', 'low' or 'high'")

    @property
    def promises(self) -> frozenset[str]:
        """Unbiased only with both parts."""
        shared = frozenset({"fixed_size", "equivariant"})
        return shared | {"unbiased", "bounded"} if self.part == "both" else shared

    def why_not(self, x: Tensor) -> str | None:
        """A map of 3 to 5 dims in a real floating dtype is needed."""
        if not 3 <= x.dim() <= 5:
            return f"{x.dim()} dims, not a map (N, C, *spatial)"
        if x.dtype not in DTYPES:
            return f"dtype {x.dtype}"
        return super().why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``planes * (2 * blocks + ceil(cells * bits / 8) + 4)``, less what ``part`` leaves out."""
        low = 2 * cells(size[2:], self.block) if self.part != "high" else 0
        high = code_bytes(prod(size[2:]), self.bits) + 4 if self.part != "low" else 0
        return size[0] * size[1] * (low + high)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: lfc bf16 ``[planes, blocks]``, codes uint8 ``[planes, bytes]``, offset and step bf16 ``[planes, 2]``."""
        if self.part == "low":
            return packed_like(x, (_pool(x, self.block),))
        if self.part == "both":
            return packed_like(x, _encode(x, self.block, self.bits, seed))
        if not x.numel():
            return packed_like(x, _encode(x, self.block, self.bits, seed)[1:])
        target = (x.shape, dense_stride(x.shape, x.stride()), torch.float32, self.block)
        rest = x.to(torch.float32) - _spread(_pool(x, self.block), *target)
        # Planes as groups: the codec's own op would take block means off once more.
        codes, scale = _encode_groups(rest, 2, prod(x.shape[2:]), (self.bits,), seed)
        planes = x.shape[0] * x.shape[1]
        return packed_like(x, (codes.view(planes, -1), scale.view(planes, 2)))

    def decode(self, packed: Packed) -> Tensor:
        """LFC + (step * code + offset)."""
        target = (packed.size, packed.stride, packed.dtype, self.block)
        if self.part == "low":
            return _spread(*packed.parts, *target)
        parts = packed.parts
        if self.part == "high":
            planes, blocks = packed.size[0] * packed.size[1], cells(packed.size[2:], self.block)
            parts = (torch.zeros(planes, blocks, dtype=torch.bfloat16, device=packed.device), *parts)
        return _decode(*parts, *target, self.bits)

    @classmethod
    def examples(cls) -> list[Codec]:
        """Every width, three blocks, each part."""
        return [
            *(cls(8, bits) for bits in BITS),
            *(cls(block, 2) for block in (1, 3, 18)),
            cls(8, 2, "low"),
            cls(8, 2, "high"),
        ]
