"""The formats: these bytes for these tensors and seeds, in every version of the library."""

import torch
from torch import Tensor

from division.codecs import Codec, Dual, ErrorBound, Frequency, Group, Mixed
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
#: Codes, offsets and steps, widths.
MIXED = [
    "244d279dd300c59c39bc9a35bd0a00d2f216",
    "00c0fb3f10bfc63fd0c05740f0c05040d8bfb640e0be9440",
    "020301",
]

#: By bound: bytes of the blocks, how many each has, the bound.
ERROR_BOUND = {
    1e-09: [
        "6000000000c00000a03e000028400000b0bf0000703f00005040000040bf0000c83f00007840000000be00000c40000000000000000000000000000000000000000000000000000000000000e03f000082400000803d000018400000d0bf0000303f00004040000080bf0000a83f000068400000c0be0000f83f000088400000803e00002440",
        "8600",
        "5f708930",
    ],
    0.01: ["2726ff07fcff6dfbb61f5e78f0060f446d27c92529000640b6358ea8cad66e6d55523101", "2400", "0ad7233c"],
    0.3: ["021249004012540118c7d416b0b5555b4d1900", "1300", "9999993e"],
    1.5: ["200aa5056c69fdfb0000", "0a00", "0000c03f"],
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


def test_error_bound() -> None:
    """By bound: the bytes, those of each block, the bound; by signs, by differences, and kept as it is."""
    for bound, frozen in ERROR_BOUND.items():
        x = values((3, 11))
        x[1, :7] = 0
        assert code(ErrorBound(bound), x) == frozen


def test_mixed() -> None:
    x = values((3, 21)) * torch.tensor([1.0, 4.0, 1.0])[:, None]
    assert code(Mixed(2, 16), x) == MIXED


def test_frequency() -> None:
    assert code(Frequency(), values((1, 2, 9, 5))) == FREQUENCY
