"""Errors a user can act on: each is one line saying what was got, what was expected and what to do."""

from __future__ import annotations


class RecipeError(Exception):
    """Base of the errors below; the command line prints them as one line, without a traceback."""


class SettingsError(RecipeError, ValueError):
    """Settings that can't be trained with. The message lists every problem found."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            problems[0] if len(problems) == 1 else "; ".join(f"({i}) {p}" for i, p in enumerate(problems, 1))
        )


class DataNotFoundError(RecipeError, FileNotFoundError):
    """A data set is not where it was looked for, or not in the expected form."""


class RunError(RecipeError):
    """A run directory can't be started, resumed or written."""


class CheckpointError(RunError):
    """A checkpoint is missing or damaged."""
