"""What every method promises, found by its registration; and what each picks."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import division
from division import methods
from division.codecs.codec import Codec
from division.codecs.dual import Dual
from division.codecs.group import Group
from division.methods import AcGc, Division, FixedBits, HighFrequency, Lossless, LowFrequency, Mesa, Method
from division.methods.method import METHODS
from division.rules import Reading, Use
from division.saved import Saved
from tests.models import convnet, images, total

ALL = [*sorted(set(METHODS) - {"fixed"}), *(f"fixed-{bits}" for bits in (1, 2, 3, 8, 16))]
MAP, ROWS = torch.randn(2, 8, 16, 16), torch.randn(4, 64)
CONV = Reading(Use.LINEAR, axes="map")
LINEAR = Reading(Use.LINEAR, axes="rows")
SMOOTH = Reading(Use.SMOOTH)
NORM = Reading(Use.SMOOTH, axes="map", norm=True)


def pick(method: Method, reading: Reading, x: Tensor) -> Codec | None:
    return method.codec(reading, Saved("Node", "field", x))


@pytest.mark.parametrize("name", ALL)
def test_a_name_gives_a_value(name: str) -> None:
    method, again = methods.find(name), methods.find(name)
    assert isinstance(method, Method)
    assert method == again
    assert hash(method) == hash(again)
    assert eval(repr(method), vars(methods)) == method
    for field in dataclasses.fields(type(method)):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, 1)


@pytest.mark.parametrize("name", ALL)
def test_a_method_trains_with_codes_no_larger_than_what_they_stand_for(name: str) -> None:
    torch.manual_seed(0)
    model = convnet(16)
    with division.compress(name, seed=0, model=model) as context:
        loss = total(model(images(4, 3, 32, 32)))
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert all(r.packed_bytes <= r.raw_bytes for r in context.report.records)
    assert (context.report.ratio > 1) is (name not in ("none", "swap"))
    state = context.state_dict()
    assert (state["method"]["learned"] != {}) is context.method.learns
    context.load_state_dict(state)
    assert context.state_dict() == state


@pytest.mark.parametrize("name", [name for name in ALL if methods.find(name).blocks is None])
def test_signs_masks_and_indices_are_exact_under_every_method(name: str) -> None:
    x = torch.randn(2, 4, 8, 8, requires_grad=True)

    def run() -> Tensor:
        h = (x + 0).relu() + nn.functional.leaky_relu(x + 0, 0.1) + (x + 0).clamp(-1, 1)
        return nn.functional.dropout(nn.functional.max_pool2d(h, 2), 0.4).sum()

    torch.manual_seed(1)
    (plain,) = torch.autograd.grad(run(), x)
    torch.manual_seed(1)
    with division.compress(name):
        loss = run()
    assert torch.equal(torch.autograd.grad(loss, x)[0], plain)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"got method 'divison'") as caught:
        methods.find("divison")
    assert all(name in str(caught.value) for name in ("division", "fixed-<bits>", "lossless", "none", "low-frequency"))
    for bad in (
        "",
        "fixed-",
        "fixed-0",
        "fixed-17",
        "fixed-2-2",
        "fixed-x",
        "Division",
        "division-4",
        3,
        None,
        Division,
    ):
        with pytest.raises(ValueError, match="expected"):
            methods.find(bad)  # type: ignore[arg-type]


def test_names_are_sorted_and_all_found() -> None:
    assert methods.names() == sorted(methods.names())
    for name in methods.names():
        methods.find(name.replace("<bits>", "4"))


@pytest.mark.parametrize(
    ("name", "settings", "method"),
    [
        ("division", {}, Division()),
        ("division", {"block": 4, "bits": 8}, Division(4, 8)),
        ("low-frequency", {"block": 4}, LowFrequency(4)),
        ("high-frequency", {"block": 1, "bits": 1}, HighFrequency(1, 1)),
        ("fixed", {"bits": 5}, FixedBits(5)),
        ("fixed-5", {"bits": 5}, FixedBits(5)),
        ("fixed-16", {}, FixedBits(16)),
    ],
)
def test_settings_reach_the_method(name: str, settings: dict[str, int], method: Method) -> None:
    assert methods.find(name, **settings) == method


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lossless", {"bits": 2}), ("mesa", {"bits": 8}), ("ac-gc", {"bits": 8}), ("ac-gc", {"block": 8}), ("none", {"block": 2}), ("low-frequency", {"bits": 2}), ("fixed", {"block": 2}),
        ("fixed-4", {"bits": 2}), ("division", {"bits": 3}), ("division", {"block": 0}), ("division", {"bits": 0}),
        ("high-frequency", {"bits": 16}), ("low-frequency", {"block": -1}), ("fixed", {"bits": 0}), ("fixed", {"bits": 17}),
    ],
)  # fmt: skip
def test_settings_that_a_method_has_not_or_out_of_range_are_refused(name: str, settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        methods.find(name, **settings)
    assert str(next(iter(settings.values()))) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Division, {"block": 0}), (Division, {"bits": 3}), (Division, {"block": 1.5}), (Division, {"bits": "2"}),
        (HighFrequency, {"bits": 5}), (LowFrequency, {"block": 0}), (FixedBits, {"bits": 0}), (FixedBits, {"bits": 2.5}),
        (Mesa, {"decay": 1}), (Mesa, {"decay": -0.1}), (Mesa, {"decay": "0.9"}), (Mesa, {"decay": float("nan")}), (Mesa, {"slice": 0}),
        (Mesa, {"interval": 0}), (Mesa, {"interval": 1.5}), (AcGc, {"eps_bits": "1"}), (AcGc, {"eps_bits": float("nan")}),
        (AcGc, {"eps_bits": 65}), (AcGc, {"interval": 0}), (AcGc, {"interval": True}), (AcGc, {"bound": "best"}),
        (FixedBits, {"per": "channel"}), (FixedBits, {"per": 0}), (FixedBits, {"per": -4}), (FixedBits, {"per": None}),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_when_the_object_is_made(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match="expected"):
        kind(**settings)


# What each picks.


@pytest.mark.parametrize("use", [SMOOTH, NORM, CONV, LINEAR])
def test_lossless_and_none_leave_values(use: Reading) -> None:
    assert pick(Lossless(), use, MAP) is None
    assert pick(methods.Nothing(), use, MAP) is None


def test_none_leaves_exact_uses_too() -> None:
    from division.codecs.bits import Mask

    reading = Reading(Use.MASK, Mask())
    assert pick(methods.Nothing(), reading, MAP) is None
    assert pick(Lossless(), reading, MAP) == Mask()


def test_division_keeps_maps_in_two_parts_and_rows_in_groups() -> None:
    assert pick(Division(), CONV, MAP) == Dual(8, 2)
    assert pick(Division(4, 8), CONV, MAP) == Dual(4, 8)
    assert pick(Division(), NORM, MAP) == Dual(8, 2)
    assert pick(Division(), LINEAR, ROWS) == Group(4, 64, -1)
    assert pick(Division(), LINEAR, MAP) == Group(2, 32, (1, 2))
    smooth = pick(Division(), SMOOTH, MAP)
    assert isinstance(smooth, Dual | Group)
    assert smooth.bits == 8
    for x in (torch.randn(2, 8), torch.randn(2, 8, 10), torch.randn(2, 3, 4, 5, 6)):
        codec = pick(Division(), CONV, x)
        assert isinstance(codec, Dual if x.dim() > 2 and codec.packed_bytes(x.shape, x.dtype) < x.nbytes else Group)  # type: ignore[union-attr]


def test_division_keeps_tokens_in_groups_along_them() -> None:
    tokens = torch.randn(2, 64, 96)
    for reading, bits in (
        (LINEAR, 2),
        (Reading(Use.LINEAR, axes="rows", cancels=True), 8),
        (Reading(Use.SMOOTH, axes="rows", norm=True), 4),
        (Reading(Use.SMOOTH), 4),
        (Reading(Use.SMOOTH, axes="rows", exponent=True), 8),
    ):
        assert pick(Division(), reading, tokens) == Group(bits, 32, 1)
        assert pick(Division(bits=8), reading, tokens) == Group(8, 32, 1)
    assert pick(Division(bits=1), LINEAR, tokens) == Group(1, 32, 1)


def test_the_ablations_differ_from_division_in_their_maps_alone() -> None:
    for method, part in ((LowFrequency(), "low"), (HighFrequency(), "high")):
        codec = pick(method, CONV, MAP)
        assert isinstance(codec, Dual)
        assert codec.part == part
        assert codec.packed_bytes(MAP.shape, MAP.dtype) < Dual(8, 2).packed_bytes(MAP.shape, MAP.dtype)
        assert pick(method, LINEAR, ROWS) == pick(Division(), LINEAR, ROWS)
        assert pick(method, SMOOTH, MAP) == pick(Division(), SMOOTH, MAP)


@pytest.mark.parametrize(("per", "groups"), [("plane", 16), ("sample", 2), ("tensor", 1), (64, 64)], ids=str)
def test_fixed_bits_share_ranges_as_asked(per: Any, groups: int) -> None:
    codec = pick(FixedBits(4, per), CONV, MAP)
    assert codec is not None
    one = pick(FixedBits(4, "tensor"), CONV, MAP)
    assert one is not None
    codes = MAP.numel() // 2
    overhead = one.packed_bytes(MAP.shape, MAP.dtype) - codes
    assert overhead > 0
    assert codec.packed_bytes(MAP.shape, MAP.dtype) == codes + groups * overhead


def test_a_method_of_ones_own_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods.method, "METHODS", METHODS)
    monkeypatch.setitem(METHODS, "mine", Lossless)  # taken out again after the test

    @methods.register("mine")
    @dataclasses.dataclass(frozen=True)
    class Mine(Method):
        def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
            return Group(8, 64, -1)

    assert methods.find("mine") == Mine()
    with division.compress("mine") as context:
        convnet()(images()).sum()
    assert any("group" in r.codec.lower() for r in context.report.records)
    with pytest.raises(ValueError, match="bits=2"):
        methods.find("mine", bits=2)
