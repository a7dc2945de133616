"""`text`: the bytes of the Python standard library's own sources, to be predicted one from those before it."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from division.train.data.images import DataSet
from division.train.errors import DataNotFoundError

VOCABULARY = 256
LENGTH = 128
VAL_SHARE = 0.1
# Left out: tests, what is installed beside the library, and what differs between machines with the same Python.
SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
SKIPPED_FILES = ("_sysconfigdata", "sitecustomize.py", "usercustomize.py", "config-")


@dataclass(frozen=True)
class Sequences:
    """A split held in memory: `text`, uint8 (bytes,), cut into sequences of `length` that share no target.

    Example:
        >>> split = Sequences(torch.tensor(list(b"abcdefg"), dtype=torch.uint8), length=3)
        >>> inputs, targets = split.batch(torch.tensor([1]))
        >>> len(split), bytes(inputs[0].tolist()), bytes(targets[0].tolist())
        (2, b'def', b'efg')
    """

    text: Tensor
    length: int

    def __len__(self) -> int:
        return max(0, len(self.text) - 1) // self.length

    def batch(self, indices: Tensor, augment: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Bytes, and for each the one that comes next.

        Args:
            indices: int64 of shape (B,).
            augment: unused, text comes as it is.

        Returns:
            inputs and targets, both int64 of shape (B, length), on the CPU.
        """
        places = indices[:, None] * self.length + torch.arange(self.length + 1)  # (B, length + 1)
        chosen = self.text[places].long()
        return chosen[:, :-1], chosen[:, 1:]


def load(data_dir: Path | None = None) -> DataSet:
    """The sources of the running Python in sequences of 128 bytes; about 11 MB for training, 1 MB for validation.

    They differ between releases of Python: figures compare within one.

    Args:
        data_dir: unused, the sources come with Python.
    """
    return read(Path(sysconfig.get_path("stdlib")), LENGTH)


def read(folder: Path, length: int) -> DataSet:
    """The `*.py` files below a folder, each in one split by its path alone, in order of path and ended by a zero byte.

    Args:
        folder: of a Python standard library, or other sources in its layout.
        length: bytes of a sequence.

    Raises:
        ValueError: a length below 1.
        DataNotFoundError: no sources there (a zipped or compiled library), or less than a sequence in a split.
    """
    if length < 1:
        raise ValueError(f"got length {length}, expected 1 byte or more")
    texts: dict[str, list[bytes]] = {"train": [], "val": []}
    for path in sources(folder):
        texts[part(path)].append((folder / path).read_bytes() + b"\0")
    splits = {name: Sequences(_bytes(b"".join(found)), length) for name, found in texts.items()}
    if not all(map(len, splits.values())):
        raise DataNotFoundError(
            f"found {sum(map(len, texts.values()))} Python sources in {folder}, too few for sequences of {length} bytes: "
            "expected the standard library as .py files; use a Python whose library is neither zipped nor compiled only"
        )
    return DataSet(splits["train"], splits["val"], mean=(), std=(), classes=VOCABULARY)


def sources(folder: Path) -> list[PurePosixPath]:
    """The relative paths of the files that are read, in order."""
    found = []
    for name, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if not _skipped(each)]  # not walked into
        within = PurePosixPath(Path(name).relative_to(folder).as_posix())
        found += [within / each for each in files if each.endswith(".py") and not _skipped(each)]
    return sorted(found)


def part(path: PurePosixPath) -> str:
    """The split of a file, "train" or "val", by a hash of its relative path.

    Example:
        >>> [part(PurePosixPath(name)) for name in ("ast.py", "json/decoder.py", "code.py")]
        ['train', 'train', 'train']
    """
    digest = hashlib.blake2b(str(path).encode(), digest_size=8).digest()
    return "val" if int.from_bytes(digest, "big") < VAL_SHARE * 2**64 else "train"


def _skipped(name: str) -> bool:
    return name in SKIPPED_FOLDERS or name.startswith(SKIPPED_FILES)


def _bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
