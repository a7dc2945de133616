"""Codes of planes inside a Triton kernel: the second pass of encoding, and its inverse.

A tile is ``[planes, chunks, lanes]``: of each chunk of 16 elements the lanes take neighbours of the first half, and
those of the second half, which share their noise. Codes of a half are put together in an int32 before they are
stored, and stored by 2 or 4 bytes where the rows of the code tensor allow it.
"""

import triton
import triton.language as tl

from division.kernels.gpu.blocks import block_of, element
from division.kernels.gpu.noise import count, high_half, low_half, mix
from division.kernels.gpu.rounding import code_of, place, to_float32, to_stored


@triton.jit
def low_frequencies(
    row: tl.tensor, here: tl.tensor, first: tl.tensor, d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr,
    planes: tl.constexpr, chunks: tl.constexpr, lanes: tl.constexpr, run: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The LFC of the elements from ``first`` (``[chunks]``) on.

    That is float32 ``[planes, chunks, lanes]`` or, if all lanes share it, ``[planes, chunks, 1]``.

    Args:
        row: pointers to the LFC of each plane.
        here: which planes there are.
        run: so many elements, from a multiple of that number on, lie in one block.
    """
    count: tl.constexpr = max(lanes // run, 1)
    e = first[:, None] + (tl.arange(0, count) * run)[None, :]
    mask = here[:, None, None] & (e < d * h * w)[None, :, :]
    spot = row[:, None, None] + block_of(e, d, h, w, side_z, side_y, side_x)[None, :, :]
    low = to_float32(tl.load(spot, mask=mask, other=0))
    if (count > 1) and (run > 1):
        spread = tl.broadcast_to(low[:, :, :, None], (planes, chunks, count, run))
        low = tl.reshape(spread, (planes, chunks, lanes))
    return low


@triton.jit
def joined(
    codes: tl.tensor, step: tl.constexpr, planes: tl.constexpr, chunks: tl.constexpr, lanes: tl.constexpr,
    bits: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Codes ``[planes, chunks, lanes]`` of elements ``step * lanes`` and on of a half, where its int32 has them.

    Four lanes at a time: those that one thread holds are shifted by constants.
    """
    if lanes == 1:
        word = tl.reshape(codes, (planes, chunks)) << (step * bits % 32)
    else:
        four = tl.reshape(codes, (planes, chunks, 2, 4)) << (tl.arange(0, 4) * bits)[None, None, None, :]
        word = tl.sum(tl.sum(four, axis=3) << (tl.arange(0, 2) * (4 * bits))[None, None, :], axis=2)
    return word


@triton.jit
def settled(
    word: tl.tensor, plain: tl.tensor, ones: tl.tensor, first: tl.tensor, elements: tl.constexpr, bits: tl.constexpr
) -> tl.tensor:
    """The int32 of the halves that begin at elements ``first`` (``[chunks]``), as it is stored.

    Special planes have their own, and beyond the end of a plane there are zeros.

    Args:
        word: ``[planes, chunks]``.
        plain: ``[planes]``, all ones for a plane that isn't special, or else 0.
        ones: ``[planes]``, every code 1 for a plane of one value, or else 0.
    """
    word = (word & plain[:, None]) | ones[:, None]
    if elements % 16 != 0:
        count = tl.minimum(tl.maximum(elements - first, 0), 8)
        mask = tl.where(count == 8, -1, (1 << (count * bits % 32)) - 1)
        word = word & mask[None, :]
    return word


@triton.jit
def store_bytes(
    row: tl.tensor, here: tl.tensor, byte: tl.tensor, value: tl.tensor,
    size: tl.constexpr, row_bytes: tl.constexpr,
) -> None:  # fmt: skip
    """Store the low ``size`` bytes of int32 ``[planes, chunks]`` at ``byte`` (``[chunks]``) of each row and on."""
    if row_bytes % size == 0:
        kind: tl.constexpr = tl.int32 if size == 4 else tl.int16 if size == 2 else tl.uint8
        mask = here[:, None] & (byte < row_bytes)[None, :]
        spot = (row[:, None] + byte[None, :]).to(tl.pointer_type(kind), bitcast=True)
        tl.store(spot, value.to(kind), mask=mask)
    else:
        for i in tl.static_range(size):
            mask = here[:, None] & (byte + i < row_bytes)[None, :]
            tl.store(row[:, None] + (byte + i)[None, :], (value >> (8 * i)).to(tl.uint8), mask=mask)


@triton.jit
def load_bytes(
    row: tl.tensor, here: tl.tensor, byte: tl.tensor, size: tl.constexpr, row_bytes: tl.constexpr
) -> tl.tensor:
    """The inverse of :func:`store_bytes`: int32 ``[planes, chunks]``, whose bytes above ``size`` may be anything."""
    if row_bytes % size == 0:
        kind: tl.constexpr = tl.int32 if size == 4 else tl.int16 if size == 2 else tl.uint8
        mask = here[:, None] & (byte < row_bytes)[None, :]
        spot = (row[:, None] + byte[None, :]).to(tl.pointer_type(kind), bitcast=True)
        value = tl.load(spot, mask=mask, other=0).to(tl.int32)
    else:
        value = (here[:, None] & (byte < 0)[None, :]).to(tl.int32)
        for i in tl.static_range(size):
            mask = here[:, None] & (byte + i < row_bytes)[None, :]
            part = tl.load(row[:, None] + (byte + i)[None, :], mask=mask, other=0)
            value = value | (part.to(tl.int32) << (8 * i))
    return value


@triton.jit
def codes_of(
    x: tl.tensor, base: tl.tensor, here: tl.tensor, low: tl.tensor, e: tl.tensor, half: tl.tensor,
    zero: tl.tensor, scale: tl.tensor, floor: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr, flat: tl.constexpr, unit: tl.constexpr, bits: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The codes of elements ``e`` (``[chunks, lanes]``) of some planes, int32; anything beyond a plane's end.

    Up to 4 bits, those of special planes are anything: :func:`settled` has them. And a place never exceeds the levels
    by as much as the least noise, 2^-17: it is within 15 * (2^-22 + 2 * 2^-24) of them.
    """
    there = here[:, None, None] & (e < d * h * w)[None, :, :]
    spot = x + base[:, None, None] + element(e, s_z, s_y, s_x, h, w, flat, unit)[None, :, :]
    r = to_float32(tl.load(spot, mask=there, other=0.0)) - low
    if bits == 8:
        t = place(r, zero[:, None, None], scale[:, None, None], floor[:, None, None], 255)
    else:
        t = (r - zero[:, None, None]) * scale[:, None, None]
    return code_of(t, half, 2**bits - 1)


@triton.jit
def store_halves(
    codes: tl.tensor, here: tl.tensor, chunk: tl.tensor, before: tl.tensor, after: tl.tensor,
    plain: tl.tensor, ones: tl.tensor, elements: tl.constexpr, bits: tl.constexpr,
) -> None:  # fmt: skip
    """Store the two int32 of each chunk, for 1, 2 and 4 bits."""
    row_bytes: tl.constexpr = (elements * bits + 7) // 8
    before = settled(before, plain, ones, chunk * 16, elements, bits)
    after = settled(after, plain, ones, chunk * 16 + 8, elements, bits)
    if bits == 1:
        store_bytes(codes, here, chunk * 2, before | (after << 8), 2, row_bytes)
    elif bits == 2:
        store_bytes(codes, here, chunk * 4, before | (after << 16), 4, row_bytes)
    else:
        store_bytes(codes, here, chunk * 8, before, 4, row_bytes)
        store_bytes(codes, here, chunk * 8 + 4, after, 4, row_bytes)


@triton.jit
def pass_over_codes(
    x: tl.tensor, base: tl.tensor, here: tl.tensor, lfc: tl.tensor, codes: tl.tensor, key: tl.tensor,
    low: tl.tensor, zero: tl.tensor, scale: tl.tensor, floor: tl.tensor,
    first: tl.tensor, last: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr, flat: tl.constexpr, unit: tl.constexpr,
    single: tl.constexpr, planes: tl.constexpr, chunks: tl.constexpr, lanes: tl.constexpr, run: tl.constexpr,
    bits: tl.constexpr,
) -> None:  # fmt: skip
    """The second pass, over the chunks from ``first`` to ``last`` of some planes: write their codes.

    Args:
        x: the map.
        base: where each plane begins in it, int64 ``[planes]``.
        here: which of the planes there are.
        lfc, codes: pointers to the rows of each plane, ``[planes]``.
        key: of each plane's noise.
        low: the LFC of each plane, ``[planes]``, if ``single``: planes of one block.
        zero, scale, floor: of each plane, as ``rounding.parameters`` gives them.
    """
    elements: tl.constexpr = d * h * w
    plain = tl.where(scale > 0.0, -1, 0)
    ones = tl.where(floor > 0.0, ((1 << (8 * bits)) - 1) // (2**bits - 1) if bits < 8 else 0, 0)
    for start in range(first, last, chunks):
        chunk = start + tl.arange(0, chunks)
        before = tl.zeros((planes, chunks), tl.int32)
        after = before
        low_before = low[:, None, None]
        low_after = low_before
        for step in tl.static_range(8 // lanes):
            j = step * lanes + tl.arange(0, lanes)
            e = chunk[:, None] * 16 + j[None, :]
            if (not single) and (step * lanes % run == 0):
                at = chunk * 16 + step * lanes
                low_before = low_frequencies(
                    lfc, here, at, d, h, w, side_z, side_y, side_x, planes, chunks, lanes, run
                )  # fmt: skip
                low_after = low_frequencies(
                    lfc, here, at + 8, d, h, w, side_z, side_y, side_x, planes, chunks, lanes, run
                )  # fmt: skip
            noise = mix((count(chunk * 8)[:, None] + count(j)[None, :])[None, :, :] ^ key[:, None, None])
            code_before = codes_of(
                x, base, here, low_before, e, low_half(noise), zero, scale, floor, s_z, s_y, s_x,
                d, h, w, flat, unit, bits,
            )  # fmt: skip
            code_after = codes_of(
                x, base, here, low_after, e + 8, high_half(noise), zero, scale, floor, s_z, s_y, s_x,
                d, h, w, flat, unit, bits,
            )  # fmt: skip
            if (bits == 8) and (lanes == 8):
                spot = codes[:, None, None] + e[None, :, :]
                there = here[:, None, None] & (e < elements)[None, :, :]
                tl.store(spot, code_before.to(tl.uint8), mask=there)
                there = here[:, None, None] & (e + 8 < elements)[None, :, :]
                tl.store(spot + 8, code_after.to(tl.uint8), mask=there)
            else:
                before |= joined(code_before, step, planes, chunks, lanes, bits)
                after |= joined(code_after, step, planes, chunks, lanes, bits)
            if (bits == 8) and (lanes == 1) and (step % 4 == 3):
                store_bytes(codes, here, chunk * 16 + step - 3, before, 4, elements)
                store_bytes(codes, here, chunk * 16 + step + 5, after, 4, elements)
                before, after = before * 0, after * 0
        if bits < 8:
            store_halves(codes, here, chunk, before, after, plain, ones, elements, bits)


@triton.jit
def decode_tile(
    out: tl.tensor, base: tl.tensor, here: tl.tensor, lfc: tl.tensor, codes: tl.tensor,
    offset: tl.tensor, scale: tl.tensor, chunk: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr, flat: tl.constexpr, unit: tl.constexpr,
    planes: tl.constexpr, chunks: tl.constexpr, lanes: tl.constexpr, run: tl.constexpr, bits: tl.constexpr,
) -> None:  # fmt: skip
    """Write the elements of some chunks of some planes: ``(step * code + offset) + LFC``, or the LFC for 0 bits."""
    elements: tl.constexpr = d * h * w
    row_bytes: tl.constexpr = (elements * bits + 7) // 8
    before, after = tl.zeros((planes, chunks), tl.int32), tl.zeros((planes, chunks), tl.int32)
    if bits == 1:
        before = load_bytes(codes, here, chunk * 2, 2, row_bytes)
        after = before >> 8
    elif bits == 2:
        before = load_bytes(codes, here, chunk * 4, 4, row_bytes)
        after = before >> 16
    elif bits == 4:
        before = load_bytes(codes, here, chunk * 8, 4, row_bytes)
        after = load_bytes(codes, here, chunk * 8 + 4, 4, row_bytes)
    low = tl.zeros((planes, chunks, 1), tl.float32)
    low_before, low_after = low, low
    for step in tl.static_range(8 // lanes):
        j = step * lanes + tl.arange(0, lanes)
        if step * lanes % run == 0:
            low_before = low_frequencies(
                lfc, here, chunk * 16 + step * lanes, d, h, w, side_z, side_y, side_x, planes, chunks, lanes, run
            )  # fmt: skip
            low_after = low_frequencies(
                lfc, here, chunk * 16 + 8 + step * lanes, d, h, w, side_z, side_y, side_x, planes, chunks, lanes, run
            )  # fmt: skip
        if (bits == 8) and (lanes == 1) and (step % 4 == 0):
            before = load_bytes(codes, here, chunk * 16 + step, 4, row_bytes)
            after = load_bytes(codes, here, chunk * 16 + step + 8, 4, row_bytes)
        for half in tl.static_range(2):
            e = chunk[:, None] * 16 + (8 * half + j)[None, :]
            there = here[:, None, None] & (e < elements)[None, :, :]
            spot = out + base[:, None, None] + element(e, s_z, s_y, s_x, h, w, flat, unit)[None, :, :]
            value = low_before if half == 0 else low_after
            if bits > 0:
                if (bits == 8) and (lanes == 8):
                    code = tl.load(codes[:, None, None] + e[None, :, :], mask=there, other=0).to(tl.int32)
                else:
                    packed = before if half == 0 else after
                    code = (packed[:, :, None] >> (j * bits % 32)[None, None, :]) & (2**bits - 1)
                value = code.to(tl.float32) * scale[:, None, None] + offset[:, None, None] + value
            value = tl.broadcast_to(value, (planes, chunks, lanes))
            tl.store(spot, to_stored(value, out.dtype.element_ty), mask=there)
