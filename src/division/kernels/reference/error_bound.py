"""The error-bounded code's ops, in plain PyTorch: whole numbers of steps, predicted, then written as planes of bits.

Elements are taken in row-major order of the shape, in blocks of 2048. An element becomes the nearest whole number of
steps, of twice the bound and a little less; a block in which one element would then be off by as much as the bound takes
steps of the bound itself, and if that is not enough either, it keeps its elements as they are. The whole numbers of a
block, or the differences of neighbours, whichever takes fewer bytes, are written as ``planes.py`` says.

A block whose numbers are all 0 takes no byte. Any other begins with two: the low bits of a number (5 bits), how zeros
are told (2 bits, 3 for a block kept as it is), whether differences are written; whether its steps are those of the
bound, whether signs are written (0, -1, 1, -2, ... as 0, 1, 2, 3, ...), and the bits of the greatest number (5 bits).
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from division.kernels.ops import body, define
from division.kernels.reference import planes
from division.kernels.reference.packing import pack_small, unpack_small
from division.kernels.reference.planes import BLOCK, FLAGS, NONE, TREE, Layout, Planes

#: By dtype, a step in bounds: less than 2 by what the rounding of a few hundred steps to the dtype may add to an error.
FACTORS = {torch.float32: 2 - 2**-9, torch.float16: 1.875, torch.bfloat16: 1.75}
#: As the style of a block: kept as it is.
EXACT = 3
HEAD = 2
#: Quotients from here on are no numbers of steps.
_MOST = float(1 << 22)
_ROUND = float(3 << 22)  # added and taken off again, it rounds to the nearest even whole number
_LARGEST = torch.finfo(torch.float32).max
_CHUNK = 16  # blocks worked on at a time


def blocks_of(elements: int) -> int:
    """How many blocks so many elements make."""
    return -(-elements // BLOCK)


def most_bytes(elements: int, dtype: torch.dtype) -> int:
    """The most bytes that the blocks may take."""
    return elements * dtype.itemsize + HEAD * blocks_of(elements)


def _check_bound(bound: Tensor, dtype: torch.dtype) -> None:
    if dtype not in FACTORS:
        raise TypeError(f"got dtype {dtype}, expected one of {', '.join(map(str, FACTORS))}")
    if bound.dtype != torch.float32 or tuple(bound.shape) != (1,):
        raise ValueError(f"got a bound {bound.dtype} {tuple(bound.shape)}, expected torch.float32 (1,)")


def _check_encode(x: Tensor, bound: Tensor) -> None:
    _check_bound(bound, x.dtype)
    if bound.device != x.device:
        raise ValueError(f"got a bound on {bound.device} and a tensor on {x.device}, expected one device")


def _check_decode(
    payload: Tensor, sizes: Tensor, bound: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> None:
    _check_bound(bound, dtype)
    if payload.dtype != torch.uint8 or payload.dim() != 1:
        raise ValueError(f"got a payload {payload.dtype} {tuple(payload.shape)}, expected torch.uint8 (bytes,)")
    shape = (blocks_of(prod(size)),)
    if sizes.dtype != torch.int16 or tuple(sizes.shape) != shape:
        raise ValueError(f"got sizes {sizes.dtype} {tuple(sizes.shape)}, expected torch.int16 {shape}")
    if not payload.device == sizes.device == bound.device:
        raise ValueError(f"got parts on {payload.device}, {sizes.device} and {bound.device}, expected one device")


@define("error_bound_encode(Tensor x, Tensor bound) -> (Tensor, Tensor)", _check_encode)
def most_code(x: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """payload uint8 ``[bytes]``, here the most there may be; sizes int16 ``[blocks]``."""
    return (
        x.new_empty(most_bytes(x.numel(), x.dtype), dtype=torch.uint8),
        x.new_empty(blocks_of(x.numel()), dtype=torch.int16),
    )


@define(
    "error_bound_decode(Tensor payload, Tensor sizes, Tensor bound, int[] size, int[] stride, ScalarType dtype)"
    " -> Tensor",
    _check_decode,
)
def empty_result(
    payload: Tensor, sizes: Tensor, bound: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """An empty tensor of the given size, stride and dtype."""
    return torch.empty_strided(size, stride, dtype=dtype, device=payload.device)


def steps(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 ``[2]``: a step, and that of a block which needs smaller ones."""
    return torch.cat((bound * FACTORS[dtype], bound)).clamp(max=_LARGEST)


def values_of(whole: Tensor, step: Tensor, dtype: torch.dtype) -> Tensor:
    """What so many steps stand for (float32, whole numbers), in the dtype, within its range."""
    limit = torch.finfo(dtype).max
    return (whole * step).clamp(-limit, limit).to(dtype)


def _whole_steps(x: Tensor, step: Tensor, bound: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers of steps, int64 ``[blocks, BLOCK]``, and in which blocks ``[blocks]`` all elements keep the bound.

    The test is strict: where a difference rounded to float32 is less than the bound, so is the difference.
    """
    quotient = x * (1 / step)
    kept = quotient.abs() < _MOST
    whole = torch.where(kept, (quotient + _ROUND) - _ROUND, 0)
    kept &= (x - values_of(whole, step, dtype).to(torch.float32)).abs() < bound
    return whole.to(torch.int64), kept.all(1)


def _signed(whole: Tensor) -> Tensor:
    """0, -1, 1, -2, ... as 0, 1, 2, 3, ..."""
    return (whole << 1) ^ (whole >> 63)


def _unsigned(numbers: Tensor) -> Tensor:
    return (numbers >> 1) ^ -(numbers & 1)


def _length(numbers: Tensor) -> Tensor:
    """Binary digits of whole numbers from 0 on."""
    return torch.frexp(numbers.to(torch.float64))[1].to(torch.int64)


def _cost(total: Tensor, count: Tensor, low: Tensor) -> Tensor:
    """About the bits of ``count`` numbers of this sum: the part above the low bits is taken to lose half of them."""
    above = (2 * total - count * ((1 << low) - 1)).clamp(min=0) >> (low + 1)
    return count * (low + 1) + above


def _candidates(numbers: Tensor, there: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Without flags and with them: about the bits of each block, the style, the low bits; all int64 ``[blocks]``."""
    count, total = there.sum(1), numbers.sum(1)
    low = _length(total // (2 * count)).clamp(min=1)
    nonzero = numbers > 0
    live = nonzero.sum(1)
    tree = planes.tree_bits(nonzero, there)
    by_tree = (2 * live < count) & (tree < count)
    rest = total - live
    low_rest = _length(rest // (2 * live.clamp(min=1)))
    flagged = torch.where(by_tree, tree, count) + _cost(rest, live, low_rest)
    return [
        (_cost(total, count, low), torch.full_like(low, NONE), low),
        (flagged, torch.where(by_tree, TREE, FLAGS), low_rest),
    ]


def _choose(whole: Tensor, there: Tensor) -> tuple[Tensor, Layout, Tensor, Tensor]:
    """The numbers to write, how, whether they are differences and whether they have signs: the first of the least."""
    signed = (whole < 0).any(1)
    plain = torch.where(signed[:, None], _signed(whole), whole)
    steps_on = whole.clone()
    steps_on[:, 1:] -= whole[:, :-1]
    differences = torch.where(there, _signed(steps_on), 0)
    best, style, low = _candidates(plain, there)[0]
    delta = torch.zeros_like(signed)
    for numbers, is_delta in ((plain, False), (differences, True)):
        for cost, with_style, with_low in _candidates(numbers, there):
            less = cost < best
            best, style = torch.where(less, cost, best), torch.where(less, with_style, style)
            low, delta = torch.where(less, with_low, low), torch.where(less, is_delta, delta)
    numbers = torch.where(delta[:, None], differences, plain)
    high = torch.maximum(_length(numbers.amax(1)), low)
    return numbers, Layout(style, low, high, there), delta, signed | delta


def _present(blocks: int, first: int, elements: int, device: torch.device) -> Tensor:
    """bool ``[blocks, BLOCK]``: which elements of the blocks from ``first`` on there are."""
    index = torch.arange(first * BLOCK, (first + blocks) * BLOCK, device=device)
    return (index < elements).view(blocks, BLOCK)


def _encode_blocks(x: Tensor, there: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """The bytes of the blocks ``[bytes]`` and how many each takes ``[blocks]``."""
    dtype, wide = x.dtype, x.to(torch.float32)
    coarse, fine = steps(bound, dtype)
    whole, kept = _whole_steps(wide, coarse, bound, dtype)
    finer, kept_finer = _whole_steps(wide, fine, bound, dtype)
    numbers, layout, delta, signed = _choose(torch.where(kept[:, None], whole, finer), there)
    coded = HEAD + -(-planes.stream_bits(numbers, layout) // 8)
    plain = HEAD + there.sum(1) * dtype.itemsize
    empty = kept & ~(whole != 0).any(1)
    exact = ~empty & (~(kept | kept_finer) | (coded >= plain))
    sizes = torch.where(empty, 0, torch.where(exact, plain, coded))

    rows = x.new_zeros((x.shape[0], HEAD + BLOCK * dtype.itemsize), dtype=torch.uint8)
    rows[:, 0] = torch.where(exact, EXACT << 5, layout.low | layout.style << 5 | delta << 7)
    rows[:, 1] = torch.where(exact, 0, (~kept).long() | signed << 1 | layout.high << 2)
    rows[:, HEAD:] = torch.where(exact[:, None], x.view(torch.uint8), 0)
    some = ~(exact | empty)
    if some.any():
        bits = rows.new_zeros((int(some.sum()), 8 * BLOCK * dtype.itemsize))
        own = Layout(layout.style[some], layout.low[some], layout.high[some], there[some])
        planes.put_numbers(Planes(bits), numbers[some], own)
        rows[some, HEAD:] = pack_small(bits, 1)
    return rows[torch.arange(rows.shape[1], device=x.device) < sizes[:, None]], sizes


def _decode_blocks(rows: Tensor, sizes: Tensor, there: Tensor, bound: Tensor, dtype: torch.dtype) -> Tensor:
    """The elements ``[blocks, BLOCK]`` of blocks whose bytes begin each row."""
    head = rows[:, :HEAD].to(torch.int64) * (sizes > 0)[:, None]
    style, low, high = head[:, 0] >> 5 & 3, head[:, 0] & 31, head[:, 1] >> 2
    exact = style == EXACT
    out = rows[:, HEAD:].clone(memory_format=torch.contiguous_format).view(dtype)
    some = (sizes > 0) & ~exact
    whole = torch.zeros(out.shape, dtype=torch.int64, device=rows.device)
    if some.any():
        bits = unpack_small(rows[some, HEAD:], 1, 8 * (rows.shape[1] - HEAD))
        numbers = planes.get_numbers(Planes(bits), Layout(style[some], low[some], high[some], there[some]))
        signed, delta = (head[some, 1] >> 1 & 1).bool(), (head[some, 0] >> 7).bool()
        numbers = torch.where(signed[:, None], _unsigned(numbers), numbers)
        whole[some] = torch.where(delta[:, None], numbers.cumsum(1), numbers)
    step = steps(bound, dtype)[head[:, 1] & 1]
    return torch.where(exact[:, None], out, values_of(whole.to(torch.float32), step[:, None], dtype))


@body("error_bound_encode")
def error_bound_encode(x: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """The bytes of all blocks, one after the other, and how many each takes. On a GPU the host waits for their sum."""
    flat = x.reshape(-1)
    payload, sizes = [], []
    for first in range(0, blocks_of(x.numel()), _CHUNK):
        piece = flat[first * BLOCK : (first + _CHUNK) * BLOCK]
        blocks = blocks_of(piece.numel())
        rows = torch.nn.functional.pad(piece, (0, blocks * BLOCK - piece.numel())).view(blocks, BLOCK)
        own, bytes_of = _encode_blocks(rows, _present(blocks, first, x.numel(), x.device), bound)
        payload.append(own)
        sizes.append(bytes_of.to(torch.int16))
    if not sizes:
        return x.new_empty(0, dtype=torch.uint8), x.new_empty(0, dtype=torch.int16)
    return torch.cat(payload), torch.cat(sizes)


@body("error_bound_decode")
def error_bound_decode(
    payload: Tensor, sizes: Tensor, bound: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """The number of steps of each element times the step, or the element as it was."""
    out = empty_result(payload, sizes, bound, size, stride, dtype)
    flat = out.view(-1) if out.is_contiguous() else torch.empty(out.numel(), dtype=dtype, device=out.device)
    ends = sizes.to(torch.int64).cumsum(0)
    most = HEAD + BLOCK * dtype.itemsize
    offset = torch.arange(most, device=payload.device)
    for first in range(0, sizes.numel(), _CHUNK):
        own = sizes[first : first + _CHUNK].to(torch.int64)
        at = (ends[first : first + _CHUNK] - own)[:, None] + offset
        inside = offset < own[:, None]
        rows = payload.new_zeros(own.numel(), most)
        rows[inside] = payload[at[inside]]
        there = _present(own.numel(), first, out.numel(), payload.device)
        piece = flat[first * BLOCK : (first + _CHUNK) * BLOCK]
        piece.copy_(_decode_blocks(rows, own, there, bound, dtype).view(-1)[: piece.numel()])
    if not out.is_contiguous():
        out.copy_(flat.view(out.shape))
    return out
