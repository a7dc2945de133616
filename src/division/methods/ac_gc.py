"""AC-GC: bits by channel from a bound on the error of the gradients."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, linalg

from division.codecs.codec import Codec
from division.codecs.group import Group
from division.methods.learned import Learned, Learner, is_number
from division.methods.method import Gradients, Observer, register
from division.methods.places import BATCHED, is_map
from division.rules import Reading, Use
from division.saved import Saved

LEAST, MOST = 2, 16
#: Of values for which there is no bound.
OTHER_BITS = 8
SOFTMAX_GROUP, LOGS_GROUP = 64, 32
#: Steps that are looked at before the bits are set.
SAMPLES = 10
#: Mean squared error of stochastic rounding, in steps.
ROUNDING = 1 / 6
_CHANNELS = re.compile(r"\.(\d+) channels > ")
_ENTRY = {"step", "bits", "linear", "norm"}
#: The kinds of readers, in the names of what is gathered.
_NORM, _PRODUCT = "norm", "product"
BOUNDS = ("worst", "expected")
#: Of two factors, by node and field: where the other one's gradient is found, among the node's inputs.
_OTHER = {
    ("ConvolutionBackward0", "input"): 1,
    ("AddmmBackward0", "mat1"): 2, ("AddmmBackward0", "mat2"): 1,
    ("MmBackward0", "self"): 1, ("MmBackward0", "mat2"): 0,
    ("BmmBackward0", "self"): 1, ("BmmBackward0", "mat2"): 0,
    ("BaddbmmBackward0", "batch1"): 2, ("BaddbmmBackward0", "batch2"): 1,
}  # fmt: skip


class ChannelBits(Learned):
    """The bits of each channel, by site."""

    def check(self, site: str, row: tuple[float, ...], method: str) -> None:
        """Bits that there are."""
        if not row or any(b not in range(LEAST, MOST + 1) for b in row):
            raise ValueError(f"got bits {list(row)[:4]} … for {site!r}, expected {LEAST} to {MOST}")

    def quantities(self, site: str) -> int:
        """The square of a gradient, the elements, and an error for each channel; one for all features."""
        channels = _CHANNELS.search(site)
        return 2 + (int(channels[1]) if channels else 1)


@register("ac-gc")
@dataclass(frozen=True)
class AcGc(Learner):
    r"""Bits from 2 to 16 by channel, as few as a bound on the error of the gradients allows.

    A channel's values in all samples share a range (codec ``group``, stochastic rounding). They begin with 16 bits.
    Ten steps are looked at, then the bits are set, and again after every ``interval`` steps by the last ten of these.
    The squared error v that an element may have, of a tensor of n elements, is

    - read by a convolution or a product with factor W: ``v = e |gW|^2 / (2 n R |gy|^2)``, R the times that an element is
      used for one output channel: kernel area over stride squared, over groups, 1 of a product;
    - read by batch norm, m elements in each of K channels: ``v_k = e |gx|^2 m / (K w_k^2 s_k^4 G_k^2)``, where w is its
      weight, s the inverse standard deviation, and ``G_k = |gw_k| + sqrt(m) |gy_k|``;

    and the bits are the fewest with ``step^2 / 6 <= v``; of several readers the strictest counts. Either follows
    from the Cauchy-Schwarz inequality: however the errors fall, the squared error of the gradient is at most e times the
    square of that gradient, half of it in the first case. Independent errors add up to far less, about 1/(2 m) and 1/m of
    it. With ``bound="expected"`` those are held to e instead: the first is then ``e |gW|^2 / (F |gy|^2)``, F the elements of W for one
    output, and ``G_k^2 = gw_k^2 + |gy_k|^2``.

    The paper has maps alone. Features of rows and tokens, the last dim, are channels here, but for one thing: they
    have one width in common, since there are thousands of them. Batch norm's formula is derived here; the paper's code
    has another upper estimate in the place of G. It rounds to the nearest, with a sign bit where a value is negative; a
    range from the least to the greatest value needs no sign, and stochastic rounding is unbiased. What else
    backward reads has no bound, and 8 bits.

    What it learned is the same in every process of a data-parallel training. A prediction takes the bits that have been
    learned, the most where there are none.

    Source: AC-GC (Evans and Aamodt, NeurIPS 2021).

    Args:
        eps_bits: e is ``2 ** -eps_bits``; 0 as in the published settings.
        interval: steps from one setting of the bits to the next.
        bound: ``"worst"`` or ``"expected"``, as above.

    Raises:
        ValueError: a setting out of range.

    Example:
        >>> AcGc(eps_bits=2)
        AcGc(eps_bits=2, interval=100, bound='worst')
    """

    eps_bits: float = 0
    interval: int = 100
    bound: str = "worst"
    learned: ChannelBits = field(default_factory=ChannelBits, init=False, repr=False, compare=False)
    entries: list[dict[str, float]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        number = isinstance(self.eps_bits, int | float) and not isinstance(self.eps_bits, bool)
        if not number or not -64 <= self.eps_bits <= 64:
            raise ValueError(
                f"got eps_bits={self.eps_bits!r} for ac-gc, expected a number from -64 to 64: e = 2**-eps_bits"
            )
        if not isinstance(self.interval, int) or isinstance(self.interval, bool) or self.interval < 1:
            raise ValueError(f"got interval={self.interval!r} for ac-gc, expected an integer of at least 1")
        if self.bound not in BOUNDS:
            raise ValueError(f"got bound={self.bound!r} for ac-gc, expected one of {BOUNDS}")

    def log(self) -> list[dict[str, float]]:
        """The average bits an element each time they were set.

        Returns:
            ``{"step", "bits", "linear", "norm"}`` each: after how many steps, and the average over all elements, over
            those that only convolutions and products read, and over those that batch norms read, if there are any.
            What has no bound doesn't count.
        """
        return [dict(entry) for entry in self.entries]

    @property
    def settling(self) -> bool:
        """Until the bits were set."""
        return not self.learned.values

    def begin_step(self) -> None:
        """Set the bits once in a while."""
        done = self.learned.steps
        self.learned.steps += 1
        if done == SAMPLES or (done and done % self.interval == 0):
            self._settle(done)

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``group`` by channel, or along what one softmax after another was made."""
        x = saved.tensor
        if reading.logs:
            return Group(OTHER_BITS, LOGS_GROUP, "plane" if is_map(reading, x) else -1)
        if reading.along is not None:
            return Group(OTHER_BITS, SOFTMAX_GROUP, reading.along)
        if x.dim() < 2:
            return Group(OTHER_BITS, None, "tensor")
        bits: tuple[int, ...] = (OTHER_BITS,)
        if _is_bounded(reading, saved):
            bits = tuple(map(int, self.learned.values.get(self._site_of(reading, saved), (MOST,))))
        return _by_channel(bits, _along(reading, saved))

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        """In the steps that are looked at: each channel's range now, and what its bound is made of in backward."""
        step, x = self.learned.steps, saved.tensor
        if not (step <= SAMPLES or (step - 1) % self.interval >= self.interval - SAMPLES):
            return None
        if x.dim() < 2 or not x.numel() or not _is_bounded(reading, saved):
            return None
        if _by_channel((MOST,), _along(reading, saved)).why_not(x) is not None:
            return None
        site = self._site_of(reading, saved)
        if not site:
            return None
        key = f"{site} > {_NORM if reading.norm else _PRODUCT} {self.learned.sites.site(saved)}"
        return self._of_norm(key, reading, saved) if reading.norm else self._of_product(key, reading, saved)

    def state_dict(self) -> dict[str, Any]:
        """Steps, the bits by tensor, the log, and what is being looked at."""
        return {**super().state_dict(), "log": self.log()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            ValueError: a state that this method can't have written, or one of another model.
        """
        own = dict(state) if isinstance(state, Mapping) else {}
        log = own.pop("log", None)
        if not isinstance(log, list) or not all(map(_is_entry, log)):
            raise ValueError(
                f"got log {log!r} in what 'ac-gc' learned, expected a list of mappings with {sorted(_ENTRY)}"
            )
        super().load_state_dict(own)
        self.entries[:] = [dict(entry) for entry in log]

    def _site_of(self, reading: Reading, saved: Saved) -> str:
        """The name of the tensor, whoever reads it: by the node that made it; by its reader if no parameter is before."""
        x, maker = saved.tensor, saved.tensor.grad_fn
        what = f"{x.shape[1]} channels" if is_map(reading, x) else "features"
        made = None if maker is None else self.learned.sites.site(Saved(maker.name(), what, x, saved.module, maker))
        return made or self.learned.sites.site(saved._replace(field=what)) or ""

    def _of_product(self, key: str, reading: Reading, saved: Saved) -> Observer:
        x, node, (axis, dims) = saved.tensor, saved.grad_fn, _along(reading, saved)
        position = _OTHER[saved.node, str(saved.field)]
        share = _squared_range(x, dims, is_map(reading, x)) * abs(getattr(node, "_saved_alpha", 1)) ** 2
        count, used, inputs = x.numel(), 1.0, x.shape[axis]
        convolution = saved.node == "ConvolutionBackward0"
        if convolution:
            used = 1 / node._saved_groups
            inputs //= node._saved_groups
            if not node._saved_transposed:
                used /= math.prod(node._saved_stride)
        worst = self.bound == "worst"

        def observed(grad_inputs: Gradients, grad_outputs: Gradients) -> None:
            other, gradient = grad_inputs[position], grad_outputs[0]
            if other is None or gradient is None:
                return
            area = math.prod(other.shape[2:]) if convolution else 1
            times = 2 * count * used * area if worst else inputs * area
            self.learned.seen.add(key, _square(other), _number(count, gradient), share * times * _square(gradient))

        return observed

    def _of_norm(self, key: str, reading: Reading, saved: Saved) -> Observer:
        x, node, (axis, dims) = saved.tensor, saved.grad_fn, _along(reading, saved)
        apart, channels = is_map(reading, x), x.shape[axis]
        count = x.numel()
        each = count // channels
        eps = getattr(node, "_saved_eps", getattr(node, "_saved_epsilon", 0.0))
        inverse = 1 / (_wide(x).var(dims, correction=0).to(torch.float32) + eps)
        share = _squared_range(x, dims, True) * inverse.square() * (channels / each)
        if getattr(node, "_saved_weight", None) is not None:
            share = share * _wide(node._saved_weight.detach()).square()
        worst = self.bound == "worst"

        def observed(grad_inputs: Gradients, grad_outputs: Gradients) -> None:
            (before, weight), gradient = grad_inputs[:2], grad_outputs[0]
            if before is None or gradient is None:
                return
            most = _square(gradient, dims) * each
            own = most if weight is None else _wide(weight).square()
            found = share * ((own.sqrt() + most.sqrt()).square() if worst else own + most / each)
            error = found if apart else found.mean()
            self.learned.seen.add(key, _square(before), _number(count, gradient), error)

        return observed

    def _settle(self, done: int) -> None:
        """Set the bits by what has been seen, and add to the log."""
        found: dict[str, list[int]] = {}
        sizes: dict[str, float] = {}
        norms: set[str] = set()
        for key, (gradient, count, *errors) in self.learned.seen.read().items():
            site, _, reader = key.partition(" > ")
            bits = [self._bits(gradient, error) for error in errors]
            found[site] = [max(pair) for pair in zip(bits, found.get(site, bits), strict=True)]
            sizes[site] = max(count, sizes.get(site, 0.0))
            if reader.startswith(_NORM):
                norms.add(site)
        if not found:
            return
        self.learned.values |= {site: tuple(map(float, bits)) for site, bits in found.items()}
        averages: dict[str, float] = {"step": done}
        for name, sites in (("bits", set(found)), ("linear", set(found) - norms), ("norm", norms)):
            of = [(sizes[site], sum(bits) / len(bits)) for site, bits in found.items() if site in sites]
            if of:
                averages[name] = sum(count * bits for count, bits in of) / sum(count for count, _ in of)
        self.entries.append(averages)

    def _bits(self, gradient: float, error: float) -> int:
        """The fewest bits.

        Args:
            gradient: its square.
            error: its squared error for a squared error of the elements of as much as the square of their range.
        """
        if not gradient > 0:
            return MOST
        steps = math.sqrt(error * ROUNDING / gradient * 2**self.eps_bits)
        return min(max(math.ceil(math.log2(steps + 1)), LEAST), MOST)


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or not {"step", "bits"} <= set(entry) <= _ENTRY:
        return False
    return all(map(is_number, entry.values()))


def _is_bounded(reading: Reading, saved: Saved) -> bool:
    """Whether there is a bound for this use."""
    if reading.norm:
        return reading.use is Use.SMOOTH and reading.axes == "map" and "BatchNorm" in saved.node
    return (saved.node, str(saved.field)) in _OTHER and saved.grad_fn is not None


def _along(reading: Reading, saved: Saved) -> tuple[int, tuple[int, ...]]:
    """The dim of channels or features, and all others, which samples and places make up."""
    x = saved.tensor
    axis = 1 if is_map(reading, x) else x.dim() - 1
    if x.dim() == 3 and saved.node in BATCHED and x.stride(1) == 1 and x.stride(2) > 1:
        axis = 1  # keys, transposed
    return axis, tuple(d for d in range(x.dim()) if d != axis)


def _squared_range(x: Tensor, dims: tuple[int, ...], apart: bool) -> Tensor:
    """The square of the range of each channel, float32 ``[channels]``; their mean, 0-dim, if not ``apart``."""
    square = (x.amax(dims).to(torch.float32) - x.amin(dims).to(torch.float32)).square()
    return square if apart else square.mean()


def _square(gradient: Tensor, dims: tuple[int, ...] | None = None) -> Tensor:
    """The sum of the squares."""
    return linalg.vector_norm(gradient, dim=dims, dtype=torch.promote_types(gradient.dtype, torch.float32)).square()


def _wide(x: Tensor) -> Tensor:
    """In float32 at the least, where squares of half precision would overflow."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _number(value: float, like: Tensor) -> Tensor:
    return like.new_full((), value, dtype=torch.float32)


@lru_cache(maxsize=4096)
def _by_channel(bits: tuple[int, ...], along: tuple[int, tuple[int, ...]]) -> Group:
    return Group(bits, None, along[1])
