"""Recomputing in backward, as `torch.utils.checkpoint` does, from inputs that are kept in coded form."""

import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

from torch import Tensor, is_grad_enabled
from torch.autograd.graph import saved_tensors_hooks
from torch.compiler import is_dynamo_compiling
from torch.utils.checkpoint import checkpoint

from division.code import Code, Codes, unpack
from division.methods import Division
from division.nodes import unwatched
from division.private import has_default_hooks, standing_aside
from division.rules import Reading, Use
from division.saved import Saved, choose, record_of, why_left
from division.seeds import Seeds

NODE, FIELD = "checkpoint", "input"
_READING = Reading(Use.LINEAR)
_ASKS_ABOUT_HOOKS = "respect_saved_tensors_hooks" in inspect.signature(checkpoint).parameters


class _Left(NamedTuple):
    """An input kept as it is, and its version when the function was called."""

    tensor: Tensor
    version: int


class _Coded(NamedTuple):
    """The code of an input, and the originals of all inputs while the call that they were given to runs, by their codes.

    A function that runs a backward of its own, for a result that is a gradient, is run again in its first run already.
    """

    code: Code
    originals: dict[Code, Tensor]


class recompute:
    """Run functions again in backward instead of keeping what they save; their inputs are kept in 8 or 4 bits.

    An object of it is called as ``torch.utils.checkpoint.checkpoint`` is, with the same arguments, and does the same
    (without reentrance, unless asked for), except for what it keeps: of the tensors among the positional arguments,
    those that an operation made are coded. Keyword arguments, weights, the batch, and whatever would get no smaller are
    kept as they are. Inside another checkpoint, under hooks of saved tensors, and where :class:`division.disabled` says so,
    nothing is coded.

    A few values far from all others, such as an attention mask added to a learned bias, leave those no precision; an
    infinite one makes its plane or group NaN. Such an input goes in as a keyword argument.

    Forward is exact. Backward runs the function on inputs that are off by the noise of their codes, and so is all that
    follows from them: which side of a ReLU, which maximum of a pooling window, a norm's statistics. Gradients are
    therefore not unbiased, as those of :func:`division.compress` are for what enters linearly. `docs/methods.md`
    has the errors measured. Running statistics of batch norm, which recomputation updates a second time with any
    checkpoint, see the noise too.

    Args:
        bits: of the codes, 8 or 4.
        seed: base of the noise of stochastic rounding, as in :func:`division.compress`: make the object once.

    Raises:
        ValueError: bits other than 8 or 4.
        TypeError: a function in the place of the bits, or a seed that is no integer.

    Example:
        >>> import torch, division
        >>> block = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
        >>> recompute = division.recompute(bits=8)
        >>> x = torch.randn(32, 64, requires_grad=True)
        >>> loss = recompute(block, x * 2).square().mean()
        >>> recompute.raw_bytes, recompute.packed_bytes
        (8192, 2176)
        >>> loss.backward()
    """

    def __init__(self, bits: int = 8, seed: int | None = None) -> None:
        if callable(bits):
            raise TypeError(
                "got a function as the bits: make an object first, recompute = division.recompute(bits=8), and call"
                " that in the place of torch.utils.checkpoint.checkpoint: recompute(function, *args)"
            )
        if isinstance(bits, bool) or bits not in (4, 8):
            raise ValueError(f"got bits={bits!r}, expected 8 or 4: forward is run again on what they keep")
        self.bits = bits
        self._method = Division(bits=bits)
        self._seeds = Seeds(seed)
        self._codes = Codes()
        self._alive: WeakSet[Code] = WeakSet()
        self._lock = threading.Lock()  # of `_alive`: one thread may ask for bytes while others add codes

    def __getstate__(self) -> dict[str, Any]:
        """What a copy starts with: the bits, and where the noise stands. Codes stay behind."""
        return {"bits": self.bits, "noise": self._seeds.state_dict()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        recompute.__init__(self, state["bits"])
        self._seeds.load_state_dict(state["noise"])

    def __call__(self, function: Callable[..., Any], *args: Any, use_reentrant: bool = False, **kwargs: Any) -> Any:
        """``torch.utils.checkpoint.checkpoint(function, *args, …)`` with coded inputs.

        Args:
            function: run now, and again in backward.
            args: its positional arguments.
            use_reentrant: as in torch.
            kwargs: its keyword arguments, and torch's own settings, such as ``context_fn``.

        Returns:
            what the function returns.
        """
        aside = is_dynamo_compiling() or not is_grad_enabled() or standing_aside()
        if aside or unwatched() or has_default_hooks():
            return checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
        if _ASKS_ABOUT_HOOKS and "context_fn" in kwargs and not use_reentrant:
            # A selective checkpoint asks whether hooks around it, such as these, are meant for the results it keeps.
            kwargs.setdefault("respect_saved_tensors_hooks", False)
        self._seeds.begin_step()
        inputs = {id(arg) for arg in args}
        originals: dict[Code, Tensor] = {}

        def pack(x: Tensor) -> _Coded | _Left:
            code = self._code(x) if id(x) in inputs else None  # reentrance shows what the function makes as well
            if code is None:
                return _Left(x.detach(), x._version)
            originals[code] = x.detach()
            return _Coded(code, originals)

        try:
            with saved_tensors_hooks(pack, _unpack):
                return checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
        finally:
            originals.clear()

    def __repr__(self) -> str:
        return f"recompute(bits={self.bits})"

    @property
    def raw_bytes(self) -> int:
        """Bytes that the inputs whose codes are alive would take."""
        with self._lock:
            return sum(code.owner.raw_bytes for code in self._alive)

    @property
    def packed_bytes(self) -> int:
        """Bytes that codes of inputs take now: all of a step's after its forward, none after its backward."""
        with self._lock:
            return sum(code.own_bytes for code in self._alive)

    def _code(self, x: Tensor) -> Code | None:
        record = record_of(x, "", NODE, FIELD, _READING.use.value)
        codec = why_left(x, fakes=True) or choose(_READING, Saved(NODE, FIELD, x), False, self._method.codec)
        if isinstance(codec, str) or record.reference is None:
            return None
        code, _ = self._codes.code(x, record.reference, record, codec, self._seeds.next)
        with self._lock:
            self._alive.add(code)
        return code


def _unpack(kept: _Coded | _Left) -> Tensor:
    if isinstance(kept, _Coded):
        original = kept.originals.get(kept.code)
        return unpack(kept.code) if original is None else original
    if kept.tensor._version != kept.version:
        raise RuntimeError(
            f"an input {tuple(kept.tensor.shape)} of a function that is to be run again was changed in place: it is at"
            f" version {kept.tensor._version}, expected version {kept.version}; clone it before changing it"
        )
    return kept.tensor
