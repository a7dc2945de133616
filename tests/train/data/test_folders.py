"""The data sets that are read from a folder, on made-up files in their real layout."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from division.train import data
from division.train.data import Tensors
from division.train.data.imagenet import crop_box
from division.train.errors import DataNotFoundError
from division.train.seeds import stream


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for number, name in enumerate(names):
        pixels = np.full((2, 3072), number, dtype=np.uint8)
        pixels[:, 1024:2048] = 100  # green
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": [number, 9]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))
    # The made-up files have other checksums.
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda path, md5=None: Path(path).exists())
    return tmp_path


def test_cifar10_is_read_and_standardised(cifar10: Path) -> None:
    images = data.load("cifar10", cifar10)
    assert isinstance(images.train, Tensors)
    assert images.train.images.shape == (10, 3, 32, 32)
    assert images.train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    one = images.train.images[2, :, 0, 0]
    expected = (torch.tensor([1.0, 100, 1]) / 255 - torch.tensor(images.mean)) / torch.tensor(images.std)
    torch.testing.assert_close(one, expected)
    assert len(images.val) == 2


def test_cifar10_pads_with_black(cifar10: Path) -> None:
    images = data.load("cifar10", cifar10)
    batch, _ = images.train.batch(torch.arange(10), stream(0))
    black = (0 - torch.tensor(images.mean)) / torch.tensor(images.std)
    green = (100 / 255 - images.mean[1]) / images.std[1]
    values = batch[:, 1].unique()
    assert len(values) == 2
    torch.testing.assert_close(values, torch.tensor([float(black[1]), green]))


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "imagenet"])
def test_absent_data_say_where_they_were_looked_for(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=str(tmp_path)):
        data.load(name, tmp_path)
    with pytest.raises(DataNotFoundError, match="--data-dir"):
        data.load(name)


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_imagenet_layout(tmp_path: Path) -> None:
    for part in ("train", "val"):
        picture(tmp_path / part / "n01" / "a.png", (255, 0, 0), (300, 260))
        picture(tmp_path / part / "n02" / "b.png", (0, 0, 255), (40, 90))
    images = data.load("imagenet", tmp_path)
    assert images.classes == 2
    for augment in (None, stream(3)):
        batch, labels = images.train.batch(torch.tensor([1, 0]), augment)
        assert batch.shape == (2, 3, 224, 224)
        assert labels.tolist() == [1, 0]
        blue = (torch.tensor([0.0, 0, 1]) - torch.tensor(images.mean)) / torch.tensor(images.std)
        torch.testing.assert_close(batch[0, :, 100, 100], blue)


@given(height=st.integers(1, 600), width=st.integers(1, 600), seed=st.integers(0, 2**32))
def test_crop_box_lies_inside(height: int, width: int, seed: int) -> None:
    top, left, h, w = crop_box(height, width, stream(seed))
    assert h >= 1
    assert w >= 1
    assert 0 <= top <= height - h
    assert 0 <= left <= width - w


def test_crop_box_covers_all_areas() -> None:
    boxes = [crop_box(500, 400, stream(seed)) for seed in range(2000)]
    areas = torch.tensor([h * w / (500 * 400) for _, _, h, w in boxes])
    # Uniform on [0.08, 1] but for large boxes that do not fit at their aspect ratio.
    assert 0.07 < areas.min() < 0.1
    assert areas.max() > 0.9
    assert 0.42 < areas.mean() < 0.56
    assert max(top for top, *_ in boxes) > 300
    assert min(top for top, *_ in boxes) == 0
