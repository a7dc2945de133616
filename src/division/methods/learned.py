"""What a method learns while training: numbers by site, gathered on the device and read once in a while."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from division.ranks import mean_over_ranks
from division.rules import Reading
from division.saved import Saved
from division.sites import Sites

_KEYS = {"steps", "sites", "shares"}


class Statistics:
    """Sums by site of numbers that lie on some device; nothing waits for the device before :meth:`read`."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, site: str, *values: Tensor) -> None:
        """Count in one value each of the quantities that are gathered here, on one device, of the same shapes each time."""
        row = torch.cat([value.detach().float().reshape(-1) for value in values])
        found = self._sums.get(site)
        self._sums[site] = (row, 1) if found is None else (found[0] + row, found[1] + 1)

    def read(self) -> dict[str, tuple[float, ...]]:
        """The mean of each quantity by site, over all processes, and begin anew.

        Waits once for each device. Sites with a value that isn't finite, as after an overflow, are left out.
        """
        sums, self._sums = self._sums, {}
        names = sorted(sums)
        if not names:
            return {}
        by_device: dict[torch.device, list[str]] = {}
        for name in names:
            by_device.setdefault(sums[name][0].device, []).append(name)
        rows: dict[str, Tensor] = {}
        for own in by_device.values():
            flat = torch.cat([sums[name][0] for name in own]).double().cpu()
            rows |= dict(zip(own, flat.split([len(sums[name][0]) for name in own]), strict=True))
        means = torch.cat([rows[name] / sums[name][1] for name in names])
        labels = [f"{name}[{i}]" for name in names for i in range(len(rows[name]))]
        agreed = mean_over_ranks(labels, means).split([len(rows[name]) for name in names])
        found = {name: tuple(row.tolist()) for name, row in zip(names, agreed, strict=True)}
        return {name: values for name, values in found.items() if all(map(math.isfinite, values))}


class Learned:
    """What one method object has learned so far.

    Attributes:
        sites: names the places.
        seen: what is being gathered.
        steps: steps in which gradients were seen.
        values: numbers by site.
        shares: packed bytes over raw bytes by site, of the last code made there.
    """

    def __init__(self) -> None:
        self.sites = Sites()
        self.seen = Statistics()
        self.steps = 0
        self.values: dict[str, tuple[float, ...]] = {}
        self.shares: dict[str, float] = {}

    def note_bytes(self, site: str, saved: Saved, packed_bytes: int | None) -> None:
        """Remember how large a code came out, the tensor's own size where it was left; nothing of one that is shared."""
        if packed_bytes is None:
            self.shares[site] = 1.0
        elif packed_bytes:
            self.shares[site] = packed_bytes / saved.tensor.nbytes

    def expected_bytes(self, reading: Reading, saved: Saved) -> int | None:
        """Bytes of a code here, if one was made before."""
        site = self.sites.site(saved)
        share = None if site is None else self.shares.get(site)
        return None if share is None else round(share * saved.tensor.nbytes)

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, as plain data; not what is being gathered."""
        values = {site: list(row) for site, row in self.values.items()}
        return {"steps": self.steps, "sites": values, "shares": dict(self.shares)}

    def load_state_dict(self, state: Any, method: str, count: int | None) -> None:
        """Take over what :meth:`state_dict` returned.

        Args:
            state: the state.
            method: whose it is, for messages.
            count: numbers of a site; None where they differ.

        Raises:
            ValueError: not such a state, or one of another model.
        """
        if not (isinstance(state, Mapping) and set(state) == _KEYS and _counts(state["steps"])):
            raise ValueError(f"got {_shown(state)} as what {method!r} learned, expected a mapping with {sorted(_KEYS)}")
        rows, shares = state["sites"], state["shares"]
        right = isinstance(rows, Mapping) and isinstance(shares, Mapping) and all(map(_numbers, rows.values()))
        right = right and _numbers(list(shares.values()))
        if not (right and (count is None or all(len(row) == count for row in rows.values()))):
            expected = "numbers" if count is None else f"{count} numbers"
            raise ValueError(f"got sites {_shown(rows)} as what {method!r} learned, expected {expected} for each")
        self.sites.expect([*rows, *shares])
        self.steps = state["steps"]
        self.values = {str(site): tuple(map(float, row)) for site, row in rows.items()}
        self.shares = {str(site): float(share) for site, share in shares.items()}
        self.seen = Statistics()


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _numbers(row: Any) -> bool:
    return isinstance(row, list | tuple) and all(
        isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in row
    )


def _shown(state: Any) -> str:
    text = repr(state)
    return text if len(text) < 80 else f"{text[:76]} ..."
