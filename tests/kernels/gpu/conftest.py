"""The interpreter of Triton, quicker and quiet."""

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

# Files that import Triton, of which pytest would look for doctests.
collect_ignore = [] if importlib.util.find_spec("triton") else ["ahead.py", "numbers.py"]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What a GPU does without a word (1 / 0, infinity less infinity), numpy would warn of."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick() -> Iterator[None]:
    """The interpreter prepares the language anew at each call of a function inside a kernel; once a launch is enough."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    interpreter = importlib.import_module("triton.runtime.interpreter")
    prepare = getattr(interpreter, "_patch_lang", None)
    if prepare is None:
        yield
        return
    done: set[int] = set()

    class Scope:
        def __init__(self, scope: Any) -> None:
            self.scope = scope

        def restore(self) -> None:
            done.clear()
            if self.scope is not None:
                self.scope.restore()

    def once(fn: Any) -> Scope:
        module = id(fn.__globals__)
        if module in done:
            return Scope(None)
        done.add(module)
        return Scope(prepare(fn))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", once)
        yield
