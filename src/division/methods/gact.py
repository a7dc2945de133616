"""GACT: bits for each saved tensor of any network, by how much its code disturbs the gradient."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from division.code import Key, key_of
from division.codecs.codec import Codec, Packed
from division.codecs.group import Group
from division.methods.allocate import allocate
from division.methods.learned import Learned, Learner
from division.methods.method import Method, Run, register
from division.methods.offload import Offload
from division.private import Storage, storage_of
from division.ranks import agreed
from division.rules import Reading
from division.saved import Saved

LADDER = (1, 2, 4, 8)
GROUP = 256
#: Bits in which a tensor is tried, and those that stand for its exact values.
TRIED, EXACT = 2, 8
#: The released code's levels: average bits, whether they adapt, whether codes are offloaded.
LEVELS = {
    "L1": (4, False, False), "L1.1": (8, False, False), "L1.2": (2, False, False),
    "L2": (4, True, False), "L2.1": (3, True, False), "L2.2": (2, True, False),
    "L3": (4, True, True),
}  # fmt: skip
_ROW = 3  # numbers of a site: sensitivity, elements, bits


class _Measured(Learned):
    """What a :class:`Gact` learned: sensitivity, elements and bits by site.

    Attributes:
        measured: steps done when it was measured last; -1 for never.
    """

    numbers: ClassVar[int | None] = _ROW
    gathered: ClassVar[int | None] = 0
    measured = -1

    def state_dict(self) -> dict[str, Any]:
        """With the step of the last measurement."""
        return {"measured": self.measured, **super().state_dict()}

    def check(self, site: str, row: tuple[float, ...], method: str) -> None:
        """Bits that are tried."""
        if row[2] not in LADDER:
            raise ValueError(f"got {row[2]} bits in what {method!r} learned, expected one of {LADDER}")

    def load_state_dict(self, state: Any, method: str) -> None:
        """Take over what :meth:`state_dict` returned."""
        measured = state.get("measured") if isinstance(state, Mapping) else None
        if type(measured) is not int or measured < -1:
            raise ValueError(f"got measured={measured!r} in what {method!r} learned, expected a step, or -1 for never")
        super().load_state_dict({key: value for key, value in state.items() if key != "measured"}, method)
        self.measured = measured


@register("gact")
@dataclass(frozen=True)
class Gact(Learner):
    """Each saved tensor of any network in 1, 2, 4 or 8 bits, by measured sensitivity; groups of 256 of its elements.

    Every ``interval`` steps, where the loop offers it a step to repeat (:meth:`division.compress.calibrate`, as
    ``division train`` does), it runs three times for each tensor l, from the same random numbers and with the same noise
    elsewhere: g0 and g1 are the gradients of all parameters with l in 2 bits and two draws of noise, g2 with l in 8. With
    ``C_l = (2^2 - 1)^2 * max(|g0 - g1|^2, 2 |g0 - g2|^2, 2 |g1 - g2|^2)`` the widths minimise the sum of
    ``C_l / (2^b_l - 1)^2`` at no more than ``bits`` on average. The other tensors stay in the bits they have, so that
    measuring takes hardly more memory than training. Until then all have ``bits``, rounded down; so have tensors that no
    parameter comes before.

    A tensor that several operations save is one item, as are those of operations that share a parameter. Sensitivities and
    elements are the mean over the processes of a group, whose batches may differ in size, and the widths follow from them:
    the same everywhere.

    Source: GACT (Liu et al., ICML 2022). Its code tries tensors in 1 bit. So coarse a noise enters the gradient of a batch
    norm by its square, and overstates norms by up to a factor of 9 against what they do in 2 bits and more: on a small
    ResNet-18 the rank correlation with the measured effect of coding a tensor alone in 2 bits is then 0.8, and 0.97 for
    what is measured in 2 bits. Average bits count codes alone; offset
    and step of a group are another 0.125 bits an element.

    Names: ``gact``, ``gact-<bits>`` for an average, ``gact-L1`` (fixed 4), ``L1.1`` (fixed 8), ``L1.2`` (fixed 2), ``L2``
    (4 on average), ``L2.1`` (3), ``L2.2`` (2), ``L3`` (``L2``, offloaded).

    Args:
        bits: on average, 1 to 8; a whole number where they don't adapt.
        adaptive: whether widths follow sensitivities.
        interval: steps between measurements, at least 1.

    Raises:
        ValueError: a setting out of range.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
        >>> method, x = Gact(bits=3), torch.randn(32, 64)
        >>> import division
        >>> context = division.compress(method, model=model)
        >>> context.calibrate(lambda: model(x).sum())
        True
        >>> sorted(method.widths())
        ['0.weight: AddmmBackward0 GeluBackward0.self', '2.weight: AddmmBackward0.mat1']
    """

    suffix: ClassVar[str] = "<bits>"
    bits: float = 4.0
    adaptive: bool = True
    interval: int = 1000
    learned: _Measured = field(default_factory=_Measured, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        number = isinstance(self.bits, int | float) and not isinstance(self.bits, bool)
        if not (number and 1 <= self.bits <= LADDER[-1]):
            raise ValueError(f"got method 'gact' with bits={self.bits!r}, expected a number from 1 to 8")
        if not self.adaptive and self.bits != int(self.bits):
            raise ValueError(f"got bits={self.bits!r} with adaptive=False, expected a whole number from 1 to 8")
        if type(self.interval) is not int or self.interval < 1:
            raise ValueError(f"got interval={self.interval!r}, expected an integer of at least 1")

    @property
    def learns(self) -> bool:  # type: ignore[override]
        """Where widths adapt."""
        return self.adaptive

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``group`` in the bits of the place."""
        return _group(self._bits_at(saved), reading)

    def _bits_at(self, saved: Saved) -> int:
        found = self.learned
        site = found.sites.site(saved) if found.values else None
        row = None if site is None else found.values.get(site)
        return math.floor(self.bits) if row is None else int(row[2])

    def widths(self) -> dict[str, int]:
        """Bits by site, as far as they were measured."""
        return {site: int(row[2]) for site, row in self.learned.values.items()}

    def sensitivities(self) -> dict[str, float]:
        """C by site; sites that save one tensor have it together."""
        return {site: row[0] for site, row in self.learned.values.items()}

    def begin_step(self) -> None:
        """Counts the step."""
        self.learned.steps += 1

    def wants_step(self) -> bool:
        """Before the first step, and every ``interval`` steps from then on."""
        found = self.learned
        return self.adaptive and (found.measured < 0 or found.steps - found.measured >= self.interval)

    def calibrate(self, run: Run) -> None:
        """Measures each tensor's sensitivity, three runs for each, and gives out the bits.

        A step whose gradient isn't finite measures nothing: it is due again in the next one.
        """
        found, tensors = self.learned, _Tensors()
        run(_Probe(found.sites.site, self._bits_at, tensors), found.steps)
        own = {
            item: torch.tensor([self._sensitivity(run, tensors, item), tensors.elements(item)], dtype=torch.float64)
            for item in tensors.items()
        }
        rows = agreed(own)  # what this process doesn't save, too
        sensitivity, weight = ([row[column] for row in map(Tensor.tolist, rows.values())] for column in (0, 1))
        finite = [c for c in sensitivity if math.isfinite(c)]
        if not finite:
            return
        # An item that overflows in few bits gets as many as there are, if the budget has them.
        worst = max(finite) * (2 ** LADDER[-1]) ** 4
        sensitivity = [c if math.isfinite(c) else worst for c in sensitivity]
        widths = allocate(sensitivity, weight, self.bits * math.fsum(weight), LADDER).widths
        learned = dict(zip(rows, zip(sensitivity, weight, map(float, widths), strict=True), strict=True))
        found.values = learned | {site: learned[item] for site, item in tensors.item_of.items()}
        found.measured = found.steps

    def _sensitivity(self, run: Run, tensors: "_Tensors", item: str) -> float:
        site, seed = self.learned.sites.site, self.learned.steps
        first, second, exact = (
            run(_Probe(site, self._bits_at, tensors, item, bits, draw), seed)
            for bits, draw in ((TRIED, 1), (TRIED, 2), (EXACT, 0))
        )
        noise, *errors = (_distance(a, b) for a, b in ((first, second), (first, exact), (second, exact)))
        return float((2**TRIED - 1) ** 2 * torch.stack([noise, *(2 * error for error in errors)]).max())

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "Method":  # type: ignore[override]
        """``gact-<bits>`` or ``gact-<level>``; ``gact`` alone takes ``bits`` as given, or 4."""
        if block is not None:
            raise ValueError(f"method 'gact' has no blocks: got block={block}, expected none")
        if suffix and bits is not None:
            raise ValueError(f"got method 'gact-{suffix}' and bits={bits}, expected one of them")
        if suffix in LEVELS:
            average, adaptive, offloaded = LEVELS[suffix]
            method = cls(float(average), adaptive)
            return Offload(method) if offloaded else method
        try:
            return cls(float(suffix or (4 if bits is None else bits)))
        except ValueError as error:
            if suffix:
                raise ValueError(
                    f"got method 'gact-{suffix}', expected 'gact-' and an average from 1 to 8 or a level, one of"
                    f" {', '.join(LEVELS)}"
                ) from error
            raise


class _Tensors:
    """The tensors of a step, by site. Sites that save the same tensor take the same bits: they are one item."""

    def __init__(self) -> None:
        self.item_of: dict[str, str] = {}
        self._elements: dict[str, int] = {}
        self._first: dict[tuple[int, Key], str] = {}
        self._pinned: list[Storage] = []  # so that no other tensor gets one's address

    def add(self, site: str, x: Tensor) -> None:
        """Note that a tensor is saved at a site."""
        storage = storage_of(x)
        self._pinned.append(storage)
        self.item_of.setdefault(site, site)
        key = storage.address, key_of(x)
        if key not in self._first:
            self._first[key] = site
            self._elements[site] = self._elements.get(site, 0) + x.numel()
        item, own = self.item_of[self._first[key]], self.item_of[site]
        if item != own:
            self.item_of |= {each: item for each, old in self.item_of.items() if old == own}

    def items(self) -> list[str]:
        """The items, each by the name of one of its sites, in alphabetical order."""
        return sorted(set(self.item_of.values()))

    def elements(self, item: str) -> int:
        """Elements of the tensors of an item, each counted once."""
        return sum(self._elements.get(site, 0) for site, own in self.item_of.items() if own == item)


@dataclass(frozen=True)
class _Probe(Method):
    """All tensors in the bits they have, but for those of one item; without an item, notes which tensors there are."""

    name: ClassVar[str] = "gact's probe"
    site: Callable[[Saved], str | None]
    bits_at: Callable[[Saved], int]
    tensors: _Tensors
    item: str | None = None
    bits: int = EXACT
    draw: int = 0

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``group``, with noise of its own for the item."""
        site = self.site(saved)
        if self.item is None and site is not None:
            self.tensors.add(site, saved.tensor)
        if site is not None and self.tensors.item_of.get(site) == self.item:
            return _Redrawn(_group(self.bits, reading), self.draw)
        return _group(self.bits_at(saved), reading)


@dataclass(frozen=True)
class _Redrawn(Codec):
    """Another codec, with other noise for each draw."""

    inner: Group
    draw: int
    name: ClassVar[str] = "redrawn"

    @property
    def promises(self) -> frozenset[str]:
        """Those of the inner codec."""
        return self.inner.promises

    def why_not(self, x: Tensor) -> str | None:
        """What the inner codec refuses."""
        return self.inner.why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """Those of the inner codec."""
        return self.inner.packed_bytes(size, dtype)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """The inner codec's code, with the draw's seed."""
        return self.inner.encode(x, seed ^ self.draw)

    def decode(self, packed: Packed) -> Tensor:
        """As the inner codec does."""
        return self.inner.decode(packed)

    @classmethod
    def examples(cls) -> list[Codec]:
        """None: it is made here alone."""
        return []


def _group(bits: int, reading: Reading) -> Group:
    """Groups of the flattened tensor; of softmaxes along theirs, so that one that is NaN leaves the others alone."""
    return Group(bits, GROUP, "tensor" if reading.along is None else reading.along)


def _distance(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Tensor:
    """The squared distance of two gradients, on the CPU: 0-dim, float64."""
    return torch.stack([(x.float() - y.float()).square().sum().double().cpu() for x, y in zip(a, b, strict=True)]).sum()
