"""The ops under the exact codecs: torch's own checks of a registered op, and the arguments they refuse."""

from typing import Any

import pytest
import torch

from division.kernels import ops
from division.kernels.reference import index  # noqa: F401  (defines its ops)
from division.kernels.reference.packing import pack_small, unpack_small

X = torch.randn(2, 3, 5)
MASK = (X > 0).float()
INDEX = torch.tensor([[[0, 3], [9, 14]]])
WINDOW = ([4, 4], [2, 2], [2, 2], [0, 0], [1, 1])
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("bits_encode", (X, 0.0, 1.0, True, False, True)),
    ("bits_decode", (torch.zeros(4, dtype=torch.uint8), [2, 3, 5], [15, 1, 3], torch.bfloat16, 1.0, 0.0)),
    ("interval_encode", (X, 0.0, 1.0)),
    (
        "interval_decode",
        (torch.zeros(8, dtype=torch.uint8), [2, 3, 5], [15, 5, 1], torch.float32, [0.0, 1.0, 2.0, 3.0]),
    ),
    ("mask_encode", (MASK,)),
    ("mask_decode", (torch.zeros(4, dtype=torch.uint8), torch.ones(1), [2, 3, 5], [15, 5, 1])),
    ("window_encode", (INDEX, *WINDOW)),
    ("window_encode", (INDEX, [4, 4], [2, 2], [], [], [])),
    ("window_decode", (torch.zeros(1, dtype=torch.uint8), [1, 2, 2], [4, 2, 1], *WINDOW)),
]


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_the_op_is_sound(name: str, arguments: tuple[Any, ...]) -> None:
    op: Any = ops.call(name)
    torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_small_numbers_pack_and_unpack(bits: int, count: int) -> None:
    values = torch.randint(0, 1 << bits, (count,), dtype=torch.uint8)
    codes = pack_small(values, bits)
    assert codes.numel() == -(-count * bits // 8)
    assert torch.equal(unpack_small(codes, bits, count), values)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bits_encode", (X.int(), 0.0, 1.0, True, True, True)),
        ("bits_encode", (X, float("nan"), 1.0, True, True, True)),
        ("bits_encode", (X, -torch.inf, torch.inf, True, True, True)),
        ("bits_decode", (torch.zeros(3, dtype=torch.uint8), [2, 3, 5], [15, 5, 1], torch.float32, 1.0, 0.0)),
        ("bits_decode", (torch.zeros(4), [2, 3, 5], [15, 5, 1], torch.float32, 1.0, 0.0)),
        ("interval_decode", (torch.zeros(8, dtype=torch.uint8), [2, 3, 5], [15, 5, 1], torch.float32, [0.0])),
        ("mask_encode", (torch.zeros(2, dtype=torch.complex64),)),
        ("mask_decode", (torch.zeros(4, dtype=torch.uint8), torch.ones(2), [2, 3, 5], [15, 5, 1])),
        ("window_encode", (INDEX.int(), *WINDOW)),
        ("window_encode", (INDEX, [4], *WINDOW[1:])),
        ("window_encode", (INDEX, [4, 4], [2, 0], [2, 2], [0, 0], [1, 1])),
        ("window_encode", (INDEX, [4, 4], [2, 2], [2], [0, 0], [1, 1])),
        ("window_decode", (torch.zeros(2, dtype=torch.uint8), [1, 2, 2], [4, 2, 1], *WINDOW)),
    ],
)
def test_wrong_arguments_are_refused(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"got .*expected"):
        ops.call(name)(*arguments)
