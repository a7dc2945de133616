import pytest
import torch

from division.train import data
from division.train.data import Tensors, photos


@pytest.mark.parametrize("label", range(len(photos.PHOTOGRAPHS)))
def test_train_and_validation_share_no_pixel(label: int) -> None:
    height, width = photos.read(photos.PHOTOGRAPHS[label]).shape
    seen = {}
    for part, count in (("train", photos.TRAIN_CROPS), ("val", photos.VAL_CROPS)):
        corners = photos.corners(height, width, part, count // len(photos.PHOTOGRAPHS) + 1, label)
        covered = torch.zeros(height, width, dtype=torch.bool)
        for row, column in corners.tolist():
            assert 0 <= row <= height - photos.SIZE
            assert 0 <= column <= width - photos.SIZE
            covered[row : row + photos.SIZE, column : column + photos.SIZE] = True
        seen[part] = covered
        assert len(torch.unique(corners, dim=0)) == len(corners)
    assert not (seen["train"] & seen["val"]).any()
    assert seen["train"].float().mean() > 0.1
    assert seen["val"].float().mean() > 0.1


def test_numbers_classes_and_standardisation() -> None:
    photographs = data.load("photos")
    for split, count in ((photographs.train, 4000), (photographs.val, 10000)):
        assert isinstance(split, Tensors)
        assert split.images.shape == (count, 1, 32, 32)
        shares = split.labels.bincount()
        assert len(shares) == photographs.classes == data.SETS["photos"].classes == 17
        assert shares.max() - shares.min() <= 1
        assert split.images.mean(dim=(1, 2, 3)).abs().max() < 1e-4
        std = split.images.std(dim=(1, 2, 3))
        assert std.max() < 1 + 1e-5
        assert (std > 0.9).float().mean() > 0.85  # the rest is nearly flat: night sky, the rim of a slide


def test_a_crop_is_the_photograph_it_claims_to_be() -> None:
    images = data.load("photos").val
    assert isinstance(images, Tensors)
    label = 4
    own = (images.labels == label).nonzero().flatten()
    picture = photos.read(photos.PHOTOGRAPHS[label])
    height, width = picture.shape
    row, column = photos.corners(height, width, "val", len(own), label)[7].tolist()
    crop = picture[row : row + 32, column : column + 32]
    expected = (crop - crop.mean()) / (crop.std() + 1e-3)
    torch.testing.assert_close(images.images[own[7], 0], expected)


def test_always_the_same() -> None:
    first, second = (data.load("photos").train for _ in range(2))
    assert isinstance(first, Tensors)
    assert isinstance(second, Tensors)
    assert torch.equal(first.images, second.images)
