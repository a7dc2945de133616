"""DIVISION: dual activation precision."""

import functools
from dataclasses import dataclass

from torch import Tensor

from division.codecs.codec import Codec
from division.codecs.dual import Dual
from division.codecs.group import Group
from division.codecs.zeros import Zeros
from division.methods.method import Method, register
from division.methods.places import first_smaller, is_map
from division.rules import Reading, Use
from division.saved import Saved

ROW_GROUP = 64
SMOOTH_BITS = 8


@register("division")
@dataclass(frozen=True)
class Division(Method):
    """The paper's method: maps keep block means in bfloat16 and the rest in a few bits; masks and signs are exact.

    Inputs of convolutions, of norms and of products that are maps take the codec ``dual``. Tensors without spatial
    dims (a linear layer's input), of which the paper says nothing, take ``group`` with the same bits, in groups of
    64 along the features; inputs and results of smooth activations take 8 bits. ``docs/methods.md`` has the
    measurements behind these two choices.

    Source: DIVISION (Wang et al., ICML 2023), section 4, algorithm 1.

    Args:
        block: side of the low-frequency blocks, at least 1.
        bits: width of the high-frequency codes: 1, 2, 4 or 8.
        restore_zeros: results of ReLU get their exact zeros back from the sign code, which is kept anyway, and the
            ranges span the rest alone.

    Raises:
        ValueError: a setting out of range.

    Example:
        >>> Division()
        Division(block=8, bits=2, restore_zeros=False)
    """

    block: int = 8
    bits: int = 2
    restore_zeros: bool = False

    def __post_init__(self) -> None:
        Dual(self.block, self.bits)  # refuses what is out of range

    def _codecs(self, use: Use, norm: bool) -> tuple[Dual, Group]:
        bits = self.bits if use is Use.LINEAR or norm else max(self.bits, SMOOTH_BITS)
        return _codecs(self.block, bits)

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``dual`` for maps; ``group`` where there is nothing spatial."""
        x = saved.tensor
        dual, rows = self._codecs(reading.use, reading.norm)
        codec = first_smaller(x, dual, rows) if is_map(reading, x) else rows
        return Zeros(codec) if self.restore_zeros and _of_relu(x) else codec

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "Division":
        """With ``block`` and ``bits`` as given, or their defaults."""
        return cls(8 if block is None else block, 2 if bits is None else bits)


@functools.lru_cache(typed=True)
def _codecs(block: int, bits: int) -> tuple[Dual, Group]:
    return Dual(block, bits), Group(bits, ROW_GROUP, -1)


def _of_relu(x: Tensor) -> bool:
    return x.grad_fn is not None and x.grad_fn.name() == "ReluBackward0"
