"""DIVISION: dual activation precision."""

import functools
from dataclasses import dataclass

from torch import Tensor

from division.codecs.codec import Codec
from division.codecs.dual import Dual
from division.codecs.group import Group
from division.codecs.zeros import Zeros
from division.methods.method import Method, register
from division.methods.places import Tokens, first_smaller, is_map, tokens_of
from division.rules import Reading, Use
from division.saved import Saved

ROW_GROUP, LOGS_GROUP = 64, 32
#: The fewest bits of what enters a gradient nonlinearly; of rows; of tokens, but for inputs of linear layers and products;
#: and of attention.
SMOOTH_BITS, ROW_BITS, TOKEN_BITS, ATTENTION_BITS = 8, 4, 4, 8


@register("division")
@dataclass(frozen=True)
class Division(Method):
    """The paper's method: maps keep block means in bfloat16 and the rest in a few bits; masks and signs are exact.

    Inputs of convolutions, of norms and of products that are maps take the codec ``dual``. Of what the paper says
    nothing about, ``docs/methods.md`` has the measurements behind the choice:

    - Token tensors (samples, tokens, features), flattened ones included, take ``group`` in groups of about 32
      consecutive tokens of one feature: inputs of linear layers and products with the same bits as maps; inputs of
      norms and smooth activations with at least 4; attention's queries, keys, values and results with 8.
    - Other tensors without spatial dims, such as the input of a classifier, take ``group`` along their features, 64 at
      a time, with at least 4 bits.
    - Results of softmax take 8 bits along its dim, so that one that is NaN, of a row that is masked as a whole, leaves
      the others alone; results of log-softmax are kept as probabilities in 8 bits.
    - Elsewhere, inputs and results of smooth activations take 8 bits.

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

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``dual`` for maps; ``group`` where there is nothing spatial, along the tokens where there are any."""
        x = saved.tensor
        bits = self.bits if reading.use is Use.LINEAR or reading.norm else max(self.bits, SMOOTH_BITS)
        if reading.logs:
            return Group(max(bits, SMOOTH_BITS), LOGS_GROUP, "plane" if is_map(reading, x) else -1)
        if reading.along is not None:
            return Group(bits, ROW_GROUP, reading.along)
        dual, rows = _codecs(self.block, bits)
        if is_map(reading, x):
            codec = first_smaller(x, dual, rows)
        elif (tokens := tokens_of(reading, saved)) is not None:
            codec = first_smaller(x, _along(tokens, self._token_bits(reading)), rows)
        else:
            codec = rows
        return Zeros(codec) if self.restore_zeros and _of_relu(x) else codec

    def _token_bits(self, reading: Reading) -> int:
        if reading.exponent or reading.cancels:
            return max(self.bits, ATTENTION_BITS)
        return self.bits if reading.use is Use.LINEAR and not reading.norm else max(self.bits, TOKEN_BITS)

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "Division":
        """With ``block`` and ``bits`` as given, or their defaults."""
        return cls(8 if block is None else block, 2 if bits is None else bits)


@functools.lru_cache(typed=True)
def _codecs(block: int, bits: int) -> tuple[Dual, Group]:
    return Dual(block, bits), Group(max(bits, ROW_BITS), ROW_GROUP, -1)


@functools.lru_cache
def _along(tokens: Tokens, bits: int) -> Group:
    return Group(bits, tokens.group, tokens.axis, tokens.span, tokens.interleaved)


def _of_relu(x: Tensor) -> bool:
    return x.grad_fn is not None and x.grad_fn.name() == "ReluBackward0"
