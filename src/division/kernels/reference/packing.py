"""Small whole numbers, several to a byte: the first of a byte sits in its low bits."""

from torch import Tensor


def pack_small(values: Tensor, bits: int) -> Tensor:
    """Whole numbers below ``2**bits``, uint8, packed ``8 // bits`` to a byte along the last dim; bits in 1, 2, 4, 8.

    Example:
        >>> import torch
        >>> pack_small(torch.tensor([1, 0, 3, 2, 1], dtype=torch.uint8), 2)
        tensor([177,   1], dtype=torch.uint8)
    """
    per = 8 // bits
    codes = values.new_zeros((*values.shape[:-1], -(-values.shape[-1] // per)))
    for k in range(per):
        lane = values[..., k::per]
        codes[..., : lane.shape[-1]] |= lane << (k * bits)
    return codes


def unpack_small(codes: Tensor, bits: int, count: int) -> Tensor:
    """The first ``count`` numbers along the last dim that :func:`pack_small` packed: uint8."""
    per, low = 8 // bits, (1 << bits) - 1
    values = codes.new_empty((*codes.shape[:-1], count))
    for k in range(per):
        lane = values[..., k::per]
        lane.copy_((codes[..., : lane.shape[-1]] >> (k * bits)) & low)
    return values
