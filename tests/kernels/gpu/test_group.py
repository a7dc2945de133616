"""The Triton bodies of the group codec, in the interpreter: the bits of the reference."""

import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division.kernels.reference import group as reference
from tests.codecs import naive
from tests.kernels.gpu.same import same
from tests.kernels.gpu.views import FLOATS, far, layouts, shapes, view

triton = pytest.importorskip("triton", reason="triton is not installed")
tl = importlib.import_module("triton.language")
group = importlib.import_module("division.kernels.gpu.group")
rows = importlib.import_module("division.kernels.gpu.rows")

GROUPS = (1, 2, 5, 7, 8, 16, 24, 32, 48, 100, 256, 10**6)


def values(size: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Ordinary numbers with stretches that are not: equal, huge, tiny, not finite, or minus zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(math.prod(size), generator=generator, dtype=torch.float64)
    limit = torch.finfo(dtype).max
    for _ in range(6 if len(x) > 8 else 0):
        kind, start, length = (int(n) for n in torch.randint(0, 1 << 20, (3,), generator=generator))
        part = x[start % len(x) :][: length % 60]
        if kind % 8 == 0:
            part[:] = (math.nan, math.inf, -math.inf)[length % 3]
        elif kind % 8 == 1:
            part[:1] = (math.nan, math.inf, -math.inf)[length % 3]
        elif kind % 8 == 2:
            part[:] = 1.2345
        elif kind % 8 == 3:
            part[:] = -0.0
        elif kind % 8 == 4:
            part.clamp_(-1, 1).mul_(limit)
        elif kind % 8 == 5:
            part.mul_(2.0**-130)
        elif kind % 8 == 6:
            part[:] = limit if length % 2 else -limit
    return x.clamp_(-math.inf, math.inf).to(dtype).view(tuple(size))


def launches(x: Tensor, lead: int, size: int, bits: int) -> list[Any]:
    """Those that encode ``x``; none if it takes the reference body."""
    codes, scale = reference.empty_code(x, lead, size, (bits,), 0)
    size = min(size, math.prod(x.shape[lead:]))
    return group.encoding(x, codes, scale.view(torch.int32), lead, size, bits, 0) or []


def check(x: Tensor, lead: int, size: int, bits: Sequence[int], seed: int) -> None:
    """Both ways, against the reference."""
    expected = reference.group_encode(x, lead, size, bits, seed)
    codes, scale = group.group_encode(x, lead, size, bits, seed)
    assert same(scale, expected[1])
    assert same(codes, expected[0])
    target = (list(x.shape), list(x.stride()), x.dtype, lead, size, bits)
    assert same(group.group_decode(*expected, *target), reference.group_decode(*expected, *target))


@settings(max_examples=40)
@given(
    data=st.data(),
    size=shapes(most=400, dims=4),
    dtype=st.sampled_from(FLOATS),
    many=st.sampled_from(GROUPS),
    width=st.integers(1, 16),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_codes_are_those_of_the_reference(
    data: st.DataObject, size: list[int], dtype: torch.dtype, many: int, width: int, seed: int
) -> None:
    lead = data.draw(st.integers(0, len(size)))
    check(view(values(size, dtype, seed % 1000), *data.draw(layouts(len(size)))), lead, many, [width], seed)


ENCODE, TWICE = ["encode_kernel"], ["ranges_kernel", "encode_kernel", "clear_kernel"]
PARTS = ["ranges_kernel", "merge_kernel", "encode_kernel", "clear_kernel"]


@pytest.mark.parametrize(
    ("size", "order", "lead", "many", "mode", "way"),
    [
        ((6, 300), (0, 1), 1, 300, "rows", ENCODE),
        ((3, 600), (0, 1), 1, 64, "both", ENCODE),
        ((1, 1000), (0, 1), 0, 256, "both", ENCODE),
        ((32, 9), (1, 0), 1, 9, "rows", ENCODE),
        ((2, 16, 8, 4), (0, 2, 3, 1), 1, 32, "runs", ENCODE),
        ((2, 16, 8, 4), (0, 2, 3, 1), 1, 64, "runs", ENCODE),
        ((2, 16, 8, 6), (0, 2, 3, 1), 1, 32, "runs", ENCODE),
        ((2, 3, 8, 6), (0, 2, 3, 1), 1, 48, "any", ENCODE),
        ((2, 5, 8, 6), (1, 3, 0, 2), 1, 16, "any", ENCODE),
        ((2, 32, 12, 16), (0, 2, 1, 3), 1, 16, "any", ENCODE),
        ((2, 32, 16, 20), (0, 2, 1, 3), 1, 160, "runs", ENCODE),
        ((3, 210), (0, 1), 1, 7, "both", TWICE),
        ((2, 16, 5, 5), (0, 2, 3, 1), 1, 50, "runs", TWICE),
        ((40000,), (0,), 0, 40000, "rows", PARTS),
        ((16, 3000), (1, 0), 1, 3000, "rows", PARTS),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_way_over_rows(
    size: tuple[int, ...], order: Sequence[int], lead: int, many: int, mode: str, way: list[str], dtype: torch.dtype
) -> None:
    x = view(values(size, dtype, 5), order, 1, 0)
    made = launches(x, lead, many, 2)
    assert [launch.kernel.__name__ for launch in made] == way
    assert made[0].constants["mode"] == mode
    check(x, lead, many, [2], 11)


@pytest.mark.parametrize("width", range(1, 17))
def test_every_width(width: int) -> None:
    for size, many in (((3, 37), 1000), ((2, 100), 16), ((2, 75), 10), ((1, 64), 64)):
        check(values(size, torch.float32, width), 1, many, [width], width)


def test_a_width_for_each_sample() -> None:
    x = values((5, 3, 21), torch.float16, 9)
    for lead in (1, 2):
        check(x, lead, 8, [2, 2, 7, 16, 3], 5)
        check(x.transpose(0, 2).contiguous().transpose(0, 2), lead, 16, [1, 2, 2, 8, 8], 5)


@pytest.mark.parametrize("many", [16, 7, 40])
def test_known_answers(many: int) -> None:
    """Against the definition, one scalar at a time."""
    x, seed, width = torch.randn(2, 40, generator=torch.Generator().manual_seed(3)), 2**40 + 1, 3
    codes, scale = group.group_encode(x, 1, many, [width], seed)
    stream = b""
    for r, row in enumerate(x.numpy()):
        found: list[int] = []
        for g, start in enumerate(range(0, 40, many)):
            part = row[start : start + many]
            slow = naive.quantize(part, width, [naive.noise(seed, r, start + e) for e in range(len(part))])
            np.testing.assert_array_equal(scale[r, g].float().numpy(), [slow.offset, slow.step])
            found += slow.codes
        stream += naive.packed(found, width)
    assert bytes(codes.tolist()) == stream


@pytest.mark.parametrize("many", [32, 7], ids=["one read", "two reads"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_groups_at_the_ends_of_floats(many: int, dtype: torch.dtype) -> None:
    """One value, not finite, beyond bfloat16's range, too narrow for a step; and minus zero."""
    limit = torch.finfo(dtype).max
    kinds = [1.0, -0.0, math.nan, math.inf, -math.inf, limit, -limit, 1.2345, 2.0**-24]
    x = torch.tensor(kinds, dtype=torch.float64).to(dtype)[:, None].repeat(1, many)
    mixed = torch.cat((x, x), 1)
    mixed[:, 3] = 0.5
    check(x, 1, many, [2], 1)
    check(mixed, 1, many, [5], 2)
    check(torch.cat((x, mixed), 1), 0, many, [8], 3)


@pytest.mark.parametrize(
    ("x", "lead"),
    [
        (torch.randn(3, 40, dtype=torch.float64), 1),
        (torch.randn([2] * 7).permute(0, 6, 2, 4, 1, 3, 5), 1),
        (torch.zeros(3, 0), 1),
    ],
    ids=["float64", "many dims", "empty"],
)
def test_what_takes_the_reference_is_right_too(x: Tensor, lead: int) -> None:
    check(x, lead, 16, [3], 4)


def test_elements_more_than_two_to_the_31_apart() -> None:
    x = far(values((2, 48), torch.bfloat16, 3))
    assert x.stride(0) > 2**31
    for lead, many in ((1, 16), (1, 48), (1, 5), (0, 32)):
        check(x, lead, many, [2], 7)
    check(far(view(values((2, 16, 4, 4), torch.float16, 4), (0, 2, 3, 1), 1, 0)), 1, 16, [2], 7)


@triton.jit
def lanes_kernel(
    out: Any, program: Any,
    elements: Any, block: Any, run: Any, runs: Any, rows: Any, lane_count: Any, steps: Any, lane_steps: Any,
    s_row: Any, s_run: Any, m0: Any, m1: Any, t0: Any, t1: Any, t2: Any,
    n0: Any, n1: Any, n2: Any, s0: Any, s1: Any, s2: Any, s3: Any,
    mode: tl.constexpr, lead: tl.constexpr, dims: tl.constexpr,  # type: ignore[name-defined]
    wide: tl.constexpr, grain: tl.constexpr, lanes: tl.constexpr, width: tl.constexpr,  # type: ignore[name-defined]
) -> None:  # fmt: skip
    """Where the lanes of a program lie: row, first element, how many elements, and the places of two of them."""
    at, row, start, count, _, first = group.lanes_of(
        program, elements, block, run, runs, rows, lane_count, steps, lane_steps, s_row, s_run,
        (m0, m1), (t0, t1, t2), mode, lead, grain, lanes,
    )  # fmt: skip
    lane = out + tl.arange(0, lanes) * 5
    tl.store(lane, row)
    tl.store(lane + 1, start)
    tl.store(lane + 2, count.to(tl.int64))
    spot = group.spots(at, first, tl.arange(0, 2), (n0, n1, n2), (s0, s1, s2, s3), mode, dims, wide)
    tl.store((lane + 3)[:, None] + tl.arange(0, 2)[None, :], spot)


@pytest.mark.parametrize(
    ("size", "stride", "lead", "mode"),
    [
        ((3, 2**33 + 48), (2**33 + 48, 1), 1, "both"),
        ((2**32, 64), (64, 1), 1, "both"),
        ((2**31 + 5, 16), (1, 2**32), 1, "rows"),
        ((2, 2**20, 2**13), (2**34, 1, 2**21), 1, "runs"),
        ((2, 3, 2**30 + 16), (2**31, 2**33, 2), 1, "any"),
    ],
)
def test_more_than_two_to_the_31_elements(size: tuple[int, ...], stride: tuple[int, ...], lead: int, mode: str) -> None:
    way = rows.rows_of(size, stride, lead, 16, 16, 4)
    assert way.constants["mode"] == mode
    elements = math.prod(size[lead:])
    for program in (0, way.programs // 2, way.programs - 1):
        out = torch.full((way.lanes, 5), -1, dtype=torch.int64)
        lanes_kernel[1,](out, program, **way.arguments, **way.constants)
        row, start = out[:, 0], out[:, 1]
        there = (row < math.prod(size[:lead])) & (start < elements) & (row >= 0)
        assert int(there.sum()) > 0
        for r, first, many, *spot in out[there].tolist():
            assert first % 16 == 0
            if way.constants["grain"]:
                assert many == min(16, elements - first)
            for e in range(2):
                at, rest = 0, r * elements + first + e
                for n, s in zip(reversed(size), reversed(stride), strict=True):
                    at, rest = at + rest % n * s, rest // n
                assert spot[e] == at


def test_ranges_of_large_groups_take_little_memory() -> None:
    for order in ((0, 1), (1, 0)):
        x = view(torch.zeros(16, 20000), order, 1, 0)
        held = [launch.arguments["ranges"] for launch in launches(x, 1, 20000, 2) if "ranges" in launch.arguments]
        assert 0 < held[0].nbytes <= x.nbytes / 100
