"""Triton bodies of the error-bounded code, a block a program: how many bytes each takes, then, at its place, those.

Between the two the host waits for the sum, to allocate it. Elements that do not lie side by side are copied first.
"""

from collections.abc import Sequence
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from division.kernels.gpu.launch import Configuration, Launch
from division.kernels.gpu.planes import BLOCK, FLAGS, LEVELS, NONE, TREE, get_numbers, put_bits, put_numbers, tree_bits
from division.kernels.gpu.rounding import FP32_MAX, to_float32, to_stored
from division.kernels.reference.error_bound import EXACT as _EXACT
from division.kernels.reference.error_bound import FACTORS, blocks_of, empty_result

EXACT = tl.constexpr(_EXACT)
MOST = tl.constexpr(float(1 << 22))
ROUND = tl.constexpr(float(3 << 22))
_WARPS = 8


@triton.jit
def step_of(bound: tl.tensor, fine: tl.tensor, factor: tl.constexpr) -> tl.tensor:
    """A step of the block."""
    return tl.minimum(tl.where(fine != 0, bound, bound * factor), FP32_MAX)


@triton.jit
def whole_steps(stored: tl.tensor, step: tl.tensor) -> tl.tensor:
    """Numbers of steps, float32; 0 where there are too many."""
    quotient = to_float32(stored) * tl.math.div_rn(1.0, step)
    return tl.where(tl.abs(quotient) < MOST, (quotient + ROUND) - ROUND, 0.0)


@triton.jit
def keeps(stored: tl.tensor, step: tl.tensor, bound: tl.tensor) -> tl.tensor:
    """1 if all elements are within the bound, else 0."""
    x = to_float32(stored)
    whole = whole_steps(stored, step)
    off = tl.abs(x - to_float32(to_stored(whole * step, stored.dtype)))
    kept = (tl.abs(x * tl.math.div_rn(1.0, step)) < MOST) & (off < bound)
    return tl.min(kept.to(tl.int32), 0)


@triton.jit
def folded(whole: tl.tensor, by: tl.tensor) -> tl.tensor:
    """0, -1, 1, -2, ... as 0, 1, 2, 3, ... if ``by`` is 1."""
    return (whole << by) ^ (whole >> 31)


@triton.jit
def length(number: tl.tensor) -> tl.tensor:
    """Binary digits of a whole number below 2^32."""
    return tl.sum(((number >> tl.arange(0, 32)) > 0).to(tl.int32), 0)


@triton.jit
def cost(total: tl.tensor, count: tl.tensor, low: tl.tensor) -> tl.tensor:
    """About the bits of ``count`` numbers of this sum."""
    ones = (tl.full((), 1, tl.int64) << low) - 1
    return count * (low + 1) + (tl.maximum(2 * total - count * ones, 0) >> (low + 1))


@triton.jit
def numbers_of(
    x: tl.tensor, element: tl.tensor, count: tl.tensor, step: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Numbers and differences, signs folded in, and whether the numbers have signs."""
    whole = whole_steps(tl.load(x + element, mask=element < count, other=0), step).to(tl.int32)
    before = (element < count) & (tl.arange(0, BLOCK) > 0)
    last = whole_steps(tl.load(x + element - 1, mask=before, other=0), step).to(tl.int32)
    sign = (tl.min(whole, 0) < 0).to(tl.int32)
    return folded(whole, sign), tl.where(element < count, folded(whole - last, 1), 0), sign


@triton.jit
def candidate(numbers: tl.tensor, there: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The cheaper of without flags and with them: about its bits, its style, its low bits."""
    count, total = tl.sum(there.to(tl.int64), 0), tl.sum(numbers.to(tl.int64), 0)
    nonzero = (numbers > 0).to(tl.int32)
    live, tree = tl.sum(nonzero.to(tl.int64), 0), tree_bits(nonzero, there).to(tl.int64)
    low = tl.maximum(length(total // (2 * count)), 1)
    plain = cost(total, count, low)
    by_tree = (2 * live < count) & (tree < count)
    low_rest = length((total - live) // (2 * tl.maximum(live, 1)))
    flagged = tl.where(by_tree, tree, count) + cost(total - live, live, low_rest)
    with_flags = tl.where(by_tree, TREE, FLAGS)
    less = flagged < plain
    return tl.where(less, flagged, plain), tl.where(less, with_flags, NONE), tl.where(less, low_rest, low)


@triton.jit
def stream_bits(numbers: tl.tensor, there: tl.tensor, style: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Bits that the numbers take."""
    nonzero = (numbers > 0).to(tl.int32)
    live = tl.where(style != NONE, nonzero, there)
    rest = tl.where(live != 0, numbers - (style != NONE).to(tl.int32), 0)
    above = rest >> low
    each = low + 1 + tl.minimum(above, LEVELS - 1) + tl.where(above >= LEVELS, high - low, 0)
    tree = tl.where(style == TREE, tree_bits(nonzero, there), 0)
    return tl.sum(each * live, 0) + tree + tl.where(style == FLAGS, tl.sum(there, 0), 0)


@triton.jit(do_not_specialize=["count"])
def size_kernel(
    x: tl.tensor, bound: tl.tensor, sizes: tl.tensor, heads: tl.tensor, count: tl.tensor,
    factor: tl.constexpr, itemsize: tl.constexpr,
) -> None:  # fmt: skip
    """The bytes of a block, and the two that it begins with."""
    block = tl.program_id(0).to(tl.int64)
    element = block * BLOCK + tl.arange(0, BLOCK)
    limit, there = tl.load(bound), (element < count).to(tl.int32)
    stored = tl.load(x + element, mask=element < count, other=0)
    fine = 1 - keeps(stored, step_of(limit, 0, factor), limit)
    step = step_of(limit, fine, factor)
    kept = keeps(stored, step, limit)
    plain, apart, sign = numbers_of(x, element, count, step)
    bits, style, low = candidate(plain, there)
    other_bits, other_style, other_low = candidate(apart, there)
    delta = (other_bits < bits).to(tl.int32)
    style, low = tl.where(delta != 0, other_style, style), tl.where(delta != 0, other_low, low)
    numbers = tl.where(delta != 0, apart, plain)
    high = tl.maximum(length(tl.max(numbers, 0)), low)
    coded = 2 + (stream_bits(numbers, there, style, low, high) + 7) // 8
    whole = 2 + tl.sum(there, 0) * itemsize
    exact = (kept == 0) | (coded >= whole)
    empty = (fine == 0) & (tl.max(plain, 0) == 0)
    head = low | style << 5 | delta << 7 | fine << 8 | (sign | delta) << 9 | high << 10
    tl.store(heads + block, tl.where(exact, EXACT << 5, head))
    tl.store(sizes + block, tl.where(empty, 0, tl.where(exact, whole, coded)).to(tl.int16))


@triton.jit(do_not_specialize=["count"])
def encode_kernel(
    x: tl.tensor, bound: tl.tensor, sizes: tl.tensor, heads: tl.tensor, starts: tl.tensor, words: tl.tensor,
    count: tl.tensor, factor: tl.constexpr, itemsize: tl.constexpr,
) -> None:  # fmt: skip
    """The bytes of a block, at their place."""
    block = tl.program_id(0).to(tl.int64)
    element = block * BLOCK + tl.arange(0, BLOCK)
    there = (element < count).to(tl.int32)
    head = tl.load(heads + block)
    at = tl.load(starts + block) * 8
    if tl.load(sizes + block) > 0:
        first = tl.arange(0, 16)
        put_bits(words, at + first, (head >> first) & 1)
        if (head >> 5 & 3) == EXACT:
            stored = tl.load(x + element, mask=element < count, other=0)
            pattern = (
                stored.to(tl.int32, bitcast=True) if itemsize == 4 else stored.to(tl.int16, bitcast=True).to(tl.int32)
            )
            place = at + 16 + tl.arange(0, BLOCK).to(tl.int64) * (8 * itemsize)
            for bit in range(8 * itemsize):
                put_bits(words, place + bit, (pattern >> bit) & there)
        else:
            step = step_of(tl.load(bound), head >> 8 & 1, factor)
            plain, apart, _ = numbers_of(x, element, count, step)
            numbers = tl.where((head >> 7 & 1) != 0, apart, plain)
            put_numbers(words, at + 16, numbers, there, head >> 5 & 3, head & 31, head >> 10)


@triton.jit(do_not_specialize=["count"])
def decode_kernel(
    payload: tl.tensor, sizes: tl.tensor, starts: tl.tensor, bound: tl.tensor, out: tl.tensor, count: tl.tensor,
    factor: tl.constexpr, itemsize: tl.constexpr,
) -> None:  # fmt: skip
    """The elements of a block."""
    block = tl.program_id(0).to(tl.int64)
    element = block * BLOCK + tl.arange(0, BLOCK)
    there = (element < count).to(tl.int32)
    stored_as: tl.constexpr = out.dtype.element_ty
    some, start = tl.load(sizes + block) > 0, tl.load(starts + block)
    head = tl.load(payload + start, mask=some, other=0).to(tl.int32)
    head |= tl.load(payload + start + 1, mask=some, other=0).to(tl.int32) << 8
    if (head >> 5 & 3) == EXACT:
        pattern = tl.zeros((BLOCK,), tl.int32)
        for byte in tl.static_range(itemsize):
            from_here = payload + (start + 2 + byte) + tl.arange(0, BLOCK) * itemsize
            pattern |= tl.load(from_here, mask=there != 0, other=0).to(tl.int32) << (8 * byte)
        kept = pattern if itemsize == 4 else pattern.to(tl.int16)
        tl.store(out + element, kept.to(stored_as, bitcast=True), mask=there != 0)
    else:
        numbers = get_numbers(payload, start * 8 + 16, there * some.to(tl.int32), head >> 5 & 3, head & 31, head >> 10)
        whole = tl.where((head >> 9 & 1) != 0, (numbers >> 1) ^ -(numbers & 1), numbers)
        whole = tl.where((head >> 7 & 1) != 0, tl.cumsum(whole, 0), whole)
        step = step_of(tl.load(bound), head >> 8 & 1, factor)
        tl.store(out + element, to_stored(whole.to(tl.float32) * step, stored_as), mask=there != 0)


def _constants(dtype: torch.dtype) -> dict[str, float | int]:
    return {"factor": FACTORS[dtype], "itemsize": dtype.itemsize}


def _sizing(x: Tensor, bound: Tensor, sizes: Tensor, heads: Tensor) -> Launch:
    arguments = {"x": x, "bound": bound, "sizes": sizes, "heads": heads, "count": x.numel()}
    return Launch(size_kernel, (sizes.numel(),), arguments, _constants(x.dtype), num_warps=_WARPS)


def _encoding(x: Tensor, bound: Tensor, sizes: Tensor, heads: Tensor, starts: Tensor, words: Tensor) -> Launch:
    arguments = {
        "x": x, "bound": bound, "sizes": sizes, "heads": heads, "starts": starts, "words": words, "count": x.numel(),
    }  # fmt: skip
    return Launch(encode_kernel, (sizes.numel(),), arguments, _constants(x.dtype), num_warps=_WARPS)


def _decoding(payload: Tensor, sizes: Tensor, starts: Tensor, bound: Tensor, out: Tensor) -> Launch:
    arguments = {
        "payload": payload, "sizes": sizes, "starts": starts, "bound": bound, "out": out, "count": out.numel(),
    }  # fmt: skip
    return Launch(decode_kernel, (sizes.numel(),), arguments, _constants(out.dtype), num_warps=_WARPS)


def error_bound_encode(x: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """The bytes of all blocks, one after the other, and how many each takes."""
    x = x.reshape(-1)
    sizes = x.new_empty(blocks_of(x.numel()), dtype=torch.int16)
    if not x.numel():
        return x.new_empty(0, dtype=torch.uint8), sizes
    heads = x.new_empty(sizes.numel(), dtype=torch.int32)
    _sizing(x, bound, sizes, heads)()
    ends = sizes.to(torch.int64).cumsum(0)
    total = int(ends[-1])
    words = x.new_zeros(-(-total // 4) + 1, dtype=torch.int32)
    _encoding(x, bound, sizes, heads, ends - sizes, words)()
    return words.view(torch.uint8)[:total].clone(), sizes


def error_bound_decode(
    payload: Tensor, sizes: Tensor, bound: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """The number of steps of each element times the step, or the element as it was."""
    out = empty_result(payload, sizes, bound, size, stride, dtype)
    if prod(size) == 0:
        return out
    flat = out.view(-1) if out.is_contiguous() else torch.empty(out.numel(), dtype=dtype, device=out.device)
    starts = sizes.to(torch.int64).cumsum(0) - sizes
    _decoding(payload.contiguous(), sizes.contiguous(), starts, bound, flat)()
    if not out.is_contiguous():
        out.copy_(flat.view(out.shape))
    return out


def configurations() -> list[Configuration]:
    """All three kernels, in every dtype."""
    found = []
    for dtype in FACTORS:
        x = torch.empty(1 << 20, dtype=dtype, device="meta")
        bound, sizes = x.new_empty(1, dtype=torch.float32), x.new_empty(512, dtype=torch.int16)
        heads, starts = x.new_empty(512, dtype=torch.int32), x.new_empty(512, dtype=torch.int64)
        payload = x.new_empty(1 << 20, dtype=torch.uint8)
        launches = {
            "size": _sizing(x, bound, sizes, heads),
            "encode": _encoding(x, bound, sizes, heads, starts, payload.view(torch.int32)),
            "decode": _decoding(payload, sizes, starts, bound, x),
        }
        found += [launch.configuration(f"error_bound {name} {dtype}") for name, launch in launches.items()]
    return found
