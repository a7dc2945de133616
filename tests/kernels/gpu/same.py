"""Equality to the bit, of everything but which NaN it is."""

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same(got: Tensor, expected: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape, strides and bits; one NaN is as good as another."""
    if (got.dtype, got.shape, got.stride()) != (expected.dtype, expected.shape, expected.stride()):
        return False
    if not got.is_floating_point():
        return torch.equal(got, expected)
    kind = _INTEGERS[got.element_size()]
    equal = (got.view(kind) == expected.view(kind)) | (got.isnan() & expected.isnan())
    return bool(equal.all())
