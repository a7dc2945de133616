"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from division.train.errors import RunError


def write_atomically(path: Path, write: Callable[[IO[bytes]], object], keep: Path | None = None) -> None:
    """Writes a file so that a reader sees the earlier content or the new one, and nothing in between.

    The bytes go to a temporary file in the same folder, are flushed to the disk, and then take the name `path`.

    Args:
        path: where the file ends up; its folder must exist.
        write: called with the open temporary file.
        keep: the file now at `path`, if any, takes this name first.

    Raises:
        RunError: the system refused (no space left, no permission); what was at `path` is as it was.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_atomically(folder / "a.txt", lambda file: file.write(b"hello"))
        >>> (folder / "a.txt").read_bytes(), [p.name for p in folder.iterdir()]
        (b'hello', ['a.txt'])
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        if keep is not None and path.exists():
            path.replace(keep)
        temporary.replace(path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        refusal = _system_error(error)
        if refusal is None:
            raise
        raise _refused(path, refusal) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically; numbers that JSON can't hold (NaN, infinities) become null."""
    text = json.dumps(finite(value), indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def append_json_line(path: Path, value: Any) -> None:
    """Adds one line of JSON and flushes it to the disk; see `write_json` for numbers."""
    line = json.dumps(finite(value), allow_nan=False) + "\n"
    try:
        with path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _refused(path, error) from error


def finite(value: Any) -> Any:
    """`value`, nested lists and dicts included, with every NaN and infinity replaced by None.

    Example:
        >>> finite({"loss": float("nan"), "top1": [97.5, float("inf")]})
        {'loss': None, 'top1': [97.5, None]}
    """
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _system_error(error: BaseException) -> OSError | None:
    """The system's own error: `torch.save` hides it behind a RuntimeError about positions in the file."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, OSError):
        at = at.__cause__ or at.__context__
    return at


def _refused(path: Path, error: OSError) -> RunError:
    reason = error.strerror or str(error)
    return RunError(
        f"could not write {path}: {reason}. What was saved before is untouched: make the folder writable or free some "
        "space, then go on with --resume"
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system can open a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
