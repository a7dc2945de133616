"""How a tensor's dims are read: as planes of a map, as tokens of a sequence, or as rows."""

from math import ceil
from typing import Any, NamedTuple

from torch import Tensor

from division.codecs.codec import Codec
from division.private import signed_number
from division.rules import Reading
from division.saved import Saved

#: Tokens that share a range, and so few that they are not worth one.
GROUP = 32
FEW = 8
_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")
#: Nodes of linear layers.
LINEAR = ("AddmmBackward0", "MmBackward0", "LinearBackward0")
#: Nodes of batched products.
BATCHED = ("BmmBackward0", "BaddbmmBackward0", "AddbmmBackward0")


class Tokens(NamedTuple):
    """Where the tokens of a tensor lie: one feature's values at consecutive tokens are alike.

    Attributes:
        axis: the dims that count tokens, without that of the samples, as the codec ``group`` takes them.
        span: tokens of a sample, where samples and tokens were flattened into dim 0.
        group: tokens that share a range: about 32, evenly cut.
        interleaved: whether there tokens come first, and the samples' take turns.
    """

    axis: int | tuple[int, ...]
    span: int | None
    group: int
    interleaved: bool = False


def is_map(reading: Reading, x: Tensor) -> bool:
    """Whether ``x`` is ``(N, C, *spatial)`` with 1 to 3 spatial dims, as far as the rule knows or the dims tell."""
    if reading.axes == "map":
        return 3 <= x.dim() <= 5
    return reading.axes == "any" and x.dim() in (4, 5) and not _made_by_linear(x)


def tokens_of(reading: Reading, saved: Saved) -> Tokens | None:
    """The tokens of a tensor that is no map; None where it has none, or so few that they are no sequence.

    Features are the last dim. Of a linear layer's input, which is flattened to (samples * tokens, features) before it
    is saved, the view that flattened it tells the tokens; where samples and tokens had been transposed just before, as
    ``nn.MultiheadAttention`` does, it is (tokens * samples, features). Of a factor of a batched product, features are
    whichever of the two dims lies innermost in memory: that of the keys is transposed.
    """
    x = saved.tensor
    if x.dim() == 2:
        span, interleaved = _flattened(x)
        return None if span < FEW else Tokens(0, span, _group(span), interleaved)
    if x.dim() < 3:
        return None
    if x.dim() == 3 and saved.node in BATCHED and x.stride(1) == 1 and x.stride(2) > 1:
        count = x.shape[2]
        return None if count < FEW else Tokens(2, None, _group(count))
    # From the last dim but one outwards, until there are enough; dim 0 counts the samples.
    dims, count = [x.dim() - 2], x.shape[-2]
    while dims[0] > 1 and count < GROUP:
        dims.insert(0, dims[0] - 1)
        count *= x.shape[dims[0]]
    return None if count < FEW else Tokens(dims[0] if len(dims) == 1 else tuple(dims), None, _group(count))


def heads_of(x: Tensor) -> int | None:
    """Heads of a product's factor ``(samples * heads, ...)`` that a view flattened; None of any other tensor."""
    node = x.grad_fn
    if node is None or x.dim() != 3 or node.name() not in _VIEWS:
        return None
    size: Any = node._saved_self_sym_sizes  # type: ignore[attr-defined]
    flattened = len(size) == 4 and tuple(size[2:]) == tuple(x.shape[1:]) and size[0] * size[1] == x.shape[0]
    return int(size[1]) if flattened and size[1] else None


def first_smaller(x: Tensor, *codecs: Codec) -> Codec:
    """The first codec that takes ``x`` and makes it smaller; the last one if none does."""
    for codec in codecs:
        if codec.why_not(x) is None and codec.packed_bytes(x.shape, x.dtype) < x.nbytes:
            return codec
    return codecs[-1]


def _group(count: int) -> int:
    """So many tokens a group that none is much smaller than the others."""
    return ceil(count / max(1, round(count / GROUP)))


def _flattened(x: Tensor) -> tuple[int, bool]:
    """Tokens of a sample in ``x`` (samples * tokens, features), 0 if that is no flattened view; and whether tokens lead."""
    node = x.grad_fn
    if node is None or node.name() not in _VIEWS or not x.shape[0]:
        return 0, False
    size: Any = node._saved_self_sym_sizes  # type: ignore[attr-defined]
    # All dims that were flattened into the first count samples and tokens; the others are features, in heads or not.
    rows, dims = 1, 0
    while rows < x.shape[0] and dims < len(size):
        rows, dims = rows * int(size[dims]), dims + 1
    if dims < 2 or dims == len(size) or rows != x.shape[0] or not size[0]:
        return 0, False
    if dims == 2 and _samples_second(node.next_functions[0][0], len(size)):
        return int(size[0]), True
    return rows // int(size[0]), False


def _samples_second(node: Any, dims: int) -> bool:
    """Whether what this node made, of so many dims, is a transpose, or a copy of one, that brought samples behind tokens."""
    while node is not None and node.name() == "CloneBackward0":
        node = node.next_functions[0][0]
    if node is None:
        return False
    if node.name() == "TransposeBackward0":
        return {signed_number(dim) % dims for dim in (node._saved_dim0, node._saved_dim1)} == {0, 1}
    return node.name() == "PermuteBackward0" and signed_number(node._saved_dims[1]) % dims == 0


def _made_by_linear(x: Tensor) -> bool:
    """Whether ``x`` comes from a linear layer, so that its features are the last dim."""
    node = x.grad_fn
    if node is not None and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    return node is not None and node.name() in LINEAR
