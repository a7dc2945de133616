"""BLPA: one fixed code of a batch norm's normalised values serves the norm, the ReLU behind it and the next layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from division.codecs.codec import Codec, Packed, packed_like
from division.codecs.fixed import Fixed, Grid, Positive, codes_above, decode_codes, encode_codes, settle, split_grid
from division.codecs.layout import dense_stride
from division.methods.method import Method, register
from division.methods.places import LINEAR
from division.rules import Reading, Use
from division.saved import Saved
from division.sites import Sites

WIDTHS = (4, 8)
_NORMS = ("NativeBatchNormBackward0", "CudnnBatchNormBackward0", "MiopenBatchNormBackward0")
_RELU = "ReluBackward0"
_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")
_SHARED = "division.blpa"  # where a node's metadata tell of its code


@register("blpa")
@dataclass(frozen=True)
class Blpa(Method):
    """Fixed codes over three deviations to either side, 4 or 8 bits, rounded down; one for batch norm, ReLU and next layer.

    A batch norm in training keeps its normalised value in bins that are moved by less than one, channel by channel, so that
    a border lies where the ReLU behind it has its threshold. From this code come the norm's input (by the mean and deviation
    of the batch, which the norm saves anyway), which elements the ReLU let through (exactly: codes at the border are
    settled by ReLU's own result), and ReLU's result, the next layer's input. The three take ``bits / 8`` bytes an element
    and 8 bytes a channel together.

    Where there is no such chain, tensors take the codec ``fixed`` with statistics of their own: results of ReLU that a sum
    went before, with one code for ReLU and next layer; a norm in eval, or with a frozen shift; inputs made by anything else.
    The input of the last layer stays exact, as in the paper, where the context knows the model; so do results of softmax
    and log-softmax, and max-pooling as ever. Queries, keys, values and results of attention take 8 bits.

    Biased, since nothing is drawn, and since what lies beyond three deviations is cut off.

    Source: BLPA (Chakrabarti and Moseley, NeurIPS 2019). Its code knows residual networks of its own making alone; a
    border beyond three deviations, which it does not treat, takes one code here. Names: ``blpa``, ``blpa-4``, ``blpa-8``.

    Args:
        bits: 4 or 8.

    Raises:
        ValueError: another width.

    Example:
        >>> import division
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Conv2d(3, 8, 3),
        ...     torch.nn.BatchNorm2d(8),
        ...     torch.nn.ReLU(inplace=True),
        ...     torch.nn.Conv2d(8, 8, 3),
        ... )
        >>> with division.compress("blpa-4") as context:
        ...     loss = model(torch.randn(4, 3, 34, 34)).sum()
        >>> context.report.code_bytes == 4 * 8 * 32 * 32 // 2 + 8 * 8
        True
    """

    suffix: ClassVar[str] = "<bits>"
    bits: int = 4
    sites: Sites = field(default_factory=Sites, init=False, repr=False, compare=False)
    last: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.bits not in WIDTHS or isinstance(self.bits, bool):
            raise ValueError(f"got method 'blpa' with bits={self.bits!r}, expected 4 or 8")

    def bind(self, parameters: Mapping[str, Tensor], optimizer: Optimizer | None = None) -> None:
        """The last parameter of two dims or more is the last layer's."""
        self.sites.bind(parameters)
        self.last[:] = [self.sites.name(parameter) for parameter in parameters.values() if parameter.dim() > 1][-1:]

    def codec(self, reading: Reading, saved: Saved) -> Codec | None:
        """As for all methods, but for ReLU's signs, which come from the code of its result."""
        if reading.use is Use.SIGN and saved.node == _RELU:
            inner = self._rectified(saved.grad_fn, saved.tensor)
            return reading.codec if inner is None else Positive(inner)
        return super().codec(reading, saved)

    def lossy(self, reading: Reading, saved: Saved) -> Codec | None:
        """The batch norm's code, or a ``fixed`` one."""
        x = saved.tensor
        if reading.logs or reading.along is not None or self._is_last(saved):
            return None
        if reading.norm and saved.node in _NORMS:
            normalised = self._normalised(saved.grad_fn)
            if normalised is not None:
                return normalised
        if x.grad_fn is not None and x.grad_fn.name() == _RELU:
            rectified = self._rectified(x.grad_fn, x)
            if rectified is not None:
                return rectified
        bits = WIDTHS[-1] if reading.exponent or reading.cancels else self.bits
        return Fixed(bits, -1 if reading.axes == "rows" and x.dim() > 2 else 1)

    def _is_last(self, saved: Saved) -> bool:
        if not self.last or not (saved.node in LINEAR or saved.node.startswith("Convolution")):
            return False
        return self.sites.site(saved) == f"{self.last[0]}: {saved.node}.{saved.field}"

    def _normalised(self, node: Any) -> "_Normalised | None":
        """The code of a batch norm's input, if it normalises by the batch and its scale and shift are known."""
        if not node._saved_training:
            return None
        mean, inverse = node._saved_result1.detach().float(), node._saved_result2.detach().float()
        weight, source = node._saved_weight, node.next_functions[2][0]
        bias = getattr(source, "variable", None)
        if weight is None and source is None:
            scale, shift = torch.ones_like(mean), torch.zeros_like(mean)
        elif weight is None or bias is None:
            return None
        else:
            scale, shift = weight.detach().float(), bias.detach().float()
        return _Normalised(self.bits, mean, inverse, scale, shift, node.metadata)

    def _rectified(self, relu: Any, x: Tensor) -> Codec | None:
        """The code of a result of ReLU; None if it would be no smaller than the signs and the result as it is."""
        norm = None if relu is None else relu.next_functions[0][0]
        found = None if norm is None else norm.metadata.get(_SHARED)
        packed = None if found is None else found()
        if found is not None and packed is not None and packed.size == x.shape:
            return _Rectified(self.bits, found, packed.stride)
        codec = Fixed(self.bits, -1 if x.dim() == 3 and _made_by_linear(norm) else 1, rectified=True)
        return codec if codec.why_not(x) is None and codec.packed_bytes(x.shape, x.dtype) < x.nbytes else None

    @classmethod
    def build(cls, block: int | None, bits: int | None, suffix: str) -> "Blpa":
        """``blpa-<bits>``; ``blpa`` alone takes ``bits`` as given, or 4."""
        if block is not None:
            raise ValueError(f"method 'blpa' has no blocks: got block={block}, expected none")
        if suffix and bits is not None and str(bits) != suffix:
            raise ValueError(f"got method 'blpa-{suffix}' and bits={bits}, expected one of them")
        if suffix and not suffix.isdecimal():
            raise ValueError(f"got method 'blpa-{suffix}', expected 'blpa-4' or 'blpa-8'")
        return cls(int(suffix) if suffix else 4 if bits is None else bits)


def _made_by_linear(node: Any) -> bool:
    """Whether a linear layer made this, so that its features are the last dim."""
    if node is not None and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    return node is not None and node.name() in LINEAR


class _OfNorm(Codec):
    """Parts: codes uint8, scale and shift float32 ``[2, channels]``, mean and inverse deviation of the batch ``[channels]``."""

    bits: int
    promises: ClassVar[frozenset[str]] = frozenset({"fixed_size"})  # type: ignore[assignment]

    def grid(self, parts: Sequence[Tensor]) -> Grid:
        """Bins of the normalised value, turned over where the scale is negative, with a border at ReLU's threshold."""
        scale, shift = parts[1]
        return split_grid(-shift / scale.abs(), self.bits)

    @classmethod
    def examples(cls) -> list[Codec]:
        """None: it is made here alone."""
        return []


@dataclass(frozen=True, eq=False)
class _Normalised(_OfNorm):
    """A batch norm's input by its normalised value. What stands in the node's metadata leads the ReLU behind to the code."""

    bits: int
    mean: Tensor
    inverse: Tensor
    scale: Tensor
    shift: Tensor
    metadata: dict[str, Any]
    name: ClassVar[str] = "normalised"

    def __str__(self) -> str:
        return f"{self.name}(bits={self.bits})"

    def __repr__(self) -> str:
        return f"_Normalised(bits={self.bits})"

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``ceil(elements * bits / 8)``, and 8 for each channel."""
        return Fixed(self.bits).packed_bytes(size, dtype)

    def own_bytes(self, packed: Packed) -> int:
        """Without mean and inverse deviation of the batch, which the norm keeps."""
        return sum(packed.part_bytes[:2])

    def made(self, packed: Packed) -> None:
        """Lets the ReLU behind find it."""
        self.metadata[_SHARED] = ref(packed)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Rounded down; the border's sides are settled once ReLU's result is there."""
        affine = torch.stack([self.scale, self.shift])
        parts = (affine, affine, self.mean, self.inverse)
        codes = encode_codes(x, 1, self.mean, _turned(1 / self.inverse, self.scale), self.grid(parts), self.bits)
        return packed_like(x, (codes, *parts[1:]))

    def decode(self, packed: Packed) -> Tensor:
        """``mean + deviation * middle of the bin``."""
        _, (scale, _), mean, inverse = packed.parts
        grid = self.grid(packed.parts)
        return decode_codes(packed, packed.stride, 1, mean, _turned(1 / inverse, scale), grid, self.bits)


@dataclass(frozen=True)
class _Rectified(_OfNorm):
    """A result of ReLU, by the code of the batch norm before it: no bytes of its own."""

    bits: int
    source: "ref[Packed]"
    stride: tuple[int, ...]
    name: ClassVar[str] = "of its batch norm"

    def __str__(self) -> str:
        return f"{self.name}(bits={self.bits})"

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """0."""
        return 0

    def own_bytes(self, packed: Packed) -> int:
        """0."""
        return 0

    def encode(self, x: Tensor, seed: int) -> Packed:
        """The batch norm's parts; its codes now tell exactly what is above 0, or NaN."""
        source = self.source()
        if source is None:
            raise RuntimeError("the batch norm's code is gone while its ReLU is coded: a fault of the method 'blpa'")
        source.change(lambda parts: settle(parts[0], x, self.stride, 1, self.grid(parts).border, self.bits))
        return replace(source, size=tuple(x.shape), stride=dense_stride(x.shape, x.stride()), dtype=x.dtype)

    def decode(self, packed: Packed) -> Tensor:
        """``relu(scale * middle of the bin + shift)``; NaN in a channel whose statistics aren't finite."""
        packed = packed.here()
        _, (scale, shift), mean, inverse = packed.parts
        shift = shift + 0 * (mean + 1 / inverse)
        return decode_codes(
            packed, self.stride, 1, shift, scale.abs(), self.grid(packed.parts), self.bits, rectified=True
        )

    def above(self, packed: Packed) -> Tensor:
        """1 where the element was above 0, or NaN, and 0 elsewhere."""
        packed = packed.here()
        return codes_above(packed, self.stride, 1, self.grid(packed.parts).border, self.bits)


def _turned(deviation: Tensor, scale: Tensor) -> Tensor:
    """With the sign of the scale, so that what is above a ReLU's threshold has the greater codes."""
    return torch.where(scale < 0, -deviation, deviation)
