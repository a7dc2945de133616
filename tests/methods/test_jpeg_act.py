"""What JPEG-ACT keeps of what, and how near its gradients come."""

import pytest
import torch
from torch import Tensor, nn

import division
from division.codecs import Bits, Codec, Frequency, Group
from division.methods import JpegAct
from division.rules import Reading, Use
from division.saved import Saved
from tests.models import convnet, images, total

MAP, SMALL, ROWS, TOKENS = torch.randn(2, 8, 14, 14), torch.randn(4, 8, 1, 1), torch.randn(4, 64), torch.randn(2, 9, 64)
CONV, LINEAR, SMOOTH = Reading(Use.LINEAR, axes="map"), Reading(Use.LINEAR, axes="rows"), Reading(Use.SMOOTH)
NORM = Reading(Use.SMOOTH, axes="map", norm=True)


def pick(reading: Reading, x: Tensor, method: JpegAct | None = None) -> Codec | None:
    return (method or JpegAct()).codec(reading, Saved("Node", "field", x))


def test_maps_are_kept_in_frequencies() -> None:
    for reading in (CONV, NORM):
        assert pick(reading, MAP) == Frequency()
        assert pick(reading, MAP[0]) == Frequency()
        assert pick(reading, MAP, JpegAct(4, 0.5)) == Frequency(4, 0.5)


def test_all_else_is_kept_in_8_bits() -> None:
    assert pick(LINEAR, ROWS) == pick(LINEAR, TOKENS) == Group(8, 64, -1)
    assert pick(SMOOTH, MAP) == Group(8, 256, "sample")
    assert pick(Reading(Use.SMOOTH, along=1), MAP) == Group(8, 64, 1)
    assert pick(CONV, SMALL.half()) == Group(8, 256, "sample")


def test_signs_take_one_bit() -> None:
    assert pick(Reading(Use.SIGN, Bits(lo=0.0)), MAP) == Bits(lo=0.0)


def test_settings_out_of_range_are_refused_when_the_object_is_made() -> None:
    for quality in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"got quality=.*expected a finite number above 0"):
            JpegAct(quality)
    with pytest.raises(ValueError, match=r"got slope=-1.*expected"):
        JpegAct(slope=-1)
    for setting in ({"bits": 2}, {"block": 8}):
        with pytest.raises(ValueError, match="method 'jpeg-act' has no such setting"):
            division.methods.find("jpeg-act", **setting)


def gradients(method: JpegAct | str, x: Tensor) -> tuple[Tensor, float]:
    torch.manual_seed(3)
    model = convnet(16)
    with division.compress(method, seed=0) as context:
        loss = total(model(x))
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), context.report.ratio


def test_gradients_come_nearer_as_the_quality_grows() -> None:
    x = images(4, 3, 32, 32)
    plain, _ = gradients("none", x)
    found = [gradients(JpegAct(quality), x) for quality in (1, 4, 16)]
    errors = [float((g - plain).norm() / plain.norm()) for g, _ in found]
    ratios = [ratio for _, ratio in found]
    assert errors == sorted(errors, reverse=True)
    assert ratios == sorted(ratios, reverse=True)
    assert 0 < errors[2] < errors[0] / 3


def test_a_map_of_nan_is_not_hidden() -> None:
    conv = nn.Conv2d(2, 2, 3)
    x = torch.randn(2, 2, 8, 8, requires_grad=True)
    with division.compress("jpeg-act"):
        h = x * 1.0
        h = torch.where(torch.arange(2).view(2, 1, 1, 1) == 1, h * torch.nan, h)
        loss = conv(h)[:1].sum() + conv(h)[1:].sum()
    loss.backward()
    assert conv.weight.grad is not None
    assert conv.weight.grad.isnan().all()


def test_a_prediction_takes_the_bytes_that_codes_had() -> None:
    model, x, method = convnet(16), images(4, 3, 32, 32), JpegAct()
    assert division.predict(model, x, method).basis == "interval"
    with division.attach(model, method) as handle, handle.step():
        model(x)
    found = division.predict(model, x, method)
    assert (found.basis, found.packed_bytes) == ("recorded", handle.report.packed_bytes)
    other = JpegAct()
    with division.attach(model, other) as again:
        again.load_state_dict(handle.state_dict())
    assert division.predict(model, x, other).packed_bytes == found.packed_bytes
