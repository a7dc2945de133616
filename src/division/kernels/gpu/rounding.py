"""Numbers inside a Triton kernel: loads as float32, bfloat16 by integer operations, and the quantisation of a row.

Every function here does what ``kernels/reference/quantize.py`` says, bit for bit, on a GPU and in the interpreter.
bfloat16 travels as int16: Triton's own casts of it are not the same in both. A kernel therefore takes the tensors
of :func:`division.kernels.gpu.launch.raw`, in which int16 stands for bfloat16.
"""

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))
TINY = tl.constexpr(2.0**-126)  # the least step
BF16_MAX = tl.constexpr(3.3895313892515355e38)
BF16_NAN = tl.constexpr(0x7FC0)
FP16_MAX = tl.constexpr(65504.0)
FP32_MAX = tl.constexpr(3.4028234663852886e38)


@triton.jit
def bits_of(x: tl.tensor) -> tl.tensor:
    """The int32 pattern of a float32."""
    return x.to(tl.int32, bitcast=True)


@triton.jit
def of_bits(bits: tl.tensor) -> tl.tensor:
    """The float32 of an int32 pattern."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def to_float32(raw: tl.tensor) -> tl.tensor:
    """What a load gave as float32, exactly: float32 itself, float16, or int16 that stands for bfloat16."""
    return of_bits(raw.to(tl.int32) << 16) if raw.dtype == tl.int16 else raw.to(tl.float32)


@triton.jit
def least(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The lesser of two, NaN where either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def greatest(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The greater of two, NaN where either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def round_down(x: tl.tensor) -> tl.tensor:
    """float32 to the next bfloat16 value below or equal; still float32."""
    bits = bits_of(x + 0.0)
    cut = bits & -0x10000
    return of_bits(tl.where((bits < 0) & (cut != bits), cut + 0x10000, cut))


@triton.jit
def round_up(x: tl.tensor) -> tl.tensor:
    """Non-negative float32 to the next bfloat16 value above or equal; still float32."""
    return of_bits((bits_of(x) + 0xFFFF) & -0x10000)


@triton.jit
def round_nearest(x: tl.tensor) -> tl.tensor:
    """float32 to the nearest bfloat16 value, ties to even; still float32. NaN stays NaN."""
    bits = bits_of(x)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return of_bits(tl.where(tl.abs(x) <= INFINITY, nearest, BF16_NAN << 16))


@triton.jit
def to_bf16(x: tl.tensor) -> tl.tensor:
    """int16 that stands for the bfloat16 of a float32 that holds a bfloat16 value; one NaN for all."""
    return tl.where(tl.abs(x) <= INFINITY, bits_of(x) >> 16, BF16_NAN).to(tl.int16)


@triton.jit
def to_stored(x: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """float32 held within the range of a stored type (int16 for bfloat16), then rounded to it; NaN stays NaN."""
    if kind == tl.int16:
        stored = (bits_of(round_nearest(least(greatest(x, -BF16_MAX), BF16_MAX))) >> 16).to(tl.int16)
    elif kind == tl.float16:
        stored = least(greatest(x, -FP16_MAX), FP16_MAX).to(tl.float16)
    else:
        stored = least(greatest(x, -FP32_MAX), FP32_MAX)
    return stored


@triton.jit
def parameters(low: tl.tensor, high: tl.tensor, finite: tl.tensor, levels: tl.constexpr) -> tuple[tl.tensor, ...]:
    """The quantisation of rows by their least and greatest element.

    Args:
        low, high: float32; anything but NaN where ``finite`` is False.
        finite: False where the row has an element that is not finite.
        levels: the greatest code, ``2**bits - 1``.

    Returns:
        ``offset`` and ``step``, float32 that hold bfloat16 values, NaN where the row decodes to NaN; ``base`` and
        ``scale``, with which an element's place is ``(r - base) * scale``; ``floor``, the least place that it takes.
        A row of one value and one that decodes to NaN have scale 0, so that all their places are the floor.
    """
    offset = round_down(low)
    spread = high - offset + 0.0
    step = round_up(tl.maximum(tl.math.div_rn(spread, levels * 1.0), TINY))
    whole = round_up(spread)
    constant = finite & (high == low) & (whole == spread)
    step = tl.where(constant, whole, step)
    finite = finite & (tl.abs(step) < INFINITY) & (tl.abs(offset) < INFINITY)
    scale = tl.where(finite & (constant == 0), tl.math.div_rn(1.0, step), 0.0)
    floor = tl.where(constant, 1.0, 0.0)
    return tl.where(finite, offset, float("nan")), tl.where(finite, step, float("nan")), offset, scale, floor


@triton.jit
def place(r: tl.tensor, base: tl.tensor, scale: tl.tensor, floor: tl.tensor, levels: tl.tensor) -> tl.tensor:
    """Where an element lies between the codes: a number from 0 to ``levels``, never NaN."""
    return tl.minimum(tl.maximum((r - base) * scale, floor), levels * 1.0)


@triton.jit
def uniform(half: tl.tensor) -> tl.tensor:
    """``u = (half + 1/2) / 2^16`` of 16 bits of noise, float32: a number from 128 to 129, less its first part."""
    return of_bits((half | 0x43000000).to(tl.int32, bitcast=True)) - 127.99999237060546875


@triton.jit
def code_of(t: tl.tensor, half: tl.tensor, levels: tl.constexpr) -> tl.tensor:
    """The code of place ``t`` by stochastic rounding, int32: ``floor(t) + [u < t - floor(t)]``.

    That is the least whole number not below ``t - u``. Below 2^7 the difference is exact, or negative where ``t`` is
    the smaller by far; above, units of 2^-17 hold ``u`` exactly up to 8 bits: ``u < f`` is ``2 half + 1 < 2^17 f``,
    that is ``2 half + 2 <= ceil(2^17 f)``. That a GPU takes a subnormal for 0 in ``ceil`` and ``floor`` changes no
    code.

    Args:
        t: float32 from 0 to ``levels``.
        half: 16 bits of noise, uint32.
    """
    if levels <= 127:
        code = tl.ceil(t - uniform(half)).to(tl.int32)
    elif levels <= 255:
        fixed = tl.ceil(t * 131072.0).to(tl.int32)
        code = (fixed + ((half ^ 0xFFFF) << 1).to(tl.int32)) >> 17
    else:
        whole = tl.floor(t)
        code = whole.to(tl.int32) + (uniform(half) < t - whole).to(tl.int32)
    return code
