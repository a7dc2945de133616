"""Triton bodies of the dual codec's ops: encode in one kernel, or in three where planes are large; decode in one.

``maps.py`` says what a program takes and when a map is read twice, ``blocks.py`` and ``codes.py`` hold the two passes.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from division.kernels.gpu.blocks import fill_blocks, merge, narrow, own_planes, parts_launch, pass_over_blocks, settle
from division.kernels.gpu.codes import decode_tile, pass_over_codes
from division.kernels.gpu.launch import Configuration, Launch, reference
from division.kernels.gpu.maps import CASES, PART, Map, view_map
from division.kernels.gpu.noise import row_key, seed_arguments
from division.kernels.gpu.rounding import parameters, to_bf16, to_float32
from division.kernels.reference.dual import empty_code, empty_map


@triton.jit(do_not_specialize=["seed_low", "seed_high"])
def encode_kernel(
    x: tl.tensor, lfc: tl.tensor, codes: tl.tensor, scale: tl.tensor,
    inner: tl.tensor, s_outer: tl.tensor, s_inner: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    seed_low: tl.tensor, seed_high: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr, flat: tl.constexpr, unit: tl.constexpr,
    blocks: tl.constexpr, planes: tl.constexpr, pitch: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, by_cells: tl.constexpr,
    tiles: tl.constexpr, chunks: tl.constexpr, lanes: tl.constexpr, run: tl.constexpr, bits: tl.constexpr,
) -> None:  # fmt: skip
    """Both passes over some planes."""
    elements: tl.constexpr = d * h * w
    base, plane, here = own_planes(tl.program_id(0), inner, s_outer, s_inner, planes, pitch)
    mean, x_low, x_high, r_low, r_high = pass_over_blocks(
        x, base, here, lfc, plane, 0, tiles, s_z, s_y, s_x,
        d, h, w, side_z, side_y, side_x, unit, planes, rows, columns, by_cells,
    )  # fmt: skip
    special, value, r_low, r_high = settle(x_low, x_high, r_low, r_high, 0.0)
    special, value, r_low, r_high = narrow(special, value, x_low, x_high, r_low, r_high, blocks)
    low = value
    if blocks == 1:
        low = tl.where(special, value, tl.reshape(mean, (planes,)))
        tl.store(lfc + plane, to_bf16(low), mask=here)
    else:
        fill_blocks(lfc, plane, special & here, value, blocks)
    offset, step, zero, inverse, floor = parameters(r_low, r_high, here, 2**bits - 1)
    tl.store(scale + 2 * plane, to_bf16(offset), mask=here)
    tl.store(scale + 2 * plane + 1, to_bf16(step), mask=here)
    pass_over_codes(
        x, base, here, lfc + plane * blocks, codes + plane * ((elements * bits + 7) // 8),
        row_key(plane, seed_low, seed_high), low, zero, inverse, floor, 0, (elements + 15) // 16, s_z, s_y, s_x,
        d, h, w, side_z, side_y, side_x, flat, unit, blocks == 1, planes, chunks, lanes, run, bits,
    )  # fmt: skip


@triton.jit
def merge_kernel(
    ranges: tl.tensor, lfc: tl.tensor, scale: tl.tensor, affine: tl.tensor, count: tl.tensor,
    blocks: tl.constexpr, planes: tl.constexpr, parts: tl.constexpr, bits: tl.constexpr,
) -> None:  # fmt: skip
    """Between the passes: the parameters of planes; ``affine`` is float32 ``[3, count]``, what codes are made with."""
    plane = tl.program_id(0).to(tl.int64) * planes + tl.arange(0, planes)
    here = plane < count
    x_low, x_high, r_low, r_high = merge(ranges, plane, here, count, planes, parts)
    special, value, r_low, r_high = settle(x_low, x_high, r_low, r_high, 0.0)
    special, value, r_low, r_high = narrow(special, value, x_low, x_high, r_low, r_high, blocks)
    fill_blocks(lfc, plane, special & here, value, blocks)
    offset, step, zero, inverse, floor = parameters(r_low, r_high, here, 2**bits - 1)
    tl.store(scale + 2 * plane, to_bf16(offset), mask=here)
    tl.store(scale + 2 * plane + 1, to_bf16(step), mask=here)
    tl.store(affine + plane, zero, mask=here)
    tl.store(affine + count + plane, inverse, mask=here)
    tl.store(affine + 2 * count + plane, floor, mask=here)


@triton.jit(do_not_specialize=["seed_low", "seed_high"])
def codes_kernel(
    x: tl.tensor, lfc: tl.tensor, codes: tl.tensor, affine: tl.tensor, count: tl.tensor,
    inner: tl.tensor, s_outer: tl.tensor, s_inner: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    seed_low: tl.tensor, seed_high: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr, flat: tl.constexpr, unit: tl.constexpr,
    blocks: tl.constexpr, planes: tl.constexpr, pitch: tl.constexpr, share: tl.constexpr,
    chunks: tl.constexpr, lanes: tl.constexpr, run: tl.constexpr, bits: tl.constexpr,
) -> None:  # fmt: skip
    """The second pass over ``share`` chunks of some planes."""
    elements: tl.constexpr = d * h * w
    total: tl.constexpr = (elements + 15) // 16
    parts: tl.constexpr = (total + share - 1) // share
    first = tl.program_id(0) % parts * share
    base, plane, here = own_planes(tl.program_id(0) // parts, inner, s_outer, s_inner, planes, pitch)
    zero = tl.load(affine + plane, mask=here, other=0.0)
    inverse = tl.load(affine + count + plane, mask=here, other=0.0)
    floor = tl.load(affine + 2 * count + plane, mask=here, other=0.0)
    pass_over_codes(
        x, base, here, lfc + plane * blocks, codes + plane * ((elements * bits + 7) // 8),
        row_key(plane, seed_low, seed_high), zero, zero, inverse, floor, first, tl.minimum(first + share, total),
        s_z, s_y, s_x, d, h, w, side_z, side_y, side_x, flat, unit, False, planes, chunks, lanes, run, bits,
    )  # fmt: skip


@triton.jit
def decode_kernel(
    lfc: tl.tensor, codes: tl.tensor, scale: tl.tensor, out: tl.tensor,
    inner: tl.tensor, s_outer: tl.tensor, s_inner: tl.tensor, s_z: tl.tensor, s_y: tl.tensor, s_x: tl.tensor,
    d: tl.constexpr, h: tl.constexpr, w: tl.constexpr,
    side_z: tl.constexpr, side_y: tl.constexpr, side_x: tl.constexpr, flat: tl.constexpr, unit: tl.constexpr,
    blocks: tl.constexpr, planes: tl.constexpr, pitch: tl.constexpr, chunks: tl.constexpr, lanes: tl.constexpr,
    run: tl.constexpr, bits: tl.constexpr,
) -> None:  # fmt: skip
    """A few chunks of some planes."""
    elements: tl.constexpr = d * h * w
    parts: tl.constexpr = ((elements + 15) // 16 + chunks - 1) // chunks
    base, plane, here = own_planes(tl.program_id(0) // parts, inner, s_outer, s_inner, planes, pitch)
    offset = to_float32(tl.load(scale + 2 * plane, mask=here, other=0))
    step = to_float32(tl.load(scale + 2 * plane + 1, mask=here, other=0))
    chunk = tl.program_id(0) % parts * chunks + tl.arange(0, chunks)
    decode_tile(
        out, base, here, lfc + plane * blocks, codes + plane * ((elements * bits + 7) // 8), offset, step, chunk,
        s_z, s_y, s_x, d, h, w, side_z, side_y, side_x, flat, unit, planes, chunks, lanes, run, bits,
    )  # fmt: skip


def encode_launches(
    m: Map, x: Tensor, lfc: Tensor, codes: Tensor, scale: Tensor, bits: int, seed: int
) -> tuple[Launch, ...]:
    """The launches that encode map ``x`` into the three parts of its code."""
    seeds = dict(zip(("seed_low", "seed_high"), seed_arguments(seed), strict=True))
    chunks = m.chunk_tile((512 if m.lanes == 8 else 2048) * m.warps)
    second = {"flat": int(m.flat), "lanes": m.lanes, "run": m.run, "bits": bits, "blocks": m.blocks, "chunks": chunks}
    tensors = {"x": x, "lfc": lfc, "codes": codes}
    if not m.split:
        arguments, constants = tensors | {"scale": scale} | m.arguments | seeds, m.constants | m.tile | second
        return (Launch(encode_kernel, (m.programs,), arguments, constants, m.warps),)
    count = {"count": m.outer * m.inner}
    ranges, first = parts_launch(m, x, lfc)
    affine = x.new_empty((3, m.outer * m.inner), dtype=torch.float32)
    merging = {"planes": 4, "parts": ranges.shape[0], "blocks": m.blocks, "bits": bits}
    share = chunks * max(1, PART // (16 * m.planes * chunks))
    grid = (m.programs * -(-m.chunks // share),)
    between = {"ranges": ranges, "lfc": lfc, "scale": scale, "affine": affine} | count
    return (
        first,
        Launch(merge_kernel, (-(-m.outer * m.inner // 4),), between, merging, 1),
        Launch(
            codes_kernel,
            grid,
            tensors | {"affine": affine} | count | m.arguments | seeds,
            m.constants | second | {"share": share},
            m.warps,
        ),
    )


def decode_launch(m: Map, lfc: Tensor, codes: Tensor, scale: Tensor, out: Tensor, bits: int) -> Launch:
    """The launch that decodes into ``out``."""
    chunks = m.chunk_tile(PART // 2 if m.lanes == 8 else PART)
    constants = {
        "flat": int(m.flat),
        "lanes": m.lanes,
        "run": m.run,
        "bits": bits,
        "blocks": m.blocks,
        "chunks": chunks,
    }
    tensors = {"lfc": lfc, "codes": codes, "scale": scale, "out": out}
    return Launch(
        decode_kernel, (m.programs * -(-m.chunks // chunks),), tensors | m.arguments, m.constants | constants, 4
    )


def dual_encode(x: Tensor, block: int, bits: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """LFC, codes and (offset, step) of every plane; float64 and what :func:`view_map` refuses by the reference body."""
    m = view_map(x.shape, x.stride(), block, x.dtype)
    if m is None:
        return reference("dual_encode")(x, block, bits, seed)  # type: ignore[no-any-return]
    lfc, codes, scale = empty_code(x, block, bits, seed)
    for launch in encode_launches(m, x, lfc, codes, scale, bits, seed):
        launch()
    return lfc, codes, scale


def dual_decode(
    lfc: Tensor, codes: Tensor, scale: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
    block: int, bits: int,
) -> Tensor:  # fmt: skip
    """``(step * code + offset) + LFC`` of each cell, held within the range of the dtype."""
    m = view_map(size, stride, block, dtype)
    if m is None:
        return reference("dual_decode")(lfc, codes, scale, size, stride, dtype, block, bits)  # type: ignore[no-any-return]
    out = empty_map(lfc, codes, scale, size, stride, dtype, block, bits)
    decode_launch(m, lfc.contiguous(), codes.contiguous(), scale.contiguous(), out, bits)()
    return out


def configurations() -> list[Configuration]:
    """Encode and decode as they are launched by default: contiguous and channels_last, and maps that are split."""
    found = []
    for case in CASES:
        x = case.tensor()
        for bits in case.bits:
            lfc, codes, scale = empty_code(x, case.block, bits, 0)
            m = view_map(x.shape, x.stride(), case.block, x.dtype)
            assert m is not None
            launches = (
                *encode_launches(m, x, lfc, codes, scale, bits, 12345),
                decode_launch(m, lfc, codes, scale, x, bits),
            )
            found += [launch.configuration(f"{launch.kernel.__name__} {case} {bits} bits") for launch in launches]
    return found
