"""The op of the ranged codec, in plain PyTorch: rows quantised over ranges that are given.

``x`` and ``lead`` are as the group codec's ops take them. A row is one group, so that ``group_decode`` decodes it.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from division.kernels.noise import uniform
from division.kernels.ops import body, define
from division.kernels.reference.chunks import chunks
from division.kernels.reference.group import check_rows, check_scale, total_bytes
from division.kernels.reference.quantize import code_bytes, pack_codes


def _check(x: Tensor, scale: Tensor, lead: int, bits: int, seed: int) -> None:
    check_rows(x.shape, x.dtype, lead, 1, (bits,))
    check_scale(scale, (prod(x.shape[:lead]), min(prod(x.shape[lead:]), 1), 2))
    if x.device != scale.device:
        raise ValueError(f"got x on {x.device} and scale on {scale.device}, expected one device")


@define("ranged_encode(Tensor x, Tensor scale, int lead, int bits, int seed) -> Tensor", _check)
def empty_codes(x: Tensor, scale: Tensor, lead: int, bits: int, seed: int) -> Tensor:
    """codes uint8 ``[bytes]``, rows one after the other."""
    return x.new_empty((total_bytes(x.shape, lead, (bits,)),), dtype=torch.uint8)


def _pieces(x: Tensor, lead: int, bits: int) -> Iterator[tuple[int, int, Tensor]]:
    """Parts of the rows, of bounded size: (first row, first element, part), which is ``[rows, elements]``.

    A row too large for that is cut along the outermost of its dims, where a byte of its codes begins.
    """
    elements = prod(x.shape[lead:])
    for first, cut in chunks(x, lead):
        piece = x[cut]
        if prod(piece.shape[:lead]) > 1 or piece.dim() == lead or elements // piece.shape[lead] * bits % 8:
            yield first, 0, piece.reshape(-1, elements)
            continue
        row = piece[(0,) * lead]
        inner = elements // row.shape[0]
        for _, part in chunks(row, 1):
            yield first, (part[0].start if part else 0) * inner, row[part].reshape(1, -1)


@body("ranged_encode")
def ranged_encode(x: Tensor, scale: Tensor, lead: int, bits: int, seed: int) -> Tensor:
    """The codes of every row by its (offset, step); all 0 where these are NaN.

    What lies outside of what the codes span takes the nearest of them. Elements are finite where the parameters are.
    """
    codes = empty_codes(x, scale, lead, bits, seed)
    if x.numel() == 0:
        return codes
    lines = codes.view(-1, code_bytes(prod(x.shape[lead:]), bits))
    offsets, steps = scale.view(-1, 2).to(torch.float32).split(1, -1)
    for first, start, piece in _pieces(x, lead, bits):
        own = slice(first, first + piece.shape[0])
        noise = uniform(seed, first, piece.shape[0], piece.shape[1], x.device, start)
        t = piece.to(torch.float32, copy=True).sub_(offsets[own]).mul_(1.0 / steps[own])
        t = t.nan_to_num_(0.0).clamp_(0, 2**bits - 1)
        floor = t.floor()
        packed = pack_codes(floor.to(torch.int32).add_(noise < t.sub_(floor)), bits)
        lines[own, start * bits // 8 :][:, : packed.shape[1]] = packed
    return codes
