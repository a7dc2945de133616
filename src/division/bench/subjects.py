"""What `bench kernels` measures: codecs under short names, and tensors they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from division.codecs import Bits, Codec, Dual, Frequency, Group, Interval, Mask, Window

Shape = tuple[int, ...]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYOUTS = ("contiguous", "channels_last")
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Subject:
    """One codec to measure.

    Attributes:
        name: in the rows' column `codec`.
        codec: the codec; for pooling indices it depends on the shape, see :meth:`codec_for`.
        ops: the ops that encode and decode.
        bits: an element's code takes so many; of ``frequency`` a value's that is kept.
        input: what it codes: values, a mask of two values, a bool mask, or pooling indices.
    """

    name: str
    codec: Codec
    ops: tuple[str, str]
    bits: int
    input: Literal["values", "mask", "bool", "index"] = "values"

    def codec_for(self, shape: Shape) -> Codec:
        """The codec for tensors of a shape."""
        return _window(shape) if self.input == "index" else self.codec

    def takes(self, shape: Shape) -> bool:
        """Whether tensors of this shape are what the codec is for."""
        if self.input == "index":
            return len(shape) == 4
        if isinstance(self.codec, Dual | Frequency):
            return 3 <= len(shape) <= 5
        if isinstance(self.codec, Group):
            return self.codec.axis == -1 if len(shape) == 2 else self.codec.axis != -1 and len(shape) > 2
        return True

    def dtypes(self, floats: Sequence[str]) -> tuple[str, ...]:
        """The dtypes to measure, of those asked for where the codec takes any floating one."""
        fixed = {"mask": ("float32",), "bool": ("bool",), "index": ("int64",)}
        return fixed.get(self.input, tuple(floats))

    def tensor(self, shape: Shape, dtype: str, layout: str, device: str) -> Tensor:
        """A tensor to code, the same values each time."""
        generator = torch.Generator(device).manual_seed(0)
        if self.input == "index":
            maps = torch.randn((*shape[:2], *_window(shape).plane), generator=generator, device=device)
            x = functional.max_pool2d(_laid(maps, layout), 3, 2, 1, return_indices=True)[1]
        elif self.input == "values":
            x = torch.randn(shape, generator=generator, device=device).to(DTYPES[dtype])
        else:
            kept = torch.rand(shape, generator=generator, device=device) < 0.9
            x = kept if self.input == "bool" else kept.to(DTYPES[dtype]).mul_(1 / 0.9)
        return _laid(x, layout)


def layouts(shape: Shape, wanted: Sequence[str]) -> tuple[str, ...]:
    """The wanted layouts that a shape has; channels_last is one of 4 and 5 dims."""
    return tuple(layout for layout in wanted if layout == "contiguous" or len(shape) in _CHANNELS_LAST)


def _laid(x: Tensor, layout: str) -> Tensor:
    return x.contiguous() if layout == "contiguous" else x.contiguous(memory_format=_CHANNELS_LAST[x.dim()])


def _window(shape: Shape) -> Window:
    """3x3 windows every 2 cells, of maps from which they leave this shape."""
    return Window(tuple(2 * n for n in shape[2:]), (3, 3), (2, 2), (1, 1))


def _pair(stem: str) -> tuple[str, str]:
    return f"{stem}_encode", f"{stem}_decode"


#: The codecs of the methods' usual choices; `dual-low` is the dual codec without its residual, `group-plane` and
#: `group-rows` are the group codec over whole planes and along the features of a matrix.
SUBJECTS = (
    *(Subject("dual", Dual(bits=bits), _pair("dual"), bits) for bits in (2, 1, 4, 8)),
    Subject("dual-low", Dual(part="low"), ("block_pool", "block_spread"), 16),
    Subject("group", Group(2, 256, "sample"), _pair("group"), 2),
    Subject("group-plane", Group(2, None, "plane"), _pair("group"), 2),
    *(Subject("group-rows", Group(bits, 64, -1), _pair("group"), bits) for bits in (2, 8)),
    Subject("frequency", Frequency(), _pair("frequency"), 8),
    Subject("bits", Bits(lo=0.0, nan_inside=True, inside=1.0, outside=0.0), _pair("bits"), 1),
    Subject("interval", Interval(lo=0.0, hi=6.0, inside=3.0, outside=-1.0), _pair("interval"), 2),
    Subject("mask", Mask(), _pair("mask"), 1, "mask"),
    Subject("mask", Mask(), _pair("mask"), 1, "bool"),
    Subject("window", Window((2, 2), (3, 3), (2, 2), (1, 1)), _pair("window"), 4, "index"),
)
NAMES = tuple(dict.fromkeys(subject.name for subject in SUBJECTS))


def widths(names: Sequence[str]) -> list[int]:
    """The bits that codes of these codecs come in, ascending.

    Example:
        >>> widths(["dual", "mask"])
        [1, 2, 4, 8]
    """
    return sorted({subject.bits for subject in SUBJECTS if subject.name in names})
