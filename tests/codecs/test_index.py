"""Pooling indices as offsets inside their window, and narrowed integers: exact, in few bits."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from division.codecs.codec import Codec, from_config
from division.codecs.index import AdaptiveWindow, Narrow, Window
from division.codecs.layout import dense_stride

POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
ADAPTIVE = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}


def check(codec: Codec, index: Tensor) -> int:
    """Comes back exactly, in the bytes promised; returns them."""
    assert codec.why_not(index) is None
    packed = codec.encode(index, seed=0)
    decoded = codec.decode(packed)
    assert torch.equal(decoded, index)
    assert decoded.dtype == index.dtype
    assert decoded.stride() == dense_stride(index.shape, index.stride())
    assert packed.nbytes == codec.packed_bytes(index.shape, index.dtype)
    return packed.nbytes


dims = st.integers(1, 3)


@st.composite
def pools(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    count = draw(dims)

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    kernel = each(1, 5)
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    return each(1, 12), kernel, each(1, 4), padding, each(1, 3)


@given(pools(), st.booleans(), st.integers(0, 3))
def test_any_pooling(settings: tuple[tuple[int, ...], ...], ceil: bool, seed: int) -> None:
    plane, kernel, stride, padding, dilation = settings
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    assume(all(n + 2 * p >= r for n, p, r in zip(plane, padding, reach, strict=True)))
    x = torch.randn(2, 3, *plane, generator=torch.Generator().manual_seed(seed))
    _, index = POOLS[len(plane)](x, kernel, stride, padding, dilation, ceil, return_indices=True)
    codec = Window(plane, kernel, stride, padding, dilation)
    assume(codec.why_not(index) is None)
    check(codec, index)


def test_windows_beside_the_plane_are_refused() -> None:
    """Both cells of this window lie outside its plane of one element; pooling gives index 1."""
    _, index = F.max_pool2d(torch.zeros(1, 1, 1, 1), (1, 2), 1, (0, 1), (1, 2), return_indices=True)
    assert Window((1, 1), (1, 2), (1, 1), (0, 1), (1, 2)).why_not(index) == "windows beside the plane"


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 14)), min_size=1, max_size=3))
def test_any_adaptive_pooling(sizes: list[tuple[int, int]]) -> None:
    plane, outputs = zip(*sizes, strict=True)
    x = torch.randn(2, 3, *plane)
    _, index = ADAPTIVE[len(plane)](x, outputs, return_indices=True)
    check(AdaptiveWindow(plane), index)


@pytest.mark.parametrize(
    ("kernel", "bits"), [((1, 1), 1), ((1, 2), 1), ((2, 2), 2), ((3, 3), 4), ((4, 4), 4), ((5, 5), 8), ((17, 16), 16)]
)
def test_the_fewest_bits(kernel: tuple[int, int], bits: int) -> None:
    _, index = F.max_pool2d(torch.randn(2, 3, 40, 40), kernel, 1, return_indices=True)
    assert check(Window((40, 40), kernel, (1, 1)), index) == -(-index.numel() * bits // 8)


def test_known_code() -> None:
    index = torch.tensor([[[0, 3], [9, 14]]])  # 2x2 windows of a 4x4 plane: offsets 0, 1, 1, 2
    packed = Window((4, 4), (2, 2), (2, 2)).encode(index, seed=0)
    assert packed.parts[0].tolist() == [0b10010100]


@pytest.mark.parametrize("fill", [-torch.inf, torch.nan, 0.0])
def test_ties_nan_and_infinity(fill: float) -> None:
    x = torch.full((1, 2, 9, 9), fill)
    x[0, 1, 4, 4] = torch.nan
    _, index = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    check(Window((9, 9), (3, 3), (2, 2), (1, 1)), index)


def layouts(index: Tensor) -> list[Tensor]:
    wide = torch.zeros(*index.shape[:-1], 2 * index.shape[-1], dtype=index.dtype)
    wide[..., ::2] = index
    return [
        index,
        index.to(memory_format=torch.channels_last),
        index.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
        wide[..., ::2],
        index[0],
        index[0, 0],
        index[:0],
    ]


@pytest.mark.parametrize("layout", range(7))
def test_every_layout(layout: int) -> None:
    _, index = F.max_pool2d(torch.randn(3, 4, 9, 8), 3, 2, 1, return_indices=True)
    check(Window((9, 8), (3, 3), (2, 2), (1, 1)), layouts(index)[layout])
    _, index = F.adaptive_max_pool2d(torch.randn(3, 4, 9, 8), 5, return_indices=True)
    check(AdaptiveWindow((9, 8)), layouts(index)[layout])
    check(Narrow(72), layouts(index)[layout])


def test_large_windows_and_planes() -> None:
    """16 bits hold offsets up to 65,535, also those that a signed 16-bit number can't; above, 32 bits do."""
    x = torch.zeros(1, 2, 300, 300)
    x[0, 0, 250, 251] = x[0, 1, 299, 299] = 1.0
    _, index = F.adaptive_max_pool2d(x, 1, return_indices=True)
    assert check(AdaptiveWindow((300, 300)), index) == 8
    _, index = F.adaptive_max_pool2d(x[..., :250, :250], 1, return_indices=True)
    check(AdaptiveWindow((250, 250)), index)
    _, index = F.max_pool2d(x[..., 50:, 50:], 250, return_indices=True)
    assert index.max() > 1 << 15
    assert check(Window((250, 250), (250, 250), (250, 250)), index) == 4


def test_planes_beyond_32_bits() -> None:
    plane = (1 << 20, 1 << 14)
    codec = Window(plane, (2, 2), (1 << 19, 1 << 13))
    rows, columns = torch.tensor([[0], [(1 << 19) + 1]]), torch.tensor([[1, 1 << 13]])
    check(codec, (rows * plane[1] + columns).view(1, 1, 2, 2))


def test_more_elements_than_are_worked_on_at_a_time() -> None:
    _, index = F.max_pool2d(torch.randn(3, 7, 252, 252), 2, return_indices=True)
    assert check(Window((252, 252), (2, 2), (2, 2)), index) == -(-index.numel() // 4)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16], ids=str)
@pytest.mark.parametrize(("limit", "width"), [(1, 1), (256, 1), (257, 2), (1 << 15, 2), ((1 << 15) + 1, 4)])
def test_narrow(dtype: torch.dtype, limit: int, width: int) -> None:
    top = min(limit, 1 << 15) - 1
    x = torch.tensor([0, top // 2, top], dtype=dtype)
    assert check(Narrow(limit), x) == 3 * width


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16], ids=str)
@pytest.mark.parametrize(("limit", "width"), [(1, 1), (128, 1), (129, 2), (1 << 15, 2), ((1 << 15) + 1, 4)])
def test_narrow_with_a_sign(dtype: torch.dtype, limit: int, width: int) -> None:
    top = min(limit, 1 << 15) - 1
    x = torch.tensor([-top - 1, -1, 0, top], dtype=dtype)
    assert check(Narrow(limit, signed=True), x) == 4 * width


def test_narrow_up_to_31_bits() -> None:
    assert check(Narrow(1 << 31), torch.tensor([0, (1 << 31) - 1])) == 8
    assert check(Narrow(1 << 31, signed=True), torch.tensor([-(1 << 31), (1 << 31) - 1])) == 8


@pytest.mark.parametrize("codec", [*Window.examples(), *AdaptiveWindow.examples(), *Narrow.examples()], ids=str)
def test_config_reads_back_and_fakes_agree(codec: Codec) -> None:
    assert from_config(codec.config()) == codec
    with FakeTensorMode():
        index = torch.zeros(2, 3, 4, 4, 3, dtype=torch.int64)
        packed = codec.encode(index, seed=0)
        decoded = codec.decode(packed)
        assert packed.nbytes == codec.packed_bytes(index.shape, index.dtype)
        assert (decoded.shape, decoded.stride(), decoded.dtype) == (index.shape, index.stride(), index.dtype)
        assert decoded.device == index.device


@pytest.mark.parametrize(
    "make",
    [
        lambda: Window((), (), ()),
        lambda: Window((4, 4), (2,), (2, 2)),
        lambda: Window((4,), (0,), (1,)),
        lambda: Window((4,), (2,), (0,)),
        lambda: Window((4,), (2,), (1,), (1, 1)),
        lambda: Window((1, 2, 3, 4), (1,) * 4, (1,) * 4),
        lambda: AdaptiveWindow(()),
        lambda: Narrow(0),
        lambda: Narrow((1 << 31) + 1),
    ],
)
def test_bad_settings(make: Callable[[], Codec]) -> None:
    with pytest.raises(ValueError, match="expected"):
        make()


def test_what_is_refused() -> None:
    window = Window((4, 4), (2, 2), (2, 2))
    assert window.why_not(torch.zeros(2, 2, dtype=torch.int32)) == "dtype torch.int32"
    assert window.why_not(torch.zeros(2, dtype=torch.int64)) is not None
    assert AdaptiveWindow((4, 4)).why_not(torch.zeros(2, 2)) is not None
    assert Narrow(5).why_not(torch.zeros(2)) is not None
    assert Narrow(5).why_not(torch.zeros(1, dtype=torch.int64).expand(3)) is not None
