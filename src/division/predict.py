"""What a model would keep for backward, without running it: the same code, on fake tensors."""

import contextlib
import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from division.account import Report
from division.attach import MethodByPart, attached
from division.compress import Patterns
from division.methods import Method
from division.private import concrete, fake_mode, is_fake, tree_leaves, tree_map_only

#: Nodes that save what under fake tensors has no size.
_OPAQUE = ("MkldnnRnnLayerBackward0",)


@dataclass(frozen=True)
class Prediction:
    """What a training step keeps between forward and backward, in bytes.

    Attributes:
        normal_bytes: with plain PyTorch; every distinct tensor once, the batch included, weights not.
        packed_bytes: with the method; all that is kept, the batch included. Where that depends on the values, the most.
        least_bytes: the fewest that may be kept; ``packed_bytes`` unless ``basis`` is ``"interval"``.
        basis: what the bytes of the codes are known from: ``"shapes"``, which decide them; ``"recorded"``: where they
            depend on the values, the method has seen such codes before; ``"inputs"``: the model was run on the inputs;
            ``"interval"``: they depend on values that nobody has seen; ``"beginning"``: the method has learned nothing yet,
            as ``"ac-gc"`` in its first steps, and will keep less.
        report: the account, tensor by tensor.
    """

    normal_bytes: int
    packed_bytes: int
    report: Report
    least_bytes: int = -1
    basis: str = "shapes"

    def __post_init__(self) -> None:
        if self.least_bytes < 0:
            object.__setattr__(self, "least_bytes", self.packed_bytes)

    def __repr__(self) -> str:
        least = f"least_bytes={self.least_bytes}, " if self.least_bytes < self.packed_bytes else ""
        sizes = f"normal_bytes={self.normal_bytes}, {least}packed_bytes={self.packed_bytes}"
        basis = "" if self.basis == "shapes" else f", basis={self.basis!r}"
        return f"Prediction({sizes}, ratio={self.ratio:.2f}{basis})"

    @property
    def recomputed_bytes(self) -> int:
        """What comes on top while the largest part of the model is run again in backward; 0 where none is."""
        return self.report.recomputed_bytes

    @property
    def elsewhere_bytes(self) -> int:
        """Those of ``packed_bytes`` that are not on the device: in host memory, or in a file."""
        return self.report.elsewhere_bytes

    @property
    def ratio(self) -> float:
        """``normal_bytes / packed_bytes``."""
        return self.normal_bytes / self.packed_bytes if self.packed_bytes else 1.0


def predict(
    model: nn.Module | Callable[[], nn.Module],
    inputs: Any,
    method: str | Method | MethodByPart | None = "division",
    *,
    loss: Callable[[Any], Tensor] | None = None,
    measure: bool = False,
    only: Patterns = None,
    skip: Patterns = None,
) -> Prediction:
    """Predict the memory of one training step's saved tensors; allocates nothing.

    The model runs under ``FakeTensorMode``, through the same code that a real step uses, so the bytes are those of a
    real step. Where a code's size depends on the values, as of ``"comet"``, they come from what the method recorded in
    real steps, if it has any record of that place in the network, and are an interval otherwise; ``basis`` says which.
    A float dropout factor, as the CPU makes them, is taken for a mask. Of LSTMs and GRUs on the CPU that oneDNN runs, a workspace is
    not known from shapes: a warning says so, and ``measure`` counts it.

    Args:
        model: the model, in the mode (train or eval) that is meant; or a function that builds it, called under fake
            tensors so that not even its weights are allocated.
        inputs: the batch: a tensor, or a tuple or dict of arguments. Tensors on the device "meta" stand for the CPU.
        method: as for :func:`division.attach`.
        loss: makes the loss from the model's output, so that what it saves counts too.
        measure: run the model's forward on the inputs, both real, once, in order to have the bytes of these values; the
            model's buffers stay as they are. For methods whose code size depends on the values.
        only, skip: as for :func:`division.attach`.

    Raises:
        TypeError: ``measure`` without real tensors; an integer batch for a model that takes floating numbers, or a shape for a model that takes tensors.
        Whatever the model raises on such a batch.

    Example:
        >>> import division
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 8, 3))
        >>> prediction = division.predict(model, torch.empty(256, 3, 224, 224, device="meta"))
        >>> round(prediction.ratio, 1)
        7.0
    """
    if not isinstance(model, nn.Module) and not callable(model):
        raise TypeError(f"got {model!r} as the model, expected a torch.nn.Module or a function that builds one")
    mode = contextlib.nullcontext() if measure else fake_mode()
    with torch.inference_mode(False), torch.enable_grad(), mode as fakes, torch.random.fork_rng(devices=_gpus(inputs)):
        built = model if isinstance(model, nn.Module) else model()
        if not isinstance(built, nn.Module):
            raise TypeError(f"got {type(built).__name__} from the model's builder, expected a torch.nn.Module")
        if measure:
            _expect_real(built, inputs)
            state = {name: x.detach().clone() for name, x in built.named_buffers()}
            parameters: dict[str, Tensor] = dict(built.named_parameters())
        else:
            state = {name: _fake(x, fakes) for name, x in (*built.named_parameters(), *built.named_buffers())}
            parameters = {name: state[name] for name, _ in built.named_parameters()}
            inputs = tree_map_only(Tensor, lambda x: _fake(x, fakes), inputs)
        # A method learns nothing of this, and finds what it learned of these parameters.
        memo = {id(x): parameters[name] for name, x in built.named_parameters()}
        with concrete():
            method = copy.deepcopy(method, memo)
        args, kwargs = _arguments(inputs)
        handle = attached(built, method, only, skip, 0, False, fakes=not measure, parameters=parameters)
        with handle, handle.step():
            try:
                output = functional_call(built, state, args, kwargs)
            except (RuntimeError, TypeError, AttributeError) as error:
                clearer = _explained(error, (args, kwargs))
                if clearer is None:
                    raise
                raise clearer from error
            result = output if loss is None else loss(output)
        del output, result
    report = handle.report
    if not measure and any(record.node in _OPAQUE for record in report.records):
        warnings.warn(
            "the workspace that oneDNN keeps for a recurrent layer on the CPU is not known from shapes, and is left out of the"
            " prediction: give real inputs and measure=True to count it",
            stacklevel=2,
        )
    return Prediction(
        report.raw_bytes, report.packed_bytes, report, report.least_bytes, _basis(report, measure, handle.settling)
    )


def _basis(report: Report, measure: bool, settling: bool) -> str:
    if settling:
        return "beginning"
    if measure:
        return "inputs"
    if report.least_bytes < report.packed_bytes:
        return "interval"
    return "recorded" if any(record.expected for record in report.records) else "shapes"


def _gpus(inputs: Any) -> list[torch.device]:
    """The GPUs whose random numbers a forward on these inputs may draw."""
    return list({x.device for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.device.type == "cuda"})


def _expect_real(model: nn.Module, inputs: Any) -> None:
    """Refuse to measure on tensors without values."""
    tensors = [x for x in tree_leaves(inputs) if isinstance(x, Tensor)]
    if not tensors or any(x.device.type == "meta" for x in (*tensors, *model.parameters(), *model.buffers())):
        raise TypeError(
            "got measure=True with tensors on the device 'meta', or none; expected a model and a batch with real values:"
            " leave measure out to predict from shapes"
        )


def _fake(x: Tensor, mode: Any) -> Tensor:
    if is_fake(x):
        return x
    if x.device.type == "meta":
        x = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).requires_grad_(x.requires_grad)
    return mode.from_tensor(x)  # type: ignore[no-any-return]


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return inputs if isinstance(inputs, tuple) else (inputs,), {}


def _explained(error: Exception, inputs: Any) -> Exception | None:
    """A clearer error than the model's own where an integer batch or a shape is the likely cause; else None."""
    leaves = tree_leaves(inputs)
    if leaves and all(type(x) is int for x in leaves):
        shape = ", ".join(map(str, leaves))
        return TypeError(
            f"got the numbers {shape} as the inputs, which the model refuses; expected tensors,"
            f' such as torch.empty({shape}, device="meta")'
        )
    for x in leaves if isinstance(error, RuntimeError) else ():
        if isinstance(x, Tensor) and x.dim() > 2 and not (x.is_floating_point() or x.is_complex()):
            kind = str(x.dtype).removeprefix("torch.")
            return TypeError(
                f"got a batch of {kind}, which the model refuses; expected floating numbers: x.float() / 255"
            )
    return None
