"""ActNN: groups of 256 in a few bits, as many for each layer and sample as its gradient's variance calls for."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import floor, gcd
from typing import Any, ClassVar

import torch
from torch import Tensor

from division.codecs.codec import Codec
from division.codecs.elsewhere import LEAST as WORTH_MOVING
from division.codecs.elsewhere import Elsewhere
from division.codecs.group import Group
from division.codecs.mixed import Mixed
from division.methods.allocate import allocate, error
from division.methods.learned import Learner, Linked, strings
from division.methods.method import Gradients, Observer, register
from division.methods.weight_error import is_layer, layer_of, norm
from division.private import signed_number
from division.rules import Reading
from division.saved import Saved

LEVELS = ("L0", "L1", "L2", "L3", "L4")
#: The average of the levels that have one.
BITS = {"L1": 4.0, "L2": 4.0, "L3": 2.0, "L4": 2.0}
LEAST, MOST = 1, 8
#: Variance of rounding at random, in squared steps: the mean of f (1 - f) over fractions.
_ROUNDING = 1 / 6
_TINY = torch.finfo(torch.float32).tiny
_OF = " > "  # between a site and that whose width it takes over


class Widths(Linked):
    """The average width by site, and what it comes from."""

    numbers: ClassVar[int | None] = 1
    gathered: ClassVar[int | None] = 3

    def __init__(self) -> None:
        super().__init__()
        self.leads: dict[str, str] = {}  # of a norm: the layer executed just before
        self.last: str | None = None

    def state_dict(self) -> dict[str, Any]:
        """With whose width each takes over."""
        return {**super().state_dict(), "leads": dict(self.leads)}

    def check(self, site: str, row: tuple[float, ...], method: str) -> None:
        """A width that there is."""
        if not LEAST <= row[0] <= MOST:
            raise ValueError(f"got a width of {row[0]} bits in what {method!r} learned, expected {LEAST} to {MOST}")

    def load_state_dict(self, state: Any, method: str) -> None:
        """Take over what :meth:`state_dict` returned."""
        own = dict(state) if isinstance(state, Mapping) else {}
        leads = strings(own.pop("leads", None))
        super().load_state_dict(own, method)
        self.leads = leads

    def refresh(self, bits: float) -> None:
        """Work what was gathered into new widths, under a budget of so many bits on average."""
        items: dict[str, list[float]] = {}
        samples = 0
        for key, (sensitivity, elements, rows) in self.seen.read().items():
            site, _, owner = key.partition(_OF)
            if owner not in ("", self.owner(site)):  # as other processes saw it
                self.leads[site] = owner
            item = items.setdefault(owner or site, [0.0, 0.0])
            item[0] += sensitivity
            item[1] += elements
            samples = gcd(samples, round(rows))
        items = {site: item for site, item in items.items() if item[1] > 0}
        if not items:
            return
        sensitivities, weights = zip(*items.values(), strict=True)
        ladder = _ladder(samples, bits)
        budget = math.fsum(weights) * bits
        found = allocate(sensitivities, weights, budget, ladder, errors=[_left(width) for width in ladder])
        self.values |= {site: (width,) for site, width in zip(items, found.widths, strict=True)}
        own = {site: self.owner(site) for site in (*self.leads, *self.links)}
        self.values |= {site: self.values[lead] for site, lead in own.items() if lead in self.values}

    def owner(self, site: str) -> str:
        """The site whose width another takes over, or the site itself."""
        for _ in range(len(self.links) + len(self.leads)):
            lead = self.links.get(site) or self.leads.get(site)
            if lead is None or lead == site:
                break
            site = lead
        return site


def _ladder(samples: int, bits: float) -> tuple[float, ...]:
    """Averages in quarters of a bit that so many samples can have, and the one asked for."""
    quarters = [*(q / 4 for q in range(4 * LEAST, 4 * MOST + 1)), bits]
    return tuple(sorted({floor(samples * q + 1e-9) / samples for q in quarters}))


def _left(width: float) -> float:
    """What an average width leaves: some samples have the whole width below it, the others that above."""
    below, share = floor(width), width - floor(width)
    return (1 - share) * error(below) + (share * error(below + 1) if share else 0.0)


@register("actnn")
@dataclass(frozen=True)
class ActNN(Learner):
    """Inputs of convolutions, linear layers and norms in groups of 256, unbiased; masks and signs exact.

    Levels, as in the paper:

    - ``L0``: masks, signs and indices alone.
    - ``L1``: inputs of convolutions and linear layers in 4 bits; those of norms as they are.
    - ``L2``: those of norms in 4 bits too.
    - ``L3``: 2 bits on average. Within a layer samples share them by their ranges (codec ``mixed``); layers share them by
      the ranges of their inputs and the squared norm of their last gradients, so that the variance of the gradient is
      least. The input of a norm has the width of the layer that ran just before, and counts in its budget; behind a
      layer whose own input is not coded, such as the first, it has the average.
    - ``L4``: ``L3``, with the codes kept elsewhere as ``offload`` does.

    The sensitivity of a layer stands for the variance of its weight's gradient where its input has one bit: ``1/6`` of the
    mean squared range of its groups, samples weighted by the squares of their gradients, over the elements that are not 0
    (:func:`division.gradient_variance` has the variance exactly). It is gathered in the first, second, fourth, … step
    and then every ``interval``, and read once, when the next step begins; widths until then are the average. A tensor
    that several layers read is coded once, for the sum of what they need.

    The variance is that of the layers' own gradients. Noise in the input of a batch norm goes on to the layers before it;
    widths of its own, by the variance of its weight's gradient, made the whole gradient worse by orders of magnitude on a
    small ResNet-18: what matters there is not its own gradient. Copying is what the released code does, and was best.

    Names: ``actnn``, ``actnn-L0`` to ``actnn-L4``, ``actnn-1.5`` for other averages.

    Source: ActNN (Chen et al., ICML 2021), sections 4 and 5. Per-sample gradient norms of the data set's last epoch, an
    option there, are not kept.

    Args:
        bits: on average, 1 to 8: any fraction at L3 and L4 (a batch of one sample takes the next whole number below);
            whole at L1 and L2; None for the level's own.
        level: one of those above.
        interval: steps from one refresh of the widths to the next, at least 1.

    Raises:
        ValueError: a setting out of range.

    Example:
        >>> ActNN(bits=1.5)
        ActNN(bits=1.5, level='L3', interval=100)
    """

    suffix: ClassVar[str] = "<level or bits>"
    bits: float | None = None
    level: str = "L3"
    interval: int = 100
    learned: Widths = field(default_factory=Widths, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"got level={self.level!r} for actnn, expected one of {', '.join(LEVELS)}")
        if type(self.interval) is not int or self.interval < 1:
            raise ValueError(f"got interval={self.interval!r} for actnn, expected a number of steps, at least 1")
        if self.bits is None:
            object.__setattr__(self, "bits", BITS.get(self.level))
            return
        number = isinstance(self.bits, int | float) and not isinstance(self.bits, bool)
        if self.level == "L0":
            raise ValueError(f"got bits={self.bits!r} for actnn at L0, which keeps values as they are: expected none")
        if not (number and LEAST <= self.bits <= MOST):
            raise ValueError(f"got bits={self.bits!r} for actnn, expected {LEAST} to {MOST} bits a value on average")
        if not self.learns and self.bits != int(self.bits):
            raise ValueError(
                f"got bits={self.bits!r} for actnn at {self.level}, expected a whole number: only L3 and L4 mix"
            )
        object.__setattr__(self, "bits", float(self.bits))

    @property
    def learns(self) -> bool:  # type: ignore[override]
        """At L3 and L4."""
        return self.level in ("L3", "L4")

    def begin_step(self) -> None:
        """New widths, if sensitivities were gathered; and whether to gather them in this step."""
        learned = self.learned
        if learned.complete():
            assert self.bits is not None
            learned.refresh(self.bits)
        learned.begin_step(self.interval)
        learned.last = None

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``mixed`` by the site's width, or ``group``, for inputs of layers; the rest is left."""
        if self.bits is None or reading.logs or not is_layer(saved, norms=self.level != "L1"):
            return None
        if not self.learns:
            return Group(int(self.bits), 256, "sample")
        site = self.learned.root(saved)
        codec = Mixed(self.bits if site is None else self.width(site))
        x = saved.tensor
        if self.level == "L4" and codec.why_not(x) is None and codec.packed_bytes(x.shape, x.dtype) >= WORTH_MOVING:
            return Elsewhere(codec)
        return codec

    def width(self, site: str) -> float:
        """The bits on average at a site; those of all where nothing was learned yet."""
        row = self.learned.values.get(site)
        assert self.bits is not None
        return self.bits if row is None else row[0]

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        """Now and then, what the rounding of this input costs the gradient."""
        learned = self.learned
        if not is_layer(saved):
            return None
        site = learned.sites.site(saved)
        layer = layer_of(saved) if site is not None and learned.gathering else None
        if site is None or layer is None:
            return None
        x = saved.tensor
        if not layer.norm:
            learned.last = None if packed_bytes is None else learned.owner(site)
        elif packed_bytes and learned.last is not None:
            learned.leads[site] = learned.last
        if packed_bytes is None or (layer.norm and learned.owner(site) == site):
            return None
        elements, samples = (
            torch.full((), float(count), dtype=torch.float32, device=x.device)
            for count in (x.numel() if packed_bytes else 0, x.shape[0])
        )
        spread, owner = None if layer.norm else Mixed().spread(x) * _ROUNDING, learned.owner(site)
        taps = _taps(saved)

        def gather(grad_inputs: Gradients, grad_outputs: Gradients) -> None:
            gradient, weight = grad_outputs[0], grad_inputs[layer.weight]
            if gradient is None or weight is None:
                return
            sensitivity = torch.zeros_like(elements)
            if spread is not None:
                square = norm(gradient.flatten(1), dim=[1]).square()
                own = (spread * square).sum() / square.sum().clamp_min(_TINY)
                sensitivity = own * weight.numel() * layer.variance(gradient) * taps(gradient, weight)
            learned.seen.add(site if owner == site else f"{site}{_OF}{owner}", sensitivity, elements, samples)

        return gather

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "ActNN":
        """``actnn``, ``actnn-<level>`` or ``actnn-<bits>``; ``bits`` as given where the name has none."""
        if block is not None:
            raise ValueError(f"method 'actnn' has no blocks: got block={block}, expected none")
        if suffix in LEVELS or not suffix:
            return cls(bits, suffix or "L3")
        try:
            own = float(suffix)
        except ValueError:
            raise ValueError(
                f"got method 'actnn-{suffix}', expected 'actnn-' and one of {', '.join(LEVELS)} or a number of bits"
            ) from None
        if bits is not None and bits != own:
            raise ValueError(f"got method 'actnn-{suffix}' and bits={bits}, expected one of them")
        return cls(own)


def _taps(saved: Saved) -> Callable[[Tensor, Tensor], float]:
    """From the gradients of output and weight the share of a convolution's taps that meet its input, not what pads it."""
    node, size = saved.grad_fn, saved.tensor.shape[2:]
    if "Convolution" not in saved.node or getattr(node, "_saved_transposed", False) or not size:
        return lambda gradient, weight: 1.0
    strides, paddings, dilations = (
        [signed_number(int(n)) for n in getattr(node, f"_saved_{name}")] for name in ("stride", "padding", "dilation")
    )
    strides, paddings, dilations = (
        own * len(size) if len(own) == 1 else own for own in (strides, paddings, dilations)
    )  # one number is for all dims

    def share(gradient: Tensor, weight: Tensor) -> float:
        found = 1.0
        dims = zip(size, gradient.shape[2:], weight.shape[2:], strides, paddings, dilations, strict=True)
        for n, places, kernel, stride, padding, dilation in dims:
            # Places p of tap k with 0 <= p * stride + k * dilation - padding < n.
            shifts = [k * dilation - padding for k in range(kernel)]
            inside = sum(max(0, min(places, -((s - n) // stride)) - max(0, -(s // stride))) for s in shifts)
            found *= inside / max(1, kernel * places)
        return found

    return share
