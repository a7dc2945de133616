"""A clock that says what a test wants."""

from collections.abc import Callable


class Scripted:
    """The n-th timed run takes ``seconds(n)``."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self._seconds = seconds
        self._marks = 0
        self.readied = 0
        self.settled = 0

    def ready(self) -> None:
        self.readied += 1

    def mark(self) -> int:
        self._marks += 1
        return self._marks - 1

    def settle(self) -> None:
        self.settled += 1

    def between(self, start: int, end: int) -> float:
        assert end == start + 1, "one run's two marks"
        assert start % 2 == 0, "one run's two marks"
        return self._seconds(start // 2)
