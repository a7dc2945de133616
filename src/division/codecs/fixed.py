"""Fixed codes: bins of one width over three deviations to either side of a channel's mean, rounded down, no noise."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from division.codecs.codec import Codec, Packed, from_config, packed_like, register
from division.codecs.layout import memory_order
from division.kernels.reference.dual import DTYPES
from division.kernels.reference.packing import pack_small, unpack_small

WIDTHS = (2, 4, 8)
REACH = 3.0  # deviations to either side
_CHUNK = 1 << 16  # elements worked on at a time, but for rows that are longer


class Grid(NamedTuple):
    """The bins of each channel, in deviations from its mean; all float32 of one dim.

    Attributes:
        lo: lower edge of the lowest bin.
        step: width of a bin.
        border: codes from this one on are above the channel's threshold.
    """

    lo: Tensor
    step: Tensor
    border: Tensor


def plain_grid(channels: int, bits: int, device: torch.device) -> Grid:
    """Bins over three deviations to either side of the mean."""
    ones = torch.ones(channels, dtype=torch.float32, device=device)
    return Grid(-REACH * ones, 2 * REACH / 2**bits * ones, 0 * ones)


def split_grid(threshold: Tensor, bits: int) -> Grid:
    """The same, moved by less than a bin so that a border lies on the channel's threshold.

    Where that lies beyond the three deviations (or is NaN: infinitely far up), one code stands for what is on its other side,
    and the others share the six.
    """
    count, ones = 2**bits, torch.ones_like(threshold, dtype=torch.float32)
    step = 2 * REACH / count
    border = ((threshold + REACH) / step).round().clamp(1, count - 1)
    inside = threshold.abs() <= REACH
    below = threshold < -REACH
    far = 2 * REACH / (count - 1)
    lo = torch.where(inside, threshold - border * step, torch.where(below, (-REACH - far) * ones, -REACH))
    edge = torch.where(below, ones, count - 1.0)
    return Grid(lo, torch.where(inside, step * ones, far), torch.where(inside, border, edge))


@register
@dataclass(frozen=True)
class Fixed(Codec):
    """``bits`` bits an element: 2**bits bins of equal width over three deviations to either side of the channel's mean.

    What is further out takes the outermost bin; an element decodes to the middle of its bin. Packed bytes of C channels:
    ``ceil(elements * bits / 8) + 8 * C``. A channel that holds a value that isn't finite decodes to NaN as a whole.

    Source: BLPA (Chakrabarti and Moseley, NeurIPS 2019), whose codes are of a batch norm's normalised values; here the
    mean and deviation are the tensor's own, over all dims but that of the channels.

    Args:
        bits: 2, 4 or 8.
        axis: the dim of the channels; a tensor of fewer than two dims is one channel.
        rectified: for results of ReLU: what isn't above 0 decodes to 0, exactly, and the bins lie between 0 and three
            deviations above the mean.

    Raises:
        ValueError: a setting out of range.

    Example:
        >>> x = torch.randn(16, 8, 4, 4)
        >>> codec = Fixed(8)
        >>> packed = codec.encode(x, seed=0)
        >>> packed.nbytes, codec.packed_bytes(x.shape, x.dtype)
        (2112, 2112)
        >>> bool((codec.decode(packed) - x.clamp(-2.5, 2.5)).abs().median() < 0.02)
        True
    """

    bits: int = 4
    axis: int = 1
    rectified: bool = False
    name: ClassVar[str] = "fixed"
    promises: ClassVar[frozenset[str]] = frozenset({"fixed_size", "equivariant"})

    def __post_init__(self) -> None:
        if self.bits not in WIDTHS:
            raise ValueError(f"got bits={self.bits!r} for fixed, expected one of {WIDTHS}")
        if not isinstance(self.axis, int):
            raise ValueError(f"got axis={self.axis!r} for fixed, expected the number of a dim")

    def why_not(self, x: Tensor) -> str | None:
        """A real floating dtype and the dim that ``axis`` names are needed."""
        if x.dtype not in DTYPES:
            return f"dtype {x.dtype}"
        if x.dim() > 1 and not -x.dim() <= self.axis < x.dim():
            return f"{x.dim()} dims, too few for axis {self.axis}"
        return super().why_not(x)

    def _axis(self, size: Sequence[int]) -> int | None:
        return self.axis % len(size) if len(size) > 1 else None

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """``ceil(elements * bits / 8)``, and 8 for each channel."""
        axis = self._axis(size)
        return -(-prod(size) * self.bits // 8) + 8 * (1 if axis is None else size[axis])

    def encode(self, x: Tensor, seed: int) -> Packed:
        """Parts: codes uint8 ``[bytes]``, mean and deviation float32 ``[channels, 2]``; ``seed`` is not used."""
        axis = self._axis(x.shape)
        statistics = _statistics(x, axis)
        center, unit, grid = self._bins(statistics)
        codes = encode_codes(x, axis, center, unit, grid, self.bits)
        if self.rectified:
            settle(codes, x, x.stride(), axis, grid.border, self.bits)
        return packed_like(x, (codes, statistics))

    def _bins(self, statistics: Tensor) -> tuple[Tensor, Tensor, Grid]:
        """Where the bins are counted from, in what unit, and the bins; of ReLU's results code 0 lies below 0."""
        mean, deviation = statistics.unbind(1)
        if not self.rectified:
            return mean, deviation, plain_grid(len(mean), self.bits, mean.device)
        reach = mean + REACH * deviation
        ones = torch.ones_like(reach)
        most = torch.where((mean + deviation).isfinite(), torch.finfo(torch.float32).max * ones, math.inf)
        return torch.zeros_like(reach), torch.minimum(reach, most) / (2**self.bits - 1), Grid(-ones, ones, ones)

    def decode(self, packed: Packed) -> Tensor:
        """The middle of each element's bin."""
        axis, (center, unit, grid) = self._axis(packed.size), self._bins(packed.parts[1])
        return decode_codes(packed, packed.stride, axis, center, unit, grid, self.bits, self.rectified)

    def above(self, packed: Packed) -> Tensor:
        """1 where a rectified tensor was above 0, or NaN, and 0 elsewhere."""
        border = self._bins(packed.parts[1])[2].border
        return codes_above(packed, packed.stride, self._axis(packed.size), border, self.bits)

    @classmethod
    def examples(cls) -> list[Codec]:
        """Each width, channels in front and last, and of ReLU."""
        return [cls(4, 0), cls(8, -1), cls(2, 0, True), cls(4, -1, True)]


def encode_codes(
    x: Tensor, axis: int | None, mean: Tensor, deviation: Tensor, grid: Grid, bits: int
) -> Tensor:  # fmt: skip
    """The codes of ``x``, packed in the order of memory: uint8 ``[ceil(elements * bits / 8)]``."""
    codes = torch.empty(-(-x.numel() * bits // 8), dtype=torch.uint8, device=x.device)
    rows = x.permute(memory_order(x.shape, x.stride()))
    rate, start = 1 / (deviation * grid.step), -grid.lo / grid.step
    for take, place, by in _pieces(x.shape, x.stride(), axis, bits):
        numbers = (rows[take].float() - by(mean)).mul_(by(rate)).add_(by(start)).nan_to_num_(0.0).clamp_(0, 2**bits - 1)
        codes[place] = pack_small(numbers.to(torch.uint8).flatten(), bits)  # rounds down
    return codes


def settle(
    codes: Tensor, rectified: Tensor, stride: Sequence[int], axis: int | None, border: Tensor, bits: int
) -> None:  # fmt: skip
    """Move codes over the border, in place, until they tell exactly what is above 0, or NaN.

    Args:
        codes: of a tensor of the same size with these strides.
        rectified: ReLU's result, or its input.
    """
    first = border.to(torch.uint8)
    rows = rectified.permute(memory_order(rectified.shape, stride))
    for take, place, by in _pieces(rectified.shape, stride, axis, bits):
        part = rows[take]
        numbers = unpack_small(codes[place], bits, part.numel()).view(part.shape)
        below = torch.minimum(numbers, by(first) - 1)
        above = torch.maximum(numbers, by(first))
        numbers = (above - below).mul_(~(part <= 0)).add_(below)
        codes[place] = pack_small(numbers.flatten(), bits)


def decode_codes(
    packed: Packed, stride: Sequence[int], axis: int | None, mean: Tensor, deviation: Tensor, grid: Grid, bits: int,
    rectified: bool = False,
) -> Tensor:  # fmt: skip
    """``mean + deviation * middle of the bin``, with the strides of ``packed``; 0 below the border if rectified.

    Args:
        packed: whose first part the codes are.
        stride: of the tensor they were made of.
    """
    out = torch.empty_strided(packed.size, packed.stride, dtype=packed.dtype, device=packed.device)
    rows = out.permute(memory_order(packed.size, stride))
    base, slope = mean + deviation * (grid.lo + grid.step / 2), deviation * grid.step
    least, border = torch.finfo(packed.dtype).tiny, grid.border.to(torch.uint8)
    for take, place, by in _pieces(packed.size, stride, axis, bits):
        part = rows[take]
        numbers = unpack_small(packed.parts[0][place], bits, part.numel()).view(part.shape)
        values = numbers.float().mul_(by(slope)).add_(by(base))
        if rectified:
            values.clamp_min_(least).mul_(numbers >= by(border))  # NaN stays NaN
        part.copy_(values)
    return out


def codes_above(packed: Packed, stride: Sequence[int], axis: int | None, border: Tensor, bits: int) -> Tensor:
    """1 where a code is at the border or above, else 0, in the dtype and strides of ``packed``."""
    out = torch.empty_strided(packed.size, packed.stride, dtype=packed.dtype, device=packed.device)
    rows, first = out.permute(memory_order(packed.size, stride)), border.to(torch.uint8)
    for take, place, by in _pieces(packed.size, stride, axis, bits):
        part = rows[take]
        part.copy_(unpack_small(packed.parts[0][place], bits, part.numel()).view(part.shape) >= by(first))
    return out


def _statistics(x: Tensor, axis: int | None) -> Tensor:
    """Mean and deviation of each channel, float32 ``[channels, 2]``; summed in float64, so that no order of dims matters."""
    channels = 1 if axis is None else x.shape[axis]
    total = torch.zeros(2, channels, dtype=torch.float64, device=x.device)
    dims = [d for d in range(x.dim()) if d != axis]
    if not x.numel():
        return total.t().float().contiguous()
    # Around a value of the channel, since its square may be far greater than its deviation's.
    first = x[tuple(slice(None) if d == axis else slice(0, 1) for d in range(x.dim()))].double()
    count = x.numel() // channels
    rows = max(1, _CHUNK * x.shape[0] // x.numel()) if x.dim() else 1
    for i in range(0, x.shape[0] if x.dim() else 1, rows):
        part = (
            x[i : i + rows].double() - (first[i : i + rows] if axis == 0 else first) if x.dim() else x.double() - first
        )
        sums = (part.sum(dims), part.square().sum(dims)) if dims else (part, part.square())
        own = slice(i, i + rows) if axis == 0 else slice(None)
        total[:, own] += torch.stack([each.reshape(-1) for each in sums])
    mean, square = total / count
    deviation = (square - mean.square()).clamp_min(0).sqrt()
    return torch.stack([mean + first.reshape(-1), deviation], 1).float()


def _pieces(
    size: Sequence[int], stride: Sequence[int], axis: int | None, bits: int
) -> Iterator[tuple[Any, slice, Any]]:
    """Pieces of a tensor with its dims in the order of memory.

    Of each: where it lies, where its codes do, and a function that lays numbers of channels along it.
    """
    order = memory_order(size, stride)
    first = size[order[0]] if order else 1
    inner = prod(size) // max(first, 1)
    place = order.index(axis) if axis is not None else None
    # So many rows that their codes fill whole bytes.
    unit = next((n for n in (1, 2, 4, 8) if n * inner * bits % 8 == 0), 8)
    rows = max(unit, _CHUNK // max(inner, 1) // unit * unit)
    for i in range(0, first if inner else 0, rows):
        j = min(i + rows, first)

        def by(numbers: Tensor, i: int = i, j: int = j) -> Tensor:
            if place is None:
                return numbers.view([1] * len(order))
            shape = [1] * len(order)
            shape[place] = -1
            return (numbers[i:j] if place == 0 else numbers).view(shape)

        yield (slice(i, j) if order else ...), slice(i * inner * bits // 8, -(-j * inner * bits // 8)), by


@register
@dataclass(frozen=True)
class Positive(Codec):
    """Of a result of ReLU, which elements are above 0, or NaN, exactly: read from another code of the same tensor.

    That code is made if it isn't there, and shared with whoever else needs the tensor. Decodes to 1 and 0.

    Args:
        inner: the other codec.

    Example:
        >>> codec = Positive(Fixed(4, rectified=True))
        >>> codec.decode(codec.encode(torch.tensor([[0.0, 3.0, 1e-30]]), seed=0))
        tensor([[0., 1., 1.]])
    """

    inner: Codec = Fixed(4, rectified=True)
    name: ClassVar[str] = "positive"
    promises: ClassVar[frozenset[str]] = frozenset({"fixed_size"})

    def __post_init__(self) -> None:
        if isinstance(self.inner, dict):
            object.__setattr__(self, "inner", from_config(self.inner))

    def companion(self, x: Tensor) -> Codec:
        """The other codec."""
        return self.inner

    def config(self) -> dict[str, Any]:
        """With the config of the other codec."""
        return {"codec": self.name, "inner": self.inner.config()}

    def why_not(self, x: Tensor) -> str | None:
        """What the other codec refuses."""
        return self.inner.why_not(x)

    def packed_bytes(self, size: Sequence[int], dtype: torch.dtype) -> int:
        """Those of the other codec."""
        return self.inner.packed_bytes(size, dtype)

    def own_bytes(self, packed: Packed) -> int:
        """Those of the other codec."""
        return self.inner.own_bytes(packed)

    def encode(self, x: Tensor, seed: int) -> Packed:
        """The other codec's parts."""
        return self.inner.encode(x, seed)

    def encode_beside(self, x: Tensor, seed: int, other: Packed) -> Packed:
        """The other code itself."""
        return other

    def decode(self, packed: Packed) -> Tensor:
        """1 where the element was above 0, or NaN, and 0 elsewhere."""
        return self.inner.above(packed)  # type: ignore[attr-defined, no-any-return]

    @classmethod
    def examples(cls) -> list[Codec]:
        """Over channels in front and last."""
        return [cls(Fixed(4, 0, True)), cls(Fixed(8, -1, True))]
