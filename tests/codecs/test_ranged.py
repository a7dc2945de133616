"""The codec over ranges that samples share, or that are given."""

from typing import Any

import pytest
import torch
from torch import Tensor

from division.codecs import Group, Packed, Ranged
from tests.codecs.contract import decode, encode, same_code


def test_with_its_own_ranges_it_is_the_group_codec_over_all_samples() -> None:
    x = torch.randn(4, 6, 5, 7)
    assert same_code(encode(Ranged(8, 1), x, 3), encode(Group(8, None, (0, 2, 3)), x, 3))
    sliced = x.unflatten(1, (3, 2))
    assert same_code(encode(Ranged(5, 1, 3), x, 3), encode(Group(5, None, (0, 2, 3, 4)), sliced, 3))
    turns = x.flatten(0, 1)
    assert same_code(
        encode(Ranged(5, 0, 3, interleaved=True), turns, 3),
        encode(Group(5, None, (0, 2, 3)), turns.unflatten(0, (8, 3)), 3),
    )


def test_given_ranges_are_those_of_the_code() -> None:
    x = torch.rand(8, 2, 50)

    def wide(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        assert low.tolist() == x.amin((0, 2)).tolist()
        assert high.tolist() == x.amax((0, 2)).tolist()
        return torch.full_like(low, -1.0), torch.full_like(high, 3.0)

    codec = Ranged(8, 1, widen=wide)
    packed = encode(codec, x)
    assert packed.parts[1][:, 0, 0].tolist() == [-1.0, -1.0]
    error = decode(codec, packed) - x
    assert error.abs().max() <= 4 / 255 * 1.01
    assert abs(error.mean()) < 5 * error.std() / 800**0.5
    # A code stands for itself: what makes the ranges of the next one is of no account.
    assert torch.equal(decode(Ranged(8, 1), packed), decode(codec, packed))
    assert codec == Ranged(8, 1)
    assert str(codec) == "ranged"


def test_what_lies_outside_a_given_range_takes_its_ends() -> None:
    x = torch.linspace(-3, 3, 601).repeat(2, 1)
    codec = Ranged(8, 0, widen=lambda low, high: (low / 3, high / 3))
    out = decode(codec, encode(codec, x))
    torch.testing.assert_close(out, x.clamp(-1, 1), atol=2 / 255 * 1.02, rtol=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_slice_that_holds_what_is_not_finite_is_nan(value: float) -> None:
    x = torch.randn(3, 4, 9)
    x[1, 2, 3] = value
    out = decode(Ranged(8, 1, 2), encode(Ranged(8, 1, 2), x))
    assert out[:, 2:].isnan().all()
    assert not out[:, :2].isnan().any()


def test_the_bytes_are_the_elements_and_four_a_slice_whatever_the_batch() -> None:
    for samples in (1, 64):
        x = torch.zeros(samples, 12, 5, 5)
        packed: Packed = encode(Ranged(8, 1, 4), x)
        assert packed.nbytes == x.numel() + 4 * 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bits": 0}, "got bits=0"), ({"bits": 17}, "got bits=17"), ({"bits": 2.5}, "got bits=2.5"),
        ({"axis": (0, 1)}, "got axis="), ({"axis": "plane"}, "got axis="), ({"groups": 0}, "got groups=0"),
        ({"bits": True}, "got bits=True"), ({"axis": True}, "got axis=True"), ({"groups": True}, "got groups=True"),
        ({"interleaved": 1}, "got interleaved=1"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Ranged(**settings)


def test_what_it_takes() -> None:
    x = torch.zeros(3, 5)
    assert Ranged(axis=2).why_not(x) == "2 dims, too few for axis 2"
    assert Ranged(axis=-3).why_not(x) == "2 dims, too few for axis -3"
    assert Ranged(axis=1, groups=2).why_not(x) == "5 indices in dim 1, no multiple of 2 groups"
    assert Ranged().why_not(x.long()) == "dtype torch.int64"
