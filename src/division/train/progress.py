"""What a training shows while it runs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TrainProgress:
    """A bar with loss, accuracy and speed on a terminal, and a line an epoch everywhere.

    Args:
        title: stands before the bar.
        steps: how many the whole training has, if its batch stays as it is.
        console: where to show it; None shows nothing.
    """

    def __init__(self, title: str, steps: int, console: Console | None) -> None:
        self._console, self._steps = console, steps
        texts = TextColumn("{task.description}"), TextColumn("{task.fields[now]}")
        columns = texts[0], BarColumn(), MofNCompleteColumn(), texts[1], TimeRemainingColumn()
        self._bar = Progress(*columns, console=console, transient=True)
        self._bar.disable = console is None or not console.is_terminal
        self._task = self._bar.add_task(title, total=steps, now="")

    @property
    def live(self) -> bool:
        """Whether anyone sees the bar: figures for it are computed only then."""
        return not self._bar.disable

    def step(self, share: float, loss: float, top1: float, speed: str) -> None:
        """Moves the bar to a share of the whole, from 0 to 1; loss and accuracy (percent) are those of the epoch so far."""
        now = f"loss {loss:.4f}  top-1 {top1:.1f} %  {speed}"
        self._bar.update(self._task, completed=round(share * self._steps), now=now)

    def line(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._console is not None:
            self._console.print(text, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
