"""The codec that keeps nothing."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from division.codecs import shape
from division.codecs.codec import from_config
from division.codecs.shape import Shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_strides_dtype_and_size_come_back(dtype: torch.dtype) -> None:
    for x in (
        torch.zeros(2, 3, 4, 5),
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(2, 3).t(),
        torch.zeros(()),
        torch.zeros(0, 3),
        torch.zeros(3, 1).expand(3, 4),
    ):
        y = x.to(dtype)
        assert Shape().why_not(y) is None
        packed = Shape().encode(y, seed=0)
        assert packed.nbytes == Shape().packed_bytes(y.shape, y.dtype) == 0
        decoded = Shape().decode(packed)
        assert (decoded.shape, decoded.stride(), decoded.dtype) == (y.shape, y.stride(), dtype)


def test_gaps_are_closed() -> None:
    decoded = Shape().decode(Shape().encode(torch.zeros(4, 6)[:, ::2], seed=0))
    assert decoded.stride() == (3, 1)


def test_each_decode_is_fresh() -> None:
    packed = Shape().encode(torch.zeros(4), seed=0)
    first, second = Shape().decode(packed), Shape().decode(packed)
    first.fill_(1.0)
    second.fill_(2.0)
    assert first.tolist() == [1.0] * 4


def test_the_elements_are_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory comes from one function, so that a test can put NaN there and see who reads it."""

    def poison(
        size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=device).fill_(torch.nan)

    monkeypatch.setattr(shape, "_placeholder", poison)
    assert bool(Shape().decode(Shape().encode(torch.zeros(4), seed=0)).isnan().all())


def test_fakes() -> None:
    with FakeTensorMode():
        x = torch.empty(2, 3, device="cuda")
        decoded = Shape().decode(Shape().encode(x, seed=0))
        assert decoded.device == x.device


def test_config_reads_back() -> None:
    assert from_config(Shape().config()) == Shape()
