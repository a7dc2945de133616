"""Where the parts of a code can be kept, other than in the memory of the device that made them."""

import os
import tempfile
import threading
import weakref
from bisect import bisect_left
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from division.private import is_fake


class Piece(Protocol):
    """A part of a code, kept somewhere."""

    nbytes: int

    def get(self) -> Tensor:
        """The part again, on its own device; a fresh tensor each time."""
        ...

    def peek(self) -> Tensor:
        """The part again, before backward asks for any; not to be changed but for :meth:`put`."""
        ...

    def put(self, part: Tensor) -> None:
        """Keep another part of the same size in its place."""
        ...


class _Here:
    """A part left as it is: a fake one, of which there is nothing to move, and one without bytes."""

    def __init__(self, part: Tensor) -> None:
        self.nbytes, self._part = part.nbytes, part

    def get(self) -> Tensor:
        return self._part.clone()

    def peek(self) -> Tensor:
        return self._part

    def put(self, part: Tensor) -> None:
        self._part = part


class _Pinned:
    """A part of a GPU in pinned host memory.

    Copied on a stream of its own, beside the forward's work; and back on another one, ahead of the backward's, which
    wants last what was kept first: who asks for a part begins the copies of those kept just before it.
    """

    def __init__(self, part: Tensor) -> None:
        self.nbytes, self._device = part.nbytes, part.device
        self._host, self._copied = self._copy(part)
        self._given = False
        self._coming: tuple[Tensor, torch.cuda.Event] | None = None
        self._before = _kept.last.get(part.device)
        _kept.last[part.device] = weakref.ref(self)

    @staticmethod
    def _copy(part: Tensor) -> "tuple[Tensor, torch.cuda.Event]":
        """Begin the copy out: where it goes, and when it is done."""
        stream, main = _stream(part.device), torch.cuda.current_stream(part.device)
        stream.wait_stream(main)  # until the part is there
        with torch.cuda.stream(stream):
            host = _host_like(part)
            host.copy_(part, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(stream)
        part.record_stream(stream)  # its memory is not used anew before the copy has read it
        return host, copied

    def peek(self) -> Tensor:
        torch.cuda.current_stream(self._device).wait_event(self._copied)
        return self._host.to(self._device, non_blocking=True)

    def put(self, part: Tensor) -> None:
        with _ahead_lock:
            self._coming = None
        self._host, self._copied = self._copy(part)

    def get(self) -> Tensor:
        main = torch.cuda.current_stream(self._device)
        with _ahead_lock:
            self._given, coming, self._coming = True, self._coming, None
        if coming is None:
            # Should this go first: torch's pool of pinned memory waits for the copies that use it.
            part = self.peek()
        else:
            part, ready = coming
            main.wait_event(ready)
            part.record_stream(main)  # it was made on the other stream: not to be used anew before this one is done
        self._look_ahead()
        return part

    def _look_ahead(self) -> None:
        before, found = self._before, 0
        for _ in range(_FARTHEST):
            piece = None if before is None else before()
            if piece is None or found == AHEAD:
                return
            if not piece._given:
                piece._come()
                found += 1
            before = piece._before

    def _come(self) -> None:
        """Begin the copy back, if it has not begun; of several that nobody asked for, the oldest is dropped."""
        with _ahead_lock:
            if self._coming is not None:
                return
            stream = _stream(self._device, back=True)
            stream.wait_event(self._copied)
            with torch.cuda.stream(stream):
                part = self._host.to(self._device, non_blocking=True)
                ready = torch.cuda.Event()
                ready.record(stream)
            self._coming = part, ready
            waiting = _ahead.setdefault(self._device, deque())
            waiting.append(weakref.ref(self))
            while len(waiting) > AHEAD:
                oldest = waiting.popleft()()
                if oldest is not None:
                    oldest._coming = None


class _Kept(threading.local):
    """The part that this thread kept last, by device."""

    def __init__(self) -> None:
        self.last: dict[torch.device, weakref.ref[_Pinned]] = {}


#: So many parts are on their way back at most, before anyone asks for them.
AHEAD = 2
_FARTHEST = 8  # parts back from the one that is asked for
_kept = _Kept()
_ahead: dict[torch.device, deque["weakref.ref[_Pinned]"]] = {}
_ahead_lock = threading.Lock()


def _host_like(part: Tensor) -> Tensor:
    return torch.empty(part.shape, dtype=part.dtype, pin_memory=True)


@lru_cache
def _stream(device: torch.device, *, back: bool = False) -> "torch.cuda.Stream":
    return torch.cuda.Stream(device)


class _Written:
    """A part of the CPU in a file."""

    def __init__(self, file: "_File", part: Tensor) -> None:
        self.nbytes, self._shape, self._dtype = part.nbytes, part.shape, part.dtype
        self._file, self._place = file, file.write(part)
        weakref.finalize(self, file.free, self._place, self.nbytes).atexit = False

    def get(self) -> Tensor:
        part = torch.empty(self._shape, dtype=self._dtype)
        self._file.read(part, self._place)
        return part

    peek = get

    def put(self, part: Tensor) -> None:
        self._file.rewrite(part, self._place)


class _Places:
    """Where in a file there is room: in the first gap that is large enough, else at the end. Gaps side by side are one."""

    def __init__(self) -> None:
        self.end = 0
        self._gaps: list[tuple[int, int]] = []  # where each begins and ends, in order

    def take(self, nbytes: int) -> int:
        """Where so many bytes may be written; a gap at the very end is made larger."""
        for i, (begin, end) in enumerate(self._gaps):
            if end - begin >= nbytes or end == self.end:
                after = begin + nbytes
                self._gaps[i : i + 1] = [(after, end)] if after < end else []
                self.end = max(self.end, after)
                return begin
        self.end += nbytes
        return self.end - nbytes

    def give(self, begin: int, nbytes: int) -> None:
        """Make a gap of a place, one with those before and behind it."""
        end = begin + nbytes
        i = bisect_left(self._gaps, (begin, end))
        if i < len(self._gaps) and self._gaps[i][0] == end:
            end = self._gaps.pop(i)[1]
        if i > 0 and self._gaps[i - 1][1] == begin:
            i -= 1
            begin = self._gaps.pop(i)[0]
        self._gaps.insert(i, (begin, end))


_ANOTHER = "name another directory: Swap(method, directory=...), or Offload(method, directory=...)"


class _File:
    """A file without a name, which the system takes away with the process. Its free places are used again.

    Raises:
        OSError: it can't be made there.
    """

    def __init__(self, directory: str | None) -> None:
        self.directory = directory or tempfile.gettempdir()
        try:
            self._file, name = tempfile.mkstemp(prefix="division-", dir=directory)
        except OSError as error:
            raise OSError(
                error.errno, f"{error.strerror}: no file for codes can be made in {self.directory}; {_ANOTHER}"
            ) from error
        Path(name).unlink()
        self._places = _Places()
        self._freed: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Its bytes, the free ones among them."""
        return self._places.end

    def write(self, part: Tensor) -> int:
        """Where the part now is.

        Raises:
            OSError: the system refused, such as a full disk.
        """
        with self._lock:
            while self._freed:
                self._places.give(*self._freed.popleft())
            place = self._places.take(part.nbytes)
        try:
            self.rewrite(part, place)
        except OSError:
            self.free(place, part.nbytes)
            raise
        return place

    def rewrite(self, part: Tensor, place: int) -> None:
        """Writes a part of the same size where another one was.

        Raises:
            OSError: the system refused.
        """
        data, done = _bytes(part.contiguous()), 0
        try:
            while done < len(data):
                done += os.pwrite(self._file, data[done:], place + done)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: {part.nbytes} bytes of a code don't fit in a file in {self.directory}; {_ANOTHER}",
            ) from error

    def read(self, part: Tensor, place: int) -> None:
        """Fills a tensor with what was written."""
        data, done = _bytes(part), 0
        while done < len(data):
            count = os.preadv(self._file, [data[done:]], place + done)
            if not count:
                raise OSError(f"a file of codes in {self.directory} ends before byte {place + len(data)}: it was cut")
            done += count

    def free(self, place: int, nbytes: int) -> None:
        """The place may be written to again. Takes no lock: the collector may call it in the middle of :meth:`write`."""
        self._freed.append((place, nbytes))


def _bytes(x: Tensor) -> memoryview:
    return memoryview(x.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


@lru_cache
def _file(directory: str | None, process: int) -> _File:
    """One a directory and process: a fork must not write into its parent's."""
    return _File(directory)


def stay(part: Tensor) -> Piece:
    """A part that is kept where it is."""
    return _Here(part)


def keep(part: Tensor, directory: str | None) -> Piece:
    """A part kept elsewhere: of a GPU in pinned host memory, of the CPU in a file.

    Args:
        directory: where such a file lies; None for the system's place for temporary files.

    Raises:
        OSError: the file can't be made or written.
    """
    if part.nbytes == 0 or is_fake(part):
        return _Here(part)
    if part.device.type == "cuda":
        return _Pinned(part)
    if part.device.type == "cpu":
        return _Written(_file(directory, os.getpid()), part)
    return _Here(part)
