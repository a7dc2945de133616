"""Seeds of the noise: our own stream, apart from every generator of torch."""

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import torch

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_created = itertools.count()


def scatter(x: int) -> int:
    """A bijection of 64-bit integers (the finaliser of splitmix64)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK64
    return x ^ (x >> 31)


def _combine(*parts: int) -> int:
    h = 0
    for part in parts:
        h = scatter((h + _GOLDEN + (part & _MASK64)) & _MASK64)
    return h


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


class Seeds:
    """One seed for each tensor that is coded: by base seed, rank, step, and count within the step.

    Args:
        seed: the base; None takes ``torch.initial_seed()`` and the number of streams made so in this process before,
            when the first step begins, so that contexts made afresh each step draw different noise.
    """

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise TypeError(f"got seed={seed!r}, expected an integer or None")
        self._base = seed
        self._step = -1
        self._prefix = 0
        self._count = itertools.count()
        self._lock = threading.Lock()

    def begin_step(self) -> None:
        """Move to the next step: its seeds have nothing in common with those before."""
        with self._lock:
            if self._base is None:
                self._base = _combine(torch.initial_seed(), next(_created))
            self._step += 1
            # The seeds are _combine(that of the step, count): all but the last turn is the same for the whole step.
            self._prefix = _combine(_combine(self._base, _rank(), self._step)) + _GOLDEN
            self._count = itertools.count()

    def next(self) -> int:
        """The seed of the next tensor, a signed 64-bit integer."""
        seed = scatter((self._prefix + next(self._count)) & _MASK64)
        return seed - (1 << 64) if seed >> 63 else seed

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: ``{"base": int or None, "step": int}``."""
        return {"base": self._base, "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another stream stood.

        Raises:
            ValueError: not such a state.
        """
        right = isinstance(state, Mapping) and set(state) == {"base", "step"}
        right = right and type(state["step"]) is int and state["step"] >= -1
        if not (right and (state["base"] is None or type(state["base"]) is int)):
            raise ValueError(f"got noise state {state!r}, expected {{'base': an integer or None, 'step': -1 or more}}")
        with self._lock:
            self._base, self._step = state["base"], state["step"]
