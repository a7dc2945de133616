"""How maps are seen and cut into tiles; needs no Triton."""

import pytest
import torch

from division.kernels.gpu import maps
from tests.kernels.gpu.maps import laid_out


def seen(
    size: tuple[int, ...], layout: str = "contiguous", block: int = 8, dtype: torch.dtype = torch.float32
) -> maps.Map:
    x = laid_out(torch.empty(size, dtype=dtype, device="meta"), layout)
    m = maps.view_map(x.shape, x.stride(), block, dtype)
    assert m is not None
    return m


def test_contiguous_planes_follow_each_other() -> None:
    m = seen((4, 3, 6, 10))
    assert (m.outer, m.inner, m.s_inner) == (1, 12, 60)
    assert (m.spatial, m.strides, m.sides) == ((1, 6, 10), (60, 10, 1), (1, 6, 8))
    assert (m.unit, m.flat, m.lanes) == (True, True, 8)


def test_channels_last_planes_lie_side_by_side() -> None:
    m = seen((4, 3, 6, 10), "channels_last")
    assert (m.outer, m.inner, m.s_outer, m.s_inner) == (4, 3, 180, 1)
    assert (m.strides, m.unit, m.flat, m.lanes) == ((180, 30, 3), False, True, 1)


def test_a_dim_of_one_element_has_no_stride_of_its_own() -> None:
    m = maps.view_map((1, 1, 7, 1), (999, 5, 1, 77), 4, torch.float32)
    assert m is not None
    assert m.unit
    assert m.strides == (7, 1, 1)


@pytest.mark.parametrize(
    ("size", "layout", "dtype", "planes", "split"),
    [
        ((256, 256, 56, 56), "contiguous", torch.float32, 1, False),
        ((256, 256, 56, 56), "channels_last", torch.float32, 16, False),
        ((256, 256, 56, 56), "channels_last", torch.bfloat16, 32, False),
        ((64, 512, 7, 7), "contiguous", torch.float32, 32, False),
        ((64, 512, 7, 7), "channels_last", torch.float16, 64, False),
        ((8, 64, 112, 112), "contiguous", torch.float32, 1, False),
        ((1, 3, 512, 512), "contiguous", torch.float32, 1, True),
        ((1, 8, 40, 112, 112), "contiguous", torch.bfloat16, 1, True),
        ((2, 64, 112, 112), "channels_last", torch.float32, 16, True),
    ],
    ids=str,
)
def test_programs_take_planes_enough_and_large_maps_are_split(
    size: tuple[int, ...], layout: str, dtype: torch.dtype, planes: int, split: bool
) -> None:
    m = seen(size, layout, dtype=dtype)
    assert (m.planes, m.split) == (planes, split)


@pytest.mark.parametrize(
    ("size", "block", "run"),
    [
        ((1, 1, 56, 56), 8, 8),
        ((1, 1, 28, 28), 8, 4),
        ((1, 1, 14, 14), 8, 2),
        ((1, 1, 7, 7), 8, 8),
        ((1, 1, 18, 12), 12, 4),
    ],
)
def test_elements_of_a_run_lie_in_one_block(size: tuple[int, ...], block: int, run: int) -> None:
    m = seen(size, block=block)
    assert m.run == run
    width, grid = m.spatial[2], m.grid[2]
    for e in range(0, m.elements - run + 1, run):
        blocks = {(i // width // m.sides[1]) * grid + i % width // m.sides[2] for i in range(e, e + run)}
        assert len(blocks) == 1


def test_what_is_left_to_the_reference() -> None:
    for size, block, dtype in (
        ((2, 3, 9), 4, torch.float64),
        ((0, 3, 9), 4, torch.float32),
        ((1, 1, 9000), 5000, torch.float32),
    ):
        assert maps.view_map(size, (1,) * len(size), block, dtype) is None
    assert maps.view_map((1, 1, 2**15, 2**15 + 1), (1, 1, 1, 1), 8, torch.float32) is None
