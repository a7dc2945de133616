"""Numbers inside the kernels, in the interpreter: rounding, codes and noise as the definitions have them."""

import importlib

import pytest
import torch
from torch import Tensor

from division.kernels import noise as definition
from division.kernels.reference import quantize
from tests.kernels.gpu.same import same

pytest.importorskip("triton", reason="triton is not installed")
noise = importlib.import_module("division.kernels.gpu.noise")
numbers = importlib.import_module("tests.kernels.gpu.numbers")

SIZE = 1 << 14


def patterns() -> Tensor:
    """float32 of every kind: any bits, and those around the points where roundings turn; no NaN."""
    bits = torch.randint(-(2**31), 2**31, (SIZE,), dtype=torch.int64)
    bits[: SIZE // 2] = (
        bits[: SIZE // 2] & ~0xFFFF
        | torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]).repeat(SIZE // 12 + 1)[: SIZE // 2]
    )
    x = bits.to(torch.int32).view(torch.float32)
    return torch.where(x.isnan(), torch.tensor(0.0), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_roundings_are_those_of_the_reference(dtype: torch.dtype) -> None:
    x = patterns()
    down, up = torch.empty(SIZE), torch.empty(SIZE)
    nearest, stored = torch.empty(SIZE, dtype=torch.bfloat16), torch.empty(SIZE, dtype=dtype)
    raw = [t.view(torch.int16) if t.dtype == torch.bfloat16 else t for t in (nearest, stored)]
    numbers.round_kernel[(1,)](x, down, up, *raw, SIZE)
    limit = torch.finfo(dtype).max
    assert same(down, quantize.round_down(x))
    assert same(up, quantize.round_up(x.abs()))
    assert same(nearest, x.to(torch.bfloat16))
    assert same(stored, x.clamp(-limit, limit).to(dtype))


def test_what_is_not_a_number_stays_so() -> None:
    x = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, -0x7FFFFF], dtype=torch.int32).view(torch.float32)
    outputs = [torch.empty(4, dtype=kind) for kind in (torch.float32, torch.float32, torch.int16, torch.int16)]
    numbers.round_kernel[(1,)](x, *outputs, 4)
    assert outputs[2].tolist() == [0x7FC0] * 4
    assert outputs[3].view(torch.bfloat16).isnan().all()


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 7, 8, 9, 12, 16])
def test_codes_are_those_of_the_definition(bits: int) -> None:
    """Above all where a place lies at its noise, a whole number or nothing, or the nearest float beside it."""
    levels = 2**bits - 1
    half = torch.randint(0, 1 << 16, (SIZE,), dtype=torch.int32)
    u = (half.to(torch.float32) + 0.5) * 2.0**-16
    t = torch.rand(SIZE) * levels
    whole = torch.randint(0, levels, (SIZE,)).to(torch.float32)
    places = [whole + u, whole, torch.zeros(SIZE), torch.rand(SIZE) * 2.0**-20, torch.rand(SIZE) * 2.0**-140]
    for k, place in enumerate(places):
        side = torch.nextafter(place, torch.tensor(float(levels)))
        other = torch.nextafter(place, torch.tensor(0.0))
        for m, near in enumerate((place, side, other)):
            t[3 * k + m :: 20] = near[3 * k + m :: 20]
    t.clamp_(0, levels)
    t[-1] = levels
    codes = torch.empty(SIZE, dtype=torch.int32)
    numbers.code_kernel[(1,)](t, half, codes, levels, SIZE)
    floor = t.floor()
    assert torch.equal(codes, (floor + (u < t - floor)).to(torch.int32))


def test_noise_is_that_of_the_definition() -> None:
    """Of rows beyond 2^32 too."""
    for seed, first in ((0, 0), (-5, 2**31 - 8), (2**62, 2**32 - 8), (7, 2**40)):
        row = torch.arange(first, first + 16)
        keys, words = torch.empty(16, dtype=torch.int32), torch.empty(16, dtype=torch.int32)
        numbers.noise_kernel[(1,)](row, keys, words, *noise.seed_arguments(seed), 16)
        assert torch.equal(keys, definition.row_keys(seed, first, 16))
        u = definition.uniform(seed, first, 16, 32)
        e = torch.arange(16) // 8 * 16 + torch.arange(16) % 8  # whose word is that of its row's number
        rows = torch.arange(16)
        low, high = (words & 0xFFFF).to(torch.float32), (words >> 16 & 0xFFFF).to(torch.float32)
        assert torch.equal((low + 0.5) * 2.0**-16, u[rows, e])
        assert torch.equal((high + 0.5) * 2.0**-16, u[rows, e + 8])
