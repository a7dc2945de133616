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
#: Least and greatest end of a range whose width would overflow.
_REACH = 0.45 * torch.finfo(torch.float32).max


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

        A range that isn't finite is returned as it is, and leaves the estimate alone. So does one whose width isn't, though its
        ends are; of that the part around 0 is returned.
        """
        before, width = (
            torch.full_like(low, torch.nan) if old is None else old.to(low.device) for old in (self.low, self.width)
        )
        mixed = _mixed(before, low, self.decay), _mixed(width, high - low, self.decay)
        finite = (mixed[0] + mixed[1]).isfinite()
        self.low, self.width = torch.where(finite, mixed[0], before), torch.where(finite, mixed[1], width)
        none = self.low.isnan()
        low = torch.minimum(torch.where(none, low, self.low), low)
        high = torch.maximum(torch.where(none, high, self.low + self.width), high)
        wide = low.isfinite() & high.isfinite() & (high - low).isinf()
        return torch.where(wide, low.clamp_min(-_REACH), low), torch.where(wide, high.clamp_max(_REACH), high)


def _key(site: str, groups: int) -> str:
    return f"{site} x{groups}"


def _parts(key: str) -> tuple[str, str]:
    """The site of a key, and its number of groups."""
    site, _, groups = key.rpartition(" x")
    return site, groups


def _counted(row: tuple[float, ...]) -> Tensor:
    """Least values and widths, 0 where there is none, and then whether there is one: what a mean can be made of."""
    low, width = torch.tensor(row, dtype=torch.float64).chunk(2)
    there = (width >= 0).to(torch.float64)
    return torch.cat((low * there, width * there, there))


def _mean(counted: Tensor) -> tuple[float, ...]:
    """The mean where there are estimates, of the mean of what :func:`_counted` makes."""
    low, width, there = counted.chunk(3)
    return tuple(torch.where(torch.cat((there, there)) > 0, torch.cat((low / there, width / there)), -1).tolist())


def _mixed(old: Tensor, new: Tensor, decay: float) -> Tensor:
    return torch.where(old.isnan(), new, decay * old + (1 - decay) * new)


class Ranges(Learned):
    """The least value and then the width of each group, by site; -1 both of a group that has no estimate yet."""

    gathered: ClassVar[int | None] = 0

    def check(self, site: str, row: tuple[float, ...], method: str) -> None:
        """As many of both as the site has groups, and no width below 0 where there is an estimate."""
        _, groups = _parts(site)
        half = len(row) // 2
        pairs = zip(row[:half], row[half:], strict=False)
        right = len(row) == 2 * half > 0 and str(half) == groups
        if not right or any(width < 0 and (low, width) != (-1, -1) for low, width in pairs):
            raise ValueError(
                f"got {list(row)[:4]} … for {site!r} as what {method!r} learned, expected {groups} least values, then as many"
                " widths"
            )


@register("mesa")
@dataclass(frozen=True)
class Mesa(Learner):
    """Every value that backward reads in 8 bits, over ranges that all samples share and that run over the steps.

    What shares a range is a head of an attention operand ``(samples, heads, tokens, features)``, and elsewhere a slice
    of about 64 channels or features, as many as a head of the paper's networks has. At each step a range's least value and its width are mixed into running
    estimates, ``decay * old + (1 - decay) * new``, the first taken as they are; the codes span the estimate and the
    tensor. So nothing is clipped and the codes stay unbiased, but of a range too wide for float32. The published code quantises over the estimate
    alone; beyond its upper end codes wrap, and backward decodes by the estimate of then, not by that of the code.

    Results of softmax are coded along its dim, so that the one of a row that is masked as a whole, which is NaN, leaves
    the others alone; results of log-softmax as probabilities.

    Tensors at one site that have now so many heads or slices and then another number share one range from then on, as where
    dim 1, taken for the heads, counts tokens.

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
            rows = {key: _counted(row) for key, row in self.learned.values.items()}
            self.learned.values = {key: _mean(row) for key, row in agreed(rows).items()}
            self._scatter()

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``ranged`` by head or slice of channels; ``group`` for results of softmax."""
        x = saved.tensor
        if reading.logs:
            return Group(BITS, LOGS_GROUP, "plane" if is_map(reading, x) else -1)
        if reading.along is not None:
            return Group(BITS, SOFTMAX_GROUP, reading.along)
        axis, groups, interleaved = self._groups(reading, x)
        site = None if is_fake(x) or not x.numel() else self.learned.sites.site(saved)
        if site is None:
            return Ranged(BITS, axis, groups, interleaved)
        groups, running = self._range(site, groups)
        return Ranged(BITS, axis, groups, interleaved, running)

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
        self._scatter()

    def _gather(self) -> None:
        """Take the estimates from where they lie."""
        self.learned.values = {
            key: tuple(torch.cat((own.low, own.width)).nan_to_num(-1.0).tolist())
            for key, own in self.running.items()
            if own.low is not None and own.width is not None
        }

    def _scatter(self) -> None:
        values = self.learned.values
        self.running.clear()
        for key, row in values.items():
            one = _key(_parts(key)[0], 1)
            if key == one or one not in values:
                low, width = torch.tensor(row, dtype=torch.float32).chunk(2)
                none = width < 0
                own = (estimate.masked_fill(none, torch.nan) for estimate in (low, width))
                self.running[key] = RunningRange(self.decay, *own)

    def _range(self, site: str, groups: int) -> tuple[int, RunningRange]:
        """How many ranges run here, and these: one from when on another number of them is asked for than before."""
        if _key(site, groups) not in self.running:
            others = [key for key in self.running if _parts(key)[0] == site]
            groups = 1 if others else groups
            for key in others:
                if key != _key(site, 1):
                    del self.running[key]
        return groups, self.running.setdefault(_key(site, groups), RunningRange(self.decay))

    def _groups(self, reading: Reading, x: Tensor) -> tuple[int, int, bool]:
        """The dim of what shares a range, how many slices it is cut into, and whether these take turns."""
        if is_map(reading, x):
            return 1, self._slices(x.shape[1]), False
        heads = heads_of(x)
        if heads is not None:
            return 0, heads, True
        if x.dim() == 4:
            return 1, max(1, x.shape[1]), False
        return -1, self._slices(x.shape[-1]) if x.dim() else 1, False

    def _slices(self, channels: int) -> int:
        most = max(1, round(channels / self.slice))
        return next(count for count in range(most, 0, -1) if channels % count == 0)
