"""Mesa: 8 bits over running ranges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec
from division.codecs.group import Group
from division.codecs.ranged import Ranged
from division.methods.learned import Learned, Learner
from division.methods.method import register
from division.methods.places import heads_of, is_map
from division.private import is_fake
from division.ranks import agreed, several_ranks
from division.rules import Reading
from division.saved import Saved

BITS = 8
SOFTMAX_GROUP, LOGS_GROUP = 64, 32


class RunningRange:
    """The running range of each group at one site; stays on the device where it is asked for.

    Args:
        decay: what is kept of the estimate at each step.
        low, width: the estimate to begin with, float32 ``[groups]``; NaN where there is none yet.
    """

    def __init__(self, decay: float, low: Tensor | None = None, width: Tensor | None = None) -> None:
        self.decay, self.low, self.width = decay, low, width

    def __call__(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Take in the range of a tensor; returns the ends of a range that covers both the estimate and the tensor.

        A range that isn't finite is returned as it is, and leaves the estimate alone.
        """
        missing = torch.full_like(low, torch.nan)
        before, width = (missing if old is None else old.to(low.device) for old in (self.low, self.width))
        finite = low.isfinite() & high.isfinite()
        self.low = torch.where(finite, _mixed(before, low, self.decay), before)
        self.width = torch.where(finite, _mixed(width, high - low, self.decay), width)
        return torch.minimum(self.low, low), torch.maximum(self.low + self.width, high)


def _mixed(old: Tensor, new: Tensor, decay: float) -> Tensor:
    return torch.where(old.isnan(), new, decay * old + (1 - decay) * new)


class Ranges(Learned):
    """The least value and then the width of each group, by site."""

    gathered: ClassVar[int | None] = 0

    def check(self, site: str, row: tuple[float, ...], method: str) -> None:
        """As many of both, and no width below 0."""
        if len(row) % 2 or not row or min(row[len(row) // 2 :]) < 0:
            raise ValueError(
                f"got {list(row)[:4]} … for {site!r} as what {method!r} learned, expected least values, then as many widths"
            )


@register("mesa")
@dataclass(frozen=True)
class Mesa(Learner):
    """Every value that backward reads in 8 bits, over ranges that all samples share and that run over the steps.

    What shares a range is a head of an attention operand ``(samples, heads, tokens, features)``, and elsewhere a slice
    of about 64 channels or features, as many as a head of the paper's networks has. At each step a range's least value and its width are mixed into running
    estimates, ``decay * old + (1 - decay) * new``, the first taken as they are; the codes span the estimate and the
    tensor. So nothing is clipped and the codes stay unbiased. The published code quantises over the estimate
    alone; beyond its upper end codes wrap, and backward decodes by the estimate of then, not by that of the code.

    Results of softmax are coded along its dim, so that the one of a row that is masked as a whole, which is NaN, leaves
    the others alone; results of log-softmax as probabilities.

    The estimates are the method's, by site, never the model's. In a data-parallel training each process goes on from
    the mean over all of them every ``interval`` steps.

    Source: Mesa (Pan et al., 2021), sections 3.2 and 3.3.

    Args:
        decay: from 0 up to, not including, 1.
        slice: channels or features that share a range, 1 or more; the nearest number that cuts them evenly.
        interval: steps from one agreement among processes to the next.

    Raises:
        ValueError: a setting out of range.

    Example:
        >>> Mesa()
        Mesa(decay=0.9, slice=64, interval=100)
    """

    decay: float = 0.9
    slice: int = 64
    interval: int = 100
    learned: Ranges = field(default_factory=Ranges, init=False, repr=False, compare=False)
    running: dict[str, RunningRange] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.decay, int | float) or not 0 <= self.decay < 1:
            raise ValueError(f"got decay={self.decay!r} for mesa, expected a number from 0 up to, not including, 1")
        for name in ("slice", "interval"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"got {name}={value!r} for mesa, expected an integer of at least 1")

    def begin_step(self) -> None:
        """Agree with the other processes once in a while."""
        self.learned.steps += 1
        if several_ranks() and (self.learned.steps == 2 or self.learned.steps % self.interval == 0):
            self._gather()
            rows = {name: torch.tensor(row, dtype=torch.float64) for name, row in self.learned.values.items()}
            self.learned.values = {name: tuple(row.tolist()) for name, row in agreed(rows).items()}
            self._scatter()

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``ranged`` by head or slice of channels; ``group`` for results of softmax."""
        x = saved.tensor
        if reading.logs:
            return Group(BITS, LOGS_GROUP, "plane" if is_map(reading, x) else -1)
        if reading.along is not None:
            return Group(BITS, SOFTMAX_GROUP, reading.along)
        axis, groups, interleaved = self._groups(reading, x)
        site = None if is_fake(x) else self.learned.sites.site(saved)
        if site is None:
            return Ranged(BITS, axis, groups, interleaved)
        range_ = self.running.setdefault(f"{site} x{groups}", RunningRange(self.decay))
        return Ranged(BITS, axis, groups, interleaved, range_)

    def state_dict(self) -> dict[str, Any]:
        """Steps, and the least value and the width of each group by site; waits for the device."""
        self._gather()
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            ValueError: a state that this method can't have written, or one of another model.
        """
        super().load_state_dict(state)
        self.running.clear()
        self._scatter()

    def _gather(self) -> None:
        """Take the estimates from where they lie; those that aren't finite, of a site that never was, are left out."""
        found = {
            site: torch.cat((own.low, own.width)).cpu()
            for site, own in self.running.items()
            if own.low is not None and own.width is not None
        }
        self.learned.values = {site: tuple(row.tolist()) for site, row in found.items() if bool(row.isfinite().all())}

    def _scatter(self) -> None:
        for site, row in self.learned.values.items():
            low, width = torch.tensor(row, dtype=torch.float32).chunk(2)
            self.running.setdefault(site, RunningRange(self.decay)).low = low
            self.running[site].width = width

    def _groups(self, reading: Reading, x: Tensor) -> tuple[int, int, bool]:
        """The dim of what shares a range, how many slices it is cut into, and whether these take turns."""
        if is_map(reading, x):
            return 1, self._slices(x.shape[1]), False
        heads = heads_of(x)
        if heads is not None:
            return 0, heads, True
        if x.dim() == 4:
            return 1, x.shape[1], False
        return -1, self._slices(x.shape[-1]) if x.dim() else 1, False

    def _slices(self, channels: int) -> int:
        most = max(1, round(channels / self.slice))
        return next(count for count in range(most, 0, -1) if channels % count == 0)
