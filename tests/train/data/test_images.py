import pytest
import torch

from division.train.data import Subset, Tensors
from division.train.seeds import order, stream


def numbered(pad: int = 0, pad_mode: str = "constant", flip: bool = False) -> Tensors:
    images = torch.arange(6 * 2 * 5 * 5.0).reshape(6, 2, 5, 5) + 1
    return Tensors(images, torch.arange(6), pad=pad, pad_mode=pad_mode, flip=flip)


def test_without_a_stream_images_come_as_they_are() -> None:
    split = numbered(pad=2, flip=True)
    images, labels = split.batch(torch.tensor([4, 1]))
    assert torch.equal(images, split.images[[4, 1]])
    assert labels.tolist() == [4, 1]


@pytest.mark.parametrize("pad_mode", ["constant", "reflect"])
def test_every_augmented_image_is_a_window_of_the_padded_one(pad_mode: str) -> None:
    split = numbered(pad=2, pad_mode=pad_mode)
    padded = torch.nn.functional.pad(split.images, (2, 2, 2, 2), mode=pad_mode)
    seen = set()
    for seed in range(40):
        images, _ = split.batch(torch.arange(6), stream(seed))
        for index, image in enumerate(images):
            at = [
                (r, c) for r in range(5) for c in range(5) if torch.equal(padded[index, :, r : r + 5, c : c + 5], image)
            ]
            assert len(at) == 1
            seen.add(at[0])
    assert len(seen) == 25


def test_flip_mirrors_about_half() -> None:
    split = numbered(flip=True)
    mirrored = 0
    for seed in range(50):
        images, _ = split.batch(torch.arange(6), stream(seed))
        for image, original in zip(images, split.images, strict=True):
            assert torch.equal(image, original) or torch.equal(image, original.flip(-1))
            mirrored += torch.equal(image, original.flip(-1))
    assert 110 < mirrored < 190  # of 300


def test_same_stream_same_images() -> None:
    split = numbered(pad=2, flip=True)
    first, second, other = (split.batch(torch.arange(6), stream(seed))[0] for seed in (5, 5, 6))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_subset_is_spread_evenly() -> None:
    split = Tensors(torch.zeros(20, 1, 2, 2), torch.arange(20) // 2)
    _, labels = Subset(split, 10).batch(torch.arange(10))
    assert labels.tolist() == list(range(10))


def test_order_is_a_permutation_of_its_own_for_each_epoch() -> None:
    first, second = order(0, 0, 50), order(0, 1, 50)
    assert sorted(first.tolist()) == list(range(50))
    assert not torch.equal(first, second)
    assert torch.equal(first, order(0, 0, 50))
    assert not torch.equal(first, order(1, 0, 50))
