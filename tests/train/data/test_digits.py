from torch import Tensor

from division.train import data
from division.train.data import Tensors


def tensors(split: data.Split) -> Tensors:
    assert isinstance(split, Tensors)
    return split


def test_split_is_stratified_and_complete() -> None:
    digits = data.load("digits")
    train, val = tensors(digits.train), tensors(digits.val)
    assert train.images.shape == (4000, 1, 32, 32)
    assert val.images.shape == (1000, 1, 32, 32)
    assert train.labels.bincount().tolist() == [400] * 10
    assert val.labels.bincount().tolist() == [100] * 10
    assert digits.classes == 10


def test_no_digit_is_in_both_splits() -> None:
    digits = data.load("digits")

    def rows(images: Tensor) -> set[bytes]:
        return {row.numpy().tobytes() for row in images.flatten(1)}

    train, val = rows(tensors(digits.train).images), rows(tensors(digits.val).images)
    assert len(train) == 4000
    assert len(val) == 1000
    assert not train & val


def test_standardised_by_the_training_pixels_and_padded_with_black() -> None:
    digits = data.load("digits")
    train = tensors(digits.train).images
    assert abs(float(train.mean())) < 1e-4
    assert abs(float(train.std()) - 1) < 1e-4
    pixels = train * digits.std[0] + digits.mean[0]
    assert float(pixels[:, :, :2].abs().max()) < 1e-6
    assert abs(float(pixels.max()) - 1) < 1e-6


def test_split_is_always_the_same() -> None:
    first, second = data.load("digits"), data.load("digits")
    assert (tensors(first.val).images == tensors(second.val).images).all()
    # Frozen: a figure of another split is another figure.
    chosen = tensors(first.val)
    pixels = chosen.images * first.std[0] + first.mean[0]
    assert round(float(pixels.double().sum() * 255)) == 26_543_755
