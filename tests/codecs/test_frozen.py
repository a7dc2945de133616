"""The formats: these bytes for these tensors and seeds, in every version of the library."""

import torch
from torch import Tensor

from division.codecs import Codec, Dual, Frequency, Group
from tests.codecs.contract import encode

_LFC = "883f6c3f933fb43f5c3fa0bf000000000000000000000000"
#: By bits: low frequencies, codes, offset and step. The second plane spans less than what its block means would leave.
DUAL = {
    1: [_LFC, "20a1a96b491d1a9a91809412", "44c0c740f8bfc440"],
    2: [_LFC, "244d279de78997799234e3029d278dd749d2499274922802", "44c00540f8bf0340"],
    4: [
        _LFC,
        "501bd7835f1ac6834df9b5713cd7945e1bc6823e1bc708d7934f0ac6823ef9a6712ce894501bd7834e0ac6823d09",
        "44c0d43ef8bfd23e",
    ],
    8: [
        _LFC,
        (
            "005fbd1a7ed73392f152ab0866c52780df3b99fe51b00c6bbf2684e33f94fc58b71467d12d8beb3cb20e6dcb7e"
            "7ddd3797f750b00a6acb2485e53e9efe59b81272d22c8ced46a60060c01a7ada3494f44eae0868c82182e23b9c"
        ),
        "44c0c83cf8bfc53c",
    ],
}
#: By bits: codes, offsets and steps.
GROUP: dict[int | tuple[int, ...], list[str]] = {
    2: [
        "344d13744e13388e13",
        "00c0c63f40bfab3f00beab3fe8bfc63f10bfab3f803dab3fd0bfc63fc0beab3f803eab3f",
    ],
    5: [
        "e07dc23e881f44e0fdd23c881f44007ed23e901f44",
        "00c0193e40bf053e00be053ee8bf193e10bf053e803d053ed0bf193ec0be053e803e053e",
    ],
    16: [
        (
            "0000247f48fe5d22296b04fe0000da9204fe0000da920000247f48fe5d222a6b04fe0000da9204fe0000da920000247f48fe5c222a6b04"
            "fe0000da9204fe0000da92"
        ),
        "00c0953840bf813800be8138e8bf953810bf8138803d8138d0bf9538c0be8138803e8138",
    ],
    (1, 3, 8): [
        "2401d8b3830701007ffe226cfe0093fe0092",
        "00c0944040bf804000be8040e8bf2a3f10bf133f803d133fd0bf953cc0be813c803e813c",
    ],
}

#: Masks, values and peaks.
FREQUENCY = [
    "ff2f15767f16cdf769beff09",
    (
        "09fe0101fffe01fe0102fffffdfffefe0901020201fffd01ffffffffffffff0c01fffe01fdfe010102ff010101ffff08fe01ffff010103ffff01fe"
        "0201ff01"
    ),
    "0000884000008640",
]


def values(size: tuple[int, ...]) -> Tensor:
    return (torch.arange(torch.Size(size).numel(), dtype=torch.float32) * 37 % 101 / 16 - 2).view(size)


def code(codec: Codec, x: Tensor) -> list[str]:
    return [
        bytes(part.contiguous().view(torch.uint8).flatten().tolist()).hex() for part in encode(codec, x, 2024).parts
    ]


def test_dual() -> None:
    for bits, frozen in DUAL.items():
        assert code(Dual(4, bits), values((1, 2, 9, 5))) == frozen


def test_group() -> None:
    for bits, frozen in GROUP.items():
        assert code(Group(bits, 4), values((3, 11))) == frozen


def test_frequency() -> None:
    assert code(Frequency(), values((1, 2, 9, 5))) == FREQUENCY
