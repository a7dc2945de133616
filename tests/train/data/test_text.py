import random
import sysconfig
from pathlib import Path, PurePosixPath

import pytest
import torch

from division.train import data
from division.train.data import text
from division.train.data.text import Sequences
from division.train.errors import DataNotFoundError


def sequences(split: data.Split) -> Sequences:
    assert isinstance(split, Sequences)
    return split


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small library: 60 files of 50 letters, and what is to be left out."""
    for number in range(60):
        folder = tmp_path / ("" if number % 2 else "package")
        folder.mkdir(exist_ok=True)
        (folder / f"m{number}.py").write_bytes(bytes(random.Random(number).choices(b"abcdefgh", k=50)))
    for left_out in (
        "test/a.py", "package/tests/b.py", "site-packages/c.py", "idlelib/idle_test/d.py", "_sysconfigdata_x.py",
        "config-3.11/e.py", "sitecustomize.py", "readme.txt", "f.pyc",
    ):  # fmt: skip
        path = tmp_path / left_out
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("left out" * 20)
    return tmp_path


def test_each_file_is_whole_in_the_split_its_path_gives(library: Path) -> None:
    read = text.read(library, 7)
    files = text.sources(library)
    assert len(files) == 60
    assert files == sorted(files)
    for name, split in (("train", read.train), ("val", read.val)):
        own = [library / path for path in files if text.part(path) == name]
        assert bytes(sequences(split).text.tolist()) == b"".join(path.read_bytes() + b"\0" for path in own)
    assert read.classes == 256


@pytest.mark.parametrize("length", [1, 7, 64])
def test_sequences_predict_every_byte_but_the_first_once(length: int, library: Path) -> None:
    split = sequences(text.read(library, length).train)
    inputs, targets = split.batch(torch.arange(len(split)))
    assert inputs.shape == targets.shape == (len(split), length)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    covered = len(split) * length
    assert torch.equal(targets.flatten(), split.text[1 : covered + 1].long())
    assert len(split.text) - 1 - covered < length
    chosen = torch.tensor([3, 0])
    assert torch.equal(split.batch(chosen, torch.Generator())[0], inputs[chosen])


def test_files_go_to_validation_by_their_path_alone() -> None:
    paths = [PurePosixPath("package", f"{number}.py") for number in range(4000)]
    share = sum(text.part(path) == "val" for path in paths) / len(paths)
    assert abs(share - text.VAL_SHARE) < 4 * (text.VAL_SHARE * (1 - text.VAL_SHARE) / len(paths)) ** 0.5
    # Frozen: a figure of another split is another figure.
    assert [p.stem for p in paths[:60] if text.part(p) == "val"] == ["1", "8", "9", "17", "22", "23", "24", "39"]


@pytest.mark.parametrize("files", [0, 1])
def test_a_library_without_sources_is_said(files: int, tmp_path: Path) -> None:
    for number in range(files):
        (tmp_path / f"{number}.py").write_text("x = 1\n" * 100)
    with pytest.raises(DataNotFoundError, match=f"found {files} Python sources.*zipped") as caught:
        text.read(tmp_path / ("" if files else "python311.zip"), 16)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(ValueError, match="got length 0"):
        text.read(tmp_path, 0)


def test_the_library_of_this_python() -> None:
    read, kind = data.load("text"), data.SETS["text"]
    train, val = sequences(read.train), sequences(read.val)
    assert len(train.text) > 4e6
    assert 0.03 < len(val.text) / len(train.text) < 0.3
    assert kind.shape == train.batch(torch.tensor([0]))[0][0].shape
    assert read.classes == kind.classes
    files = text.sources(Path(sysconfig.get_path("stdlib")))
    assert PurePosixPath("ast.py") in files
    assert PurePosixPath("json/decoder.py") in files
    assert not any("test" in path.parts or "site-packages" in path.parts for path in files)
    limited = data.load("text", limit=10)
    assert (len(limited.train), len(limited.val)) == (10, 10)
