"""Every use is right: what a rule says backward doesn't read may be anything, and gradients don't move."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from division.codecs.bits import Bits
from division.codecs.interval import Interval
from division.rules import Reading, Use
from tests.rules.cases import CASES
from tests.rules.harness import LAYOUTS, Case, Key, codec_of, differ, fresh, gradients, inputs_of, specials


def filled_with_nan(key: Key, reading: Reading, saved: Tensor) -> Tensor | None:
    """For SHAPE: memory of NaN, where the codec leaves it unwritten."""
    return fresh(saved).fill_(torch.nan) if reading.use is Use.SHAPE else None


def moved_on_its_side(key: Key, reading: Reading, saved: Tensor) -> Tensor | None:
    """For SIGN: other values on the same side of the thresholds, extreme ones and close ones."""
    codec = codec_of(reading, saved)
    if not isinstance(codec, Bits | Interval):
        return None
    points = specials([v for v in (codec.lo, codec.hi) if abs(v) != torch.inf], saved.dtype)
    points = torch.cat([points, torch.tensor([codec.inside, codec.outside], dtype=saved.dtype)])
    sides = codec.decode(codec.encode(points, seed=0))
    moved = codec.decode(codec.encode(saved, seed=0))
    for side in (codec.inside, codec.outside):
        there, others = moved == side, points[sides == side]
        moved[there] = others[torch.arange(int(there.sum())) % len(others)]
    return moved


def of_use(use: Use) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [c for c in CASES if use in c.uses.values()], ids=lambda case: case.name)


@of_use(Use.SHAPE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shape_is_not_read(case: Case, layout: str) -> None:
    for special in (False, True):
        inputs = inputs_of(case, torch.float32, layout, special)
        try:
            expected, _ = gradients(case, inputs, None)
        except RuntimeError:  # not every op takes every layout
            assert layout != "contiguous"
            return
        got, found = gradients(case, inputs, filled_with_nan)
        assert Use.SHAPE in found.values()
        assert differ(got, expected) == []


@of_use(Use.SHAPE)
def test_shape_is_not_read_in_second_order(case: Case) -> None:
    inputs = inputs_of(case, torch.float32, "contiguous", special=False)
    expected, _ = gradients(case, inputs, None, double=True)
    got, _ = gradients(case, inputs, filled_with_nan, double=True)
    assert differ(got, expected) == []


@of_use(Use.SIGN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_only_the_side_is_read(case: Case, dtype: torch.dtype) -> None:
    inputs = inputs_of(case, dtype, "contiguous", special=True)
    expected, _ = gradients(case, inputs, None)
    got, _ = gradients(case, inputs, moved_on_its_side)
    assert differ(got, expected) == []


@pytest.mark.parametrize(
    "case", [c for c in CASES if Use.SIGN in c.uses.values() and c.double], ids=lambda case: case.name
)
def test_only_the_side_is_read_in_second_order(case: Case) -> None:
    inputs = inputs_of(case, torch.float32, "contiguous", special=True)
    expected, _ = gradients(case, inputs, None, double=True)
    got, _ = gradients(case, inputs, moved_on_its_side, double=True)
    assert differ(got, expected) == []


def gradients_shifted(case: Case, chosen: Key, by: float) -> list[Tensor | None]:
    """Gradients with a fixed random tensor, times ``by``, added to what is saved of one field."""
    inputs = inputs_of(case, case.widest, "contiguous", special=False)

    def swap(key: Key, reading: Reading, saved: Tensor) -> Tensor | None:
        if key != chosen or not saved.is_floating_point():
            return None
        noise = by * torch.randn(saved.shape, generator=torch.Generator().manual_seed(2), dtype=saved.dtype)
        return (saved.exp() + noise.abs()).log() if reading.logs else saved + noise

    return gradients(case, inputs, swap)[0]


@of_use(Use.LINEAR)
def test_the_gradient_is_linear(case: Case) -> None:
    """Halfway between two saved tensors lies the gradient halfway between theirs, one field at a time."""
    for chosen in (key for key, use in case.uses.items() if use is Use.LINEAR):
        ends = [gradients_shifted(case, chosen, by) for by in (0.0, 0.5, 1.0)]
        for start, middle, end in zip(*ends, strict=True):
            assert start is not None
            assert end is not None
            torch.testing.assert_close(middle, (start + end) / 2)


@of_use(Use.SMOOTH)
def test_the_gradient_moves_little_with_a_smooth_input(case: Case) -> None:
    """A small error in what is kept makes a small error in the gradient, at ordinary points."""
    inputs = inputs_of(case, torch.float64, "contiguous", special=False)

    def swap(key: Key, reading: Reading, saved: Tensor) -> Tensor | None:
        if reading.use is not Use.SMOOTH:
            return None
        return saved + 1e-7 * torch.randn(saved.shape, generator=torch.Generator().manual_seed(2), dtype=saved.dtype)

    expected, _ = gradients(case, inputs, None)
    got, _ = gradients(case, inputs, swap)
    moved = [not torch.equal(a, b) for a, b in zip(got, expected, strict=True) if a is not None and b is not None]
    # x ** 1 has a gradient of 1, and log-sigmoid keeps what it needs of x a second time on the CPU
    assert any(moved) or case.name in ("power 1", "logsigmoid")
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "op",
    [
        lambda x: F.layer_norm(x, (7,)),
        lambda x: F.group_norm(x, 2),
        F.instance_norm,
        lambda x: F.batch_norm(x, None, None, training=True),
    ],
    ids=["layer", "group", "instance", "batch"],
)
def test_norms_read_their_input_with_frozen_weights(op: Callable[[Tensor], Tensor]) -> None:
    """The NaN that may stand for an unread tensor would be seen here, and no rule says SHAPE."""
    case = Case("norm", op, ((2, 4, 8, 7),), {})
    inputs = inputs_of(case, torch.float32, "contiguous", special=False)

    def swap(key: Key, reading: Reading, saved: Tensor) -> Tensor:
        assert reading.use is Use.SMOOTH
        assert reading.norm
        return fresh(saved).fill_(torch.nan)

    got, found = gradients(case, inputs, swap)
    assert set(found.values()) == {Use.SMOOTH}
    assert got[0] is not None
    assert bool(got[0].isnan().all())
