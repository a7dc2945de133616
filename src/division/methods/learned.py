"""What a method learns while training: numbers by site, gathered on the device and read once in a while."""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from division.methods.method import Method
from division.ranks import agreed, several_ranks
from division.rules import Reading
from division.saved import Saved
from division.sites import Sites

_KEYS = {"steps", "sites", "shares", "parameters", "gathering", "seen"}
_MOST = torch.finfo(torch.float32).max  # that a sum can be


class Statistics:
    """Sums by site of numbers, none below 0, that lie on some device; nothing waits for the device before :meth:`read`."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # of each quantity, after the number of values

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, site: str, *values: Tensor) -> None:
        """Count in one value each of the quantities that are gathered here, on one device, of the same shapes each time.

        If one of them isn't finite, as after an overflow, none counts.
        """
        row = torch.cat([value.detach().float().reshape(-1) for value in values])
        row = torch.cat([torch.ones_like(row[:1]), row])
        row = torch.where(row.isfinite().all(), row, 0.0)
        found = self._sums.get(site)
        self._sums[site] = row if found is None else found.to(row.device) + row

    def read(self) -> dict[str, tuple[float, ...]]:
        """The mean of each quantity by site, over all processes, and begin anew.

        Waits once for each device. Every process has to call it equally often.
        """
        rows, self._sums = self._rows(), {}
        found = agreed({site: row[1:] / row[0] for site, row in rows.items() if row[0] > 0})
        values = {site: tuple(row.tolist()) for site, row in found.items()}
        return {site: row for site, row in values.items() if all(map(math.isfinite, row))}

    def _rows(self) -> dict[str, Tensor]:
        """Numbers of values and their sums, float64 on the CPU."""
        by_device: dict[torch.device, list[str]] = {}
        for name in sorted(self._sums):
            by_device.setdefault(self._sums[name].device, []).append(name)
        found: dict[str, Tensor] = {}
        for names in by_device.values():
            sums = [self._sums[name] for name in names]
            flat = torch.cat(sums).double().cpu().split([len(row) for row in sums])
            found |= dict(zip(names, flat, strict=True))
        return found

    def state_dict(self) -> dict[str, list[Any]]:
        """What is gathered, as plain data: how many values by site, and their sums."""
        return {site: [int(row[0]), *row[1:].tolist()] for site, row in sorted(self._rows().items())}

    def load_state_dict(
        self, state: Any, method: str, quantities: Callable[[str], int | None] = lambda site: None
    ) -> None:
        """Take over what :meth:`state_dict` returned.

        Args:
            state: the state.
            method: whose it is, for messages.
            quantities: how many are gathered at a site; None where it isn't known.

        Raises:
            ValueError: not such a state.
        """
        if not (_by_name(state) and all(map(_is_sum, state.values()))):
            raise ValueError(
                f"got {_shown(state)} as what {method!r} gathers, expected a count and sums of at least 0 for each site"
            )
        for site, row in state.items():
            expected = quantities(site)
            if expected is not None and len(row) != 1 + expected:
                raise ValueError(
                    f"got a count and {len(row) - 1} sums at {site!r} as what {method!r} gathers, expected {expected} sums"
                )
        self._sums = {site: torch.tensor(list(map(float, row)), dtype=torch.float32) for site, row in state.items()}


class Learned:
    """What one method object has learned so far.

    Attributes:
        sites: names the places.
        seen: what is being gathered.
        gathering: whether it is, in the present step.
        steps: steps in which gradients were seen.
        values: numbers by site.
        shares: packed bytes over raw bytes by site, of the last code made there.
        numbers: of a site; None where they differ.
        gathered: how many quantities are gathered at each site; None where they differ.
    """

    numbers: ClassVar[int | None] = None
    gathered: ClassVar[int | None] = None

    def __init__(self) -> None:
        self.sites = Sites()
        self.seen = Statistics()
        self.gathering = False
        self.steps = 0
        self.values: dict[str, tuple[float, ...]] = {}
        self.shares: dict[str, float] = {}

    def complete(self) -> bool:
        """Whether there is something gathered to be worked in: after a step that gathered, in all processes alike."""
        return self.gathering or (len(self.seen) > 0 and not several_ranks())

    def begin_step(self, interval: int) -> None:
        """Count a step; the first, the second, the fourth, … and then every ``interval``-th gathers."""
        self.steps += 1
        n = self.steps
        self.gathering = n % interval == 0 or (n < interval and n & (n - 1) == 0)

    def note_bytes(self, site: str, saved: Saved, packed_bytes: int | None) -> None:
        """Remember how large a code came out, the tensor's own size where it was left; nothing of one that is shared."""
        if packed_bytes is None:
            self.shares[site] = 1.0
        elif packed_bytes:
            self.shares[site] = packed_bytes / saved.tensor.nbytes

    def expected_bytes(self, reading: Reading, saved: Saved) -> int | None:
        """Bytes of a code here, if one was made before."""
        site = self.sites.site(saved) if self.shares else None
        share = None if site is None else self.shares.get(site)
        return None if share is None else round(share * saved.tensor.nbytes)

    def state_dict(self) -> dict[str, Any]:
        """All that was learned and is being gathered, as plain data."""
        return {
            "steps": self.steps,
            "sites": {site: list(row) for site, row in self.values.items()},
            "shares": dict(self.shares),
            "parameters": {name: list(shape) for name, shape in self.sites.shapes().items()},
            "gathering": self.gathering,
            "seen": self.seen.state_dict(),
        }

    def check(self, site: str, row: tuple[float, ...], method: str) -> None:
        """Refuse numbers of a site that can't have been learned, before anything is taken over.

        Raises:
            ValueError: such numbers.
        """
        return

    def quantities(self, site: str) -> int | None:
        """How many are gathered at a site; None where it isn't known."""
        return self.gathered

    def load_state_dict(self, state: Any, method: str) -> None:
        """Take over what :meth:`state_dict` returned.

        Args:
            state: the state.
            method: whose it is, for messages.

        Raises:
            ValueError: not such a state, or one of another model.
        """
        if not (isinstance(state, Mapping) and set(state) == _KEYS and _counts(state["steps"])):
            raise ValueError(f"got {_shown(state)} as what {method!r} learned, expected a mapping with {sorted(_KEYS)}")
        rows, shares, shapes = state["sites"], state["shares"], state["parameters"]
        right = _by_name(rows) and _by_name(shares) and all(map(_numbers, rows.values()))
        right = right and _numbers(list(shares.values()))
        if not (right and (self.numbers is None or all(len(row) == self.numbers for row in rows.values()))):
            expected = "numbers" if self.numbers is None else f"{self.numbers} numbers"
            raise ValueError(f"got sites {_shown(rows)} as what {method!r} learned, expected {expected} for each")
        if not (_by_name(shapes) and all(map(_is_shape, shapes.values()))):
            raise ValueError(f"got parameters {_shown(shapes)} as what {method!r} learned, expected a shape for each")
        gathering = flag(state["gathering"], "gathering", method)
        values = {site: tuple(map(float, row)) for site, row in rows.items()}
        for site, row in values.items():
            self.check(site, row, method)
        seen = Statistics()
        seen.load_state_dict(state["seen"], method, self.quantities)
        self.sites.expect([*rows, *shares], {name: tuple(shape) for name, shape in shapes.items()})
        self.steps, self.gathering, self.seen = state["steps"], gathering, seen
        self.values = values
        self.shares = {site: float(share) for site, share in shares.items()}


class Linked(Learned):
    """What is learned where several layers read one tensor, which has one code.

    Attributes:
        links: of a site whose tensor another one codes: that one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, str] = {}

    def root(self, saved: Saved) -> str | None:
        """The site that counts for a tensor: of the first layer that read it in this step."""
        site = self.sites.site(saved)
        if site is None:
            return None
        root = self.sites.root(site, saved)
        if root != site:
            self.links[site] = root
        return root

    def state_dict(self) -> dict[str, Any]:
        """With the links."""
        return {**super().state_dict(), "links": dict(self.links)}

    def load_state_dict(self, state: Any, method: str) -> None:
        """Take over what :meth:`state_dict` returned."""
        own = dict(state) if isinstance(state, Mapping) else {}
        links = strings(own.pop("links", None))
        super().load_state_dict(own, method)
        self.links = links


@dataclass(frozen=True)
class Learner(Method):
    """Base of the methods that learn, by sites.

    Attributes:
        learned: what was learned; takes no part in comparisons.
    """

    learns: ClassVar[bool] = True
    learned: Learned = field(default_factory=Learned, init=False, repr=False, compare=False)

    def bind(self, parameters: Mapping[str, Tensor], optimizer: Optimizer | None = None) -> None:
        """Places are named by these parameters."""
        self.learned.sites.bind(parameters)

    def expected_bytes(self, reading: Reading, saved: Saved) -> int | None:
        """As many as the last code here took, by its share of the tensor's; None where sizes are not learned."""
        return self.learned.expected_bytes(reading, saved)

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, by site, and is being gathered; empty where nothing is learned."""
        return self.learned.state_dict() if self.learns else super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            ValueError: a state that this method can't have written, or one of another model.
        """
        if self.learns:
            self.learned.load_state_dict(state, self.name)
        else:
            super().load_state_dict(state)


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and all(map(_counts, shape))


def _is_sum(row: Any) -> bool:
    return (
        isinstance(row, list | tuple)
        and len(row) > 1
        and _counts(row[0])
        and row[0] <= _MOST
        and all(is_number(x) and 0 <= x <= _MOST for x in row[1:])
    )


def is_number(x: Any) -> bool:
    """Whether this is a finite number that a float can be."""
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= sys.float_info.max


def _by_name(state: Any) -> bool:
    return isinstance(state, Mapping) and all(isinstance(name, str) for name in state)


def flag(value: Any, name: str, method: str) -> bool:
    """Whether something is so, out of a state.

    Raises:
        ValueError: neither yes nor no.
    """
    if not isinstance(value, bool):
        raise ValueError(f"got {name}={_shown(value)} as what {method!r} learned, expected True or False")
    return value


def strings(state: Any) -> dict[str, str]:
    """A mapping of sites to sites out of a state.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(state, Mapping) or not all(isinstance(x, str) for pair in state.items() for x in pair):
        raise ValueError(f"got {_shown(state)} in a learned state, expected sites by site")
    return dict(state)


def _numbers(row: Any) -> bool:
    return isinstance(row, list | tuple) and all(map(is_number, row))


def _shown(state: Any) -> str:
    text = repr(state)
    return text if len(text) < 80 else f"{text[:76]} ..."
