"""How a Triton body comes to be: which there are, whether they can run here, and how a kernel is launched.

Nothing here imports Triton until a body runs, so that the package works where it is missing: CUDA tensors then take
the reference bodies, and :func:`status` says why.
"""

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from division.kernels import ops

#: The module of ``division.kernels.gpu`` that holds each op's body, in a function of the op's name.
MODULE_OF = {
    "dual_encode": "dual",
    "dual_decode": "dual",
    "block_pool": "pool",
    "block_spread": "pool",
    "frequency_encode": "frequency",
    "frequency_decode": "frequency",
    "group_encode": "group",
    "group_decode": "group",
    "mixed_encode": "mixed",
    "mixed_decode": "mixed",
    "ranged_encode": "ranged",
    "bits_encode": "bits",
    "bits_decode": "bits",
    "interval_encode": "bits",
    "interval_decode": "bits",
    "mask_encode": "bits",
    "mask_decode": "bits",
    "error_bound_encode": "error_bound",
    "error_bound_decode": "error_bound",
    "window_encode": "index",
    "window_decode": "index",
}
#: Set to "reference", this variable of the environment turns the kernels off.
VARIABLE = "DIVISION_KERNELS"
#: The oldest GPU whose instructions the kernels need (minimum and maximum that keep NaN).
OLDEST = (8, 0)
_STANDS_FOR = {torch.bfloat16: torch.int16, torch.bool: torch.uint8}
_TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.float64: "fp64", torch.uint8: "u8", torch.int8: "i8",
    torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.uint16: "u16", torch.uint32: "u32",
}  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """A kernel and the way it is launched, as ahead-of-time compilation needs it.

    Args:
        name: what it is, for a report: ``"dual_encode float32 (64, 56, 56) contiguous"``.
        kernel: the ``triton.JITFunction``.
        signature: the type of every argument, in order: ``{"x": "*fp32", "rows": "i32", "BITS": "constexpr"}``.
        constexprs: the value of every argument whose type is ``"constexpr"``.
        num_warps: warps a program.
        num_stages: stages of software pipelining.
        aligned: the arguments known to be multiples of 16 (for a pointer: its address).
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
    aligned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Args:
        kernel: the jitted function.
        grid: programs along each axis.
        arguments: tensors, whole numbers and floats by name; everything that is no ``tl.constexpr``.
        constants: the values of the ``tl.constexpr`` parameters by name.
        num_warps: warps a program.
        num_stages: stages of software pipelining; without loops over loads it changes nothing.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1

    def __call__(self) -> None:
        """Run it on the device that holds its tensors, on the current stream, without waiting."""
        device = next(value for value in self.arguments.values() if isinstance(value, Tensor))
        with torch.cuda.device_of(device):
            self.kernel[self.grid](
                **{name: raw(value) if isinstance(value, Tensor) else value for name, value in self.arguments.items()},
                **self.constants,
                num_warps=self.num_warps,
                num_stages=self.num_stages,
                enable_fp_fusion=False,
            )

    def configuration(self, name: str) -> Configuration:
        """What this launch compiles, as Triton specialises it: whole numbers of 1 are constants, multiples of 16 known.

        The tensors may be on the ``meta`` device; their memory counts as aligned.
        """
        signature: dict[str, str] = {}
        constants, aligned = dict(self.constants), []
        free = set(getattr(self.kernel, "do_not_specialize", None) or ())
        for parameter in self.kernel.arg_names:
            if parameter in self.constants:
                signature[parameter] = "constexpr"
                continue
            value = self.arguments[parameter]
            if isinstance(value, Tensor):
                signature[parameter] = f"*{_TYPES[_STANDS_FOR.get(value.dtype, value.dtype)]}"
                aligned.append(parameter)
            elif isinstance(value, float):
                signature[parameter] = "fp32"
            elif value == 1 and parameter not in free:
                signature[parameter], constants[parameter] = "constexpr", 1
            else:
                signature[parameter] = "i32" if -(2**31) <= value < 2**31 else "i64"
                if value % 16 == 0 and parameter not in free:
                    aligned.append(parameter)
        return Configuration(
            name, self.kernel, signature, constants, self.num_warps, self.num_stages, tuple(aligned)
        )  # fmt: skip


def raw(x: Tensor) -> Tensor:
    """The same memory as kernels take it: bfloat16 as int16, bool as uint8; any strides."""
    kind = _STANDS_FOR.get(x.dtype)
    return x if kind is None else x.view(kind)


def reference(name: str) -> Callable[..., Any]:
    """The reference body of an op, for what a kernel can't take."""
    module = importlib.import_module(f"division.kernels.reference.{MODULE_OF[name]}")
    return getattr(module, name)  # type: ignore[no-any-return]


def installed() -> bool:
    """Whether there is a Triton to import; imports nothing."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def failure(index: int) -> str | None:
    """Why the kernels can't run on CUDA device ``index``, or None.

    Asks once a device: it compiles and launches a kernel of one line.
    """
    if os.environ.get(VARIABLE) == "reference":
        return f"{VARIABLE}=reference in the environment"
    found = torch.cuda.get_device_capability(index)
    if torch.version.hip is None and found < OLDEST:
        return f"compute capability {found[0]}.{found[1]}, and the kernels need {OLDEST[0]}.{OLDEST[1]}"
    try:
        probe = importlib.import_module("division.kernels.gpu.probe")
        with torch.cuda.device(index):
            Launch(probe.probe_kernel, (1,), {"out": torch.empty(1, dtype=torch.int32, device="cuda")})()
    except Exception as error:  # whatever keeps Triton from compiling here: no compiler, a broken driver
        first = (str(error).strip().splitlines() or [""])[0]
        return f"triton fails to compile or to launch: {type(error).__name__}: {first}"
    return None


def status() -> tuple[bool, str]:
    """Whether CUDA tensors take the Triton bodies, and why, or why not.

    Example:
        >>> runs, why = status()
        >>> why != ""
        True
    """
    if not installed():
        return False, "triton is not installed"
    if not torch.cuda.is_available():
        return False, "no CUDA device"
    why = failure(torch.cuda.current_device())
    if why is not None:
        return False, why
    return True, f"triton {importlib.import_module('triton').__version__}"


def register() -> None:
    """Bind every op of :data:`MODULE_OF` to CUDA, if there is a Triton."""
    if installed():
        for name in MODULE_OF:
            ops.body(name, key="CUDA")(late(name))


def late(name: str) -> Callable[..., Any]:
    """The Triton body of an op, imported when it first runs; the reference body where the kernels can't run."""

    @functools.cache
    def body(index: int) -> Callable[..., Any]:
        if failure(index) is not None:
            return reference(name)
        module = importlib.import_module(f"division.kernels.gpu.{MODULE_OF[name]}")
        return getattr(module, name)  # type: ignore[no-any-return]

    def run(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        return body(first.get_device())(first, *args, **kwargs)

    return run
