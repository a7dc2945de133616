"""Tests of the rounding: mean over seeds against its standard error, error against the step."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from division.codecs import Codec, Dual, Elsewhere, Group, Mixed, Packed, Ranged
from tests.codecs.contract import decode, encode

SEEDS = 4
COPIES = 24
SIGMAS = 5.0  # of a few thousand comparisons, none by chance
SHAPE = (2, 2, 9, 10)


def _bimodal(n: int) -> Tensor:
    x = torch.randn(n, dtype=torch.float64)
    return x * 0.05 + torch.where(torch.arange(n) % 3 == 0, 4.0, -1.0)


#: Shapes of the values: n float64 each.
VALUES: dict[str, Callable[[int], Tensor]] = {
    "normal": lambda n: torch.randn(n, dtype=torch.float64),
    "ramp": lambda n: torch.linspace(-1, 3, n, dtype=torch.float64),
    "relu": lambda n: torch.randn(n, dtype=torch.float64).relu(),
    "bimodal": _bimodal,
    "outlier": lambda n: torch.randn(n, dtype=torch.float64).index_fill_(0, torch.tensor([n // 2]), 100.0),
    "shifted": lambda n: torch.randn(n, dtype=torch.float64) + 1000.0,
    "tiny": lambda n: torch.randn(n, dtype=torch.float64) * 2.0**-90,
    "huge": lambda n: torch.randn(n, dtype=torch.float64) * 2.0**100,
}


def values(name: str, dtype: torch.dtype) -> Tensor:
    """A map of such values; in float16 the extreme scales are the extreme ones of float16."""
    torch.manual_seed(1)
    x = VALUES[name](math.prod(SHAPE))
    if dtype == torch.float16 and name in ("tiny", "huge"):
        x = x / x.abs().max() * (60000.0 if name == "huge" else 2.0**-10)
    return x.view(SHAPE).to(dtype)


def _dual_step(codec: Codec, packed: Packed) -> Tensor:
    return packed.parts[2][:, 1].view(*packed.size[:2], *[1] * (len(packed.size) - 2))


def _group_step(codec: Codec, packed: Packed) -> Tensor:
    assert isinstance(codec, Group)
    # decoded with offset 0 and all codes 1
    out = torch.empty(packed.size, dtype=packed.parts[1].dtype)
    size, stride, lead = codec._as_rows(out.shape, out.stride())
    step = packed.parts[1][..., 1]  # [rows, groups]
    elements = torch.Size(size[lead:]).numel()
    wide = step.repeat_interleave(min(codec.size or elements, elements), 1)[:, :elements]
    out.as_strided(size, stride).copy_(wide.reshape(size))
    return out


def _mixed_step(codec: Codec, packed: Packed) -> Tensor:
    assert isinstance(codec, Mixed)
    elements = math.prod(packed.size[1:])
    step = packed.parts[1][..., 1].repeat_interleave(codec.size, 1)[:, :elements]
    return step.reshape(packed.size)


def _ranged_step(codec: Codec, packed: Packed) -> Tensor:
    assert isinstance(codec, Ranged)
    out = torch.empty(packed.size, dtype=packed.parts[1].dtype)
    size, stride = codec._as_rows(out.shape, out.stride())
    step = packed.parts[1][:, 0, 1].view(-1, *[1] * (len(size) - 1))
    out.as_strided(size, stride).copy_(step.expand(size))
    return out


def _inner_step(codec: Codec, packed: Packed) -> Tensor:
    assert isinstance(codec, Elsewhere)
    return STEP[codec.inner.name](codec.inner, packed)


#: How large one step of each element is, for a codec that promises a bound.
STEP: dict[str, Callable[[Codec, Packed], Tensor]] = {
    Dual.name: _dual_step,
    Group.name: _group_step,
    Mixed.name: _mixed_step,
    Ranged.name: _ranged_step,
    Elsewhere.name: _inner_step,
}


def step_of(codec: Codec, packed: Packed) -> Tensor:
    """The quantisation step of every element, float64, of a shape that broadcasts to the tensor's."""
    assert codec.name in STEP, f"{codec} promises a bound: add its step to tests/codecs/statistics.py"
    return STEP[codec.name](codec, packed).to(torch.float64)


def _rounding(x: Tensor, out: Tensor, step: Tensor) -> Tensor:
    """What float32 arithmetic and the rounding to the dtype of ``out`` may add to the error of an element."""
    scale = torch.maximum(x.abs(), out.to(torch.float64).abs()).amax()
    info = torch.finfo(out.dtype)
    half_ulp = torch.maximum(out.to(torch.float64).abs(), x.abs()) * info.eps / 2 + info.smallest_normal * info.eps / 2
    return half_ulp + (scale + step * 16) * 2.0**-22


def check_bounded(codec: Codec, x: Tensor, seed: int) -> None:
    """No element is off by more than the step of its plane or group, as it is stored."""
    packed = encode(codec, x, seed)
    out, step = decode(codec, packed), step_of(codec, packed)
    exact = x.to(torch.float64)
    error = (out.to(torch.float64) - exact).abs()
    assert bool((error <= step + _rounding(exact, out, step)).all())


def check_unbiased(codec: Codec, x: Tensor) -> None:
    """Mean over seeds against standard error: element by element, and for sums that a gradient is like.

    Samples are copies of ``x`` side by side and seeds. They are judged in float32, as codes stand before they are
    rounded to a 16-bit dtype; that rounding is the nearest.
    """
    stacked = x.repeat(COPIES, *[1] * (x.dim() - 1))
    codes = [encode(codec, stacked, seed) for seed in range(SEEDS)]
    exact, n = x.to(torch.float64), SEEDS * COPIES
    step = step_of(codec, codes[0]).expand(stacked.shape)
    out = torch.stack([decode(codec, packed, torch.float32) for packed in codes])
    error = out.to(torch.float64) - stacked.to(torch.float64)
    assert bool((error == 0).all()) or float((error / step).abs().nan_to_num().max()) > 0.05, "a test of nothing"
    error, step = error.view(n, *x.shape), step.view(COPIES, *x.shape).square().mean(0).sqrt()
    slack = _rounding(exact, out[0, : len(x)], step) + step * 2.0**-17
    assert bool((error.mean(0).abs() <= SIGMAS * step / (2 * n**0.5) + slack).all()), "an element is biased"
    unit = torch.where(step > 0, error / step, 0.0)  # [n, *size]
    slack = torch.where(step > 0, slack / step, 0.0)
    for name, weight in _weights(exact).items():
        totals = (unit * weight).flatten(1).sum(1)
        rare = SIGMAS**2 / n * float(weight.abs().max())  # what so rare a rounding adds may not show in n samples
        allowed = SIGMAS * float(totals.std()) / n**0.5 + rare + float((slack * weight.abs()).sum())
        assert abs(float(totals.mean())) <= allowed, f"the sum weighted by {name} is biased"


def _weights(x: Tensor) -> dict[str, Tensor]:
    """What a gradient may weigh the elements by: everything alike, by value, the top and the bottom, at random."""
    low, high = x.amin(), x.amax()
    relative = (x - low) / (high - low)
    return {
        "one": torch.ones_like(x),
        "value": relative - 0.5,
        "the top": (relative > 0.9).to(x.dtype),
        "the bottom": (relative < 0.1).to(x.dtype),
        "chance": torch.randn(x.shape, dtype=x.dtype),
    }
