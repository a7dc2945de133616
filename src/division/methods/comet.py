"""COMET: error-bounded codes, the bound held to what the gradient can bear."""

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeGuard

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from division.codecs.codec import Codec, Packed
from division.codecs.error_bound import ErrorBound
from division.codecs.sz3 import Sz3
from division.methods.learned import Learner, Linked, Statistics, flag
from division.methods.method import Gradients, Keeping, Observer, register
from division.methods.weight_error import Layer, is_layer, layer_of, norm
from division.rules import Reading, Use
from division.saved import Saved
from division.sites import parameter_name, plain_name

#: The bound before any gradient was seen, and the least and most ever, as shares of the greatest magnitude.
FIRST, LEAST, MOST = 1e-2, 1e-5, 0.25
#: How much more, or less, an error in a gradient may be than independent errors make it.
FACTORS = (0.5, 20.0)
#: Errors that are measured are kept until backward within this share of the bound, which adds 1/64 to their variance, and
#: then take about so many bytes an element.
_OF_ERRORS, _ERROR_BYTES = 1 / 8, 3 / 8
#: Optimizers whose average of gradients is known, in units of a gradient.
_ADAMS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam)
_LINEAR = Reading(Use.LINEAR)


class Probe:
    """What was lost of a layer's input, until its gradient comes.

    Args:
        error: decoded minus exact input.
        bound: of the code.
        of: from the gradient of the layer's output and some input, the gradient of the weight.
    """

    def __init__(self, error: Tensor, bound: float, of: Callable[[Tensor, Tensor], Tensor]) -> None:
        codec = ErrorBound(_OF_ERRORS * bound)
        self._packed: Packed | None = codec.encode(error, 0)
        self.nbytes, self._codec, self._bound, self._of = self._packed.nbytes, codec, bound, of

    def __call__(self, gradient: Tensor) -> tuple[Tensor, float] | None:
        """The mean square of what it causes in the weight's gradient, and bound squared / 3; once, then it is gone."""
        if self._packed is None:
            return None
        error, self._packed = self._codec.decode(self._packed), None
        caused = self._of(gradient, error.to(gradient.dtype))
        return norm(caused).square() / caused.numel(), self._bound**2 / 3


class Bounds(Linked):
    """The bounds by site, and what they come from."""

    numbers: ClassVar[int | None] = 2
    gathered: ClassVar[int | None] = 3

    def __init__(self) -> None:
        super().__init__()
        self.probed: str | None = None
        self.probes = Statistics()
        self._parameters: dict[str, weakref.ref[Tensor]] = {}
        self._optimizer: weakref.ref[Optimizer] | None = None
        self.waiting = False
        self.taken: dict[str, float] | None = None

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {"_parameters": {}, "_optimizer": None}  # held weakly: a copy has its own
        return {**self.__dict__, **own}

    def state_dict(self) -> dict[str, Any]:
        """With the errors that were measured, and the gradients that the optimizer took."""
        own = {
            "probes": self.probes.state_dict(),
            "waiting": self.waiting,
            "taken": self.taken,
        }
        return {**super().state_dict(), **own}

    def check(self, site: str, row: tuple[float, ...], method: str) -> None:
        """Both have to be above 0."""
        if min(row) <= 0:
            raise ValueError(f"got {list(row)} in what {method!r} learned, expected a bound and a factor above 0")

    def load_state_dict(self, state: Any, method: str) -> None:
        """Take over what :meth:`state_dict` returned."""
        own = dict(state) if isinstance(state, Mapping) else {}
        probes, waiting, taken = (own.pop(key, None) for key in ("probes", "waiting", "taken"))
        measured = Statistics()
        measured.load_state_dict(probes, method, lambda site: 2)
        waiting = flag(waiting, "waiting", method)
        if taken is not None and not (isinstance(taken, Mapping) and all(isinstance(x, float) for x in taken.values())):
            raise ValueError(
                f"got taken={taken!r} in what {method!r} learned, expected magnitudes by parameter, or None"
            )
        super().load_state_dict(own, method)
        self.probes, self.waiting = measured, waiting
        self.taken = None if taken is None else dict(taken)

    def bind(self, parameters: Mapping[str, Tensor], optimizer: Optimizer | None) -> None:
        """Take over names, and whose momentum counts."""
        self.sites.bind(parameters)
        self._parameters = {plain_name(name): weakref.ref(x) for name, x in parameters.items()}
        before = None if self._optimizer is None else self._optimizer()
        if optimizer is None or optimizer is before:
            return
        if before is not None:
            _FOLLOWERS[before].discard(self)
        self._optimizer = weakref.ref(optimizer)
        _follow(optimizer, self)

    def note_gradients(self, optimizer: Optimizer) -> None:
        """The gradients as the optimizer is about to take them: accumulated, and in its units where it unscales them itself."""
        if float(getattr(optimizer, "found_inf", None) or 0.0):  # it will take none
            return
        scale = float(getattr(optimizer, "grad_scale", None) or 1.0)
        found = _read({name: _magnitude(x.grad) for name, x in self._alive() if _is_dense(x.grad)})
        self.taken = {name: value / scale for name, value in found.items()}

    def complete(self) -> bool:
        """Whether there are new bounds to be taken: once the optimizer, if one is known, has taken what was gathered."""
        self.waiting = self.waiting or super().complete()
        optimizer = None if self._optimizer is None else self._optimizer()
        return self.waiting and (optimizer is None or self.taken is not None)

    def _alive(self) -> list[tuple[str, Tensor]]:
        found = ((name, ref()) for name, ref in self._parameters.items())
        return [(name, x) for name, x in found if x is not None and type(x) in (Tensor, Parameter)]

    def momenta(self) -> dict[str, tuple[float, float]]:
        """By parameter, the mean magnitude of its momentum as so many gradients, and that of its last gradient.

        Only of optimizers that are known: others keep by the same name what is no sum of gradients.
        """
        optimizer = None if self._optimizer is None else self._optimizer()
        if optimizer is None:
            return {}
        groups = {id(x): group for group in optimizer.param_groups for x in group["params"]}
        found: dict[str, Tensor] = {}
        for name, x in self._alive():
            state, group = optimizer.state.get(x, {}), groups.get(id(x), {})
            if isinstance(optimizer, torch.optim.SGD):
                momentum, weight = state.get("momentum_buffer"), 1 - float(group.get("dampening", 0.0))
            elif isinstance(optimizer, _ADAMS):
                momentum, weight = state.get("exp_avg"), 1 - float(group["betas"][0]) if group else 0.0
            else:
                break
            if _is_dense(momentum) and weight > 0:
                found[name] = _magnitude(momentum) / weight
        read = _read(found)
        taken = self.taken or {}
        return {name: (value, taken.get(name, math.nan)) for name, value in read.items()}

    def refresh(self, share: float) -> None:
        """Work what was gathered into new bounds."""
        momenta, self.waiting, self.taken = self.momenta(), False, None
        factors = {site: row[1] for site, row in self.values.items()}
        for site, (caused, foretold) in self.probes.read().items():
            if caused > 0 and foretold > 0:
                square = caused / foretold
                # Batches differ: a few of flat images make most of it, so that what was seen before counts as much.
                square = (square + factors[site] ** 2) / 2 if site in factors else square
                factors[site] = min(max(math.sqrt(square), FACTORS[0]), FACTORS[1])
        bounds: dict[str, float] = {}
        for site, (variance, gradient, greatest) in self.seen.read().items():
            momentum, taken = momenta.get(parameter_name(site), (gradient, gradient))
            # What backward sees may be scaled, and a part of what the optimizer gets: the momentum in its units.
            scale = gradient / taken if taken > 0 and gradient > 0 else 1.0
            error = share * momentum * scale
            if variance > 0 and error > 0:
                wanted = error * math.sqrt(3 / variance) / factors.get(site, 1.0)
                bounds[site] = min(max(wanted, LEAST * greatest), MOST * greatest)
        for site, root in self.links.items():
            if site in bounds:  # the root may be a norm that takes no gradient
                bounds[root] = min(bounds[site], bounds.get(root, math.inf))
        bounds |= {site: bounds[root] for site, root in self.links.items() if site in bounds and root in bounds}
        self.values |= {site: (bound, factors.get(site, 1.0)) for site, bound in bounds.items() if bound > 0}

    def next_probe(self) -> None:
        """The next of the sites, in turns, is the one whose error is measured."""
        sites = sorted(self.values)
        self.probed = sites[self.steps % len(sites)] if sites else None


_FOLLOWERS: "weakref.WeakKeyDictionary[Optimizer, weakref.WeakSet[Bounds]]" = weakref.WeakKeyDictionary()


def _follow(optimizer: Optimizer, bounds: Bounds) -> None:
    """Note gradients before the optimizer's steps: one hook for each, however many follow it and end."""
    if optimizer not in _FOLLOWERS:
        followers = _FOLLOWERS[optimizer] = weakref.WeakSet()
        optimizer.register_step_pre_hook(partial(_before_step, followers))
    _FOLLOWERS[optimizer].add(bounds)


def _before_step(followers: "weakref.WeakSet[Bounds]", optimizer: Optimizer, *_: Any) -> None:
    for bounds in list(followers):
        if bounds.gathering or bounds.waiting:
            bounds.note_gradients(optimizer)


def _is_dense(x: Any) -> TypeGuard[Tensor]:
    """Whether this is an ordinary tensor: gradients of embeddings may be sparse."""
    return isinstance(x, Tensor) and x.layout is torch.strided


def _magnitude(x: Tensor) -> Tensor:
    """The mean magnitude, 0-dim, float32."""
    return norm(x, 1).float() / max(1, x.numel())


def _read(found: dict[str, Tensor]) -> dict[str, float]:
    """The values, waiting once for each device."""
    by_device: dict[torch.device, list[str]] = {}
    for name, x in found.items():
        by_device.setdefault(x.device, []).append(name)
    return {
        name: value
        for names in by_device.values()
        for name, value in zip(names, torch.stack([found[name] for name in names]).tolist(), strict=True)
    }


@register("comet")
@dataclass(frozen=True)
class Comet(Learner):
    """Inputs of convolutions, linear layers and norms within a bound of what they were, as wide as the gradient can bear.

    The bound of a layer is what keeps the standard deviation of the error in its weight's gradient at ``share`` of the mean
    magnitude of its momentum (:func:`division.methods.weight_error.layer_of` has the model), within 1e-5 to 0.25 of the
    input's greatest magnitude. It is taken from the gradients of one step: of the first, second, fourth, … and then every
    ``interval``; before, it is 0.01 of the greatest magnitude. In each step the error is measured of one layer, in turns,
    and where it is more than the model says, as of maps with flat areas, the next bound is less; what was lost there is kept
    until backward in about 3 bits an element (the report's ``learning_bytes``). Give :class:`division.compress` the model and the optimizer:
    without the optimizer's momentum the last gradient stands for it, whose magnitude is less.

    Codes are the codec ``error_bound``'s, of as many bytes as the values take. Names: ``comet``; ``comet-0.05`` for another
    share; ``comet-sz3`` for codes of SZ3. Other tensors whose values backward reads are left as they are. A tensor that
    several layers read has the least of their bounds.

    Source: COMET (Jin et al., VLDB 2022; arXiv 2011.09017), which codes inputs of convolutions alone and says nothing of
    linear layers and norms; its formula is known from memory and was derived anew.

    Args:
        share: of the momentum, above 0.
        interval: steps from one refresh of the bounds to the next, at least 1.
        norms: whether inputs of norms are coded too.
        coder: ``"error_bound"`` or ``"sz3"``.

    Raises:
        ValueError: a setting out of range.
        ImportError: ``"sz3"`` without the package pysz.

    Example:
        >>> Comet(interval=100)
        Comet(share=0.01, interval=100, norms=True, coder='error_bound')
    """

    suffix: ClassVar[str] = "<share>"
    share: float = 0.01
    interval: int = 1000
    norms: bool = True
    coder: str = "error_bound"
    learned: Bounds = field(default_factory=Bounds, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not (isinstance(self.share, int | float) and 0 < self.share < math.inf):
            raise ValueError(f"got share={self.share!r} for comet, expected a finite number above 0, such as 0.01")
        if isinstance(self.interval, bool) or not (isinstance(self.interval, int) and self.interval >= 1):
            raise ValueError(f"got interval={self.interval!r} for comet, expected a number of steps, at least 1")
        if self.coder not in ("error_bound", "sz3"):
            raise ValueError(f"got coder={self.coder!r} for comet, expected 'error_bound' or 'sz3'")
        self._codec(FIRST, True)

    def _codec(self, bound: float, relative: bool) -> Codec:
        return (Sz3 if self.coder == "sz3" else ErrorBound)(bound, relative)

    def bound(self, site: str) -> float | None:
        """The bound at a site; None where no gradient was seen yet."""
        row = self.learned.values.get(site)
        return None if row is None else row[0]

    def bind(self, parameters: Mapping[str, Tensor], optimizer: Optimizer | None = None) -> None:
        """Learn the names of the parameters, and whose momentum counts."""
        self.learned.bind(parameters, optimizer)

    def begin_step(self) -> None:
        """New bounds, if gradients were gathered; and whether to gather them in this step."""
        learned = self.learned
        if learned.complete():
            learned.refresh(self.share)
        learned.begin_step(self.interval)
        learned.next_probe()

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """``error_bound`` for inputs of layers, by the site's bound."""
        if reading.logs or not is_layer(saved, self.norms):
            return None
        site = self.learned.root(saved)
        bound = None if site is None else self.bound(site)
        return self._codec(FIRST, True) if bound is None else self._codec(bound, False)

    def observe(self, reading: Reading, saved: Saved, packed_bytes: int | None) -> Observer | None:
        """The size of each code, and now and then what the gradient can bear."""
        learned = self.learned
        if not is_layer(saved, self.norms):
            return None
        site = learned.sites.site(saved)
        if site is None:
            return None
        learned.note_bytes(site, saved, packed_bytes)
        probed = site == learned.probed and bool(packed_bytes)
        layer = layer_of(saved) if learned.gathering or probed else None
        if layer is None:
            return None
        greatest = norm(saved.tensor, math.inf)
        gathering, probe = learned.gathering, self._probe(layer, saved) if probed else None

        def gather(grad_inputs: Gradients, grad_outputs: Gradients) -> None:
            gradient, weight = grad_outputs[0], grad_inputs[layer.weight]
            if gradient is None or weight is None:
                return
            variance = layer.variance(gradient)
            if gathering:
                learned.seen.add(site, variance, _magnitude(weight), greatest)
            if probe is not None and (measured := probe(gradient)) is not None:
                caused, foretold = measured
                learned.probes.add(site, caused, foretold * variance)

        return gather if probe is None else Keeping(gather, probe.nbytes)

    def _probe(self, layer: Layer, saved: Saved) -> Probe | None:
        """Of the error that a layer's code makes; None of a norm, or where it has no bound of its own yet."""
        codec, bound = self.lossy(_LINEAR, saved), self.bound(self.learned.root(saved) or "")
        if layer.gradient is None or codec is None or bound is None:
            return None
        x = saved.tensor.detach()
        return Probe(codec.decode(codec.encode(x, 0)) - x, bound, layer.gradient)

    def expected_bytes(self, reading: Reading, saved: Saved) -> int | None:
        """As many as the last code here took, and a step's share of what is kept to measure its error."""
        found, sites = super().expected_bytes(reading, saved), len(self.learned.values)
        probed = 0.0 if reading.norm else _ERROR_BYTES * saved.tensor.numel()
        return found if found is None or not sites else found + round(probed / sites)

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "Comet":
        """``comet``, ``comet-sz3`` or ``comet-<share>``; it has no blocks or bits."""
        super().build(block, bits, "")
        if suffix in ("", "sz3"):
            return cls(coder=suffix or "error_bound")
        try:
            share = float(suffix)
        except ValueError:
            raise ValueError(
                f"got method 'comet-{suffix}', expected 'comet', 'comet-sz3', or 'comet-' and a share of the momentum, such"
                " as 'comet-0.05'"
            ) from None
        return cls(share)
