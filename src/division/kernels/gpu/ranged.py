"""The Triton body of the ranged codec's op: the group codec's kernel, with parameters that are there already."""

from math import prod

import torch
from torch import Tensor

from division.kernels.gpu.address import power_of_two
from division.kernels.gpu.group import DTYPES, alignment, by_chunks, encode_kernel
from division.kernels.gpu.launch import Configuration, Launch, reference
from division.kernels.gpu.noise import seed_arguments
from division.kernels.reference.quantize import code_bytes
from division.kernels.reference.ranged import empty_codes


def encoding(x: Tensor, codes: Tensor, scale: Tensor, lead: int, bits: int, seed: int) -> Launch | None:
    """The launch that encodes; None where no kernel takes the rows.

    Args:
        x: not empty.
        codes: where they go.
        scale: a pair as int32.
        lead, bits, seed: as the op takes them.
    """
    elements = prod(x.shape[lead:])
    way, known = by_chunks(x, lead, elements)
    if way is None:
        return None
    low, high = seed_arguments(seed)
    arguments = {
        "x": x, "codes": codes, "scale": scale, "first_row": 0, "seed_low": low, "seed_high": high,
        "group": elements, "groups": 1, "row_bytes": code_bytes(elements, bits),
    }  # fmt: skip
    constants = {"known": known, "align": alignment(way, bits), "bits": bits, "span": power_of_two(bits)}
    return way.launch(encode_kernel, arguments, constants)


def ranged_encode(x: Tensor, scale: Tensor, lead: int, bits: int, seed: int) -> Tensor:
    """The codes of every row by its (offset, step)."""
    codes = empty_codes(x, scale, lead, bits, seed)
    if x.numel() == 0:
        return codes
    scale = scale.contiguous()
    pairs = (scale.clone() if scale.storage_offset() % 2 else scale).view(torch.int32)
    launch = encoding(x, codes, pairs, lead, bits, seed) if x.dtype in DTYPES else None
    if launch is None:
        return reference("ranged_encode")(x, scale, lead, bits, seed)  # type: ignore[no-any-return]
    launch()
    return codes


def configurations() -> list[Configuration]:
    """Channels of a map in both layouts, and slices of tokens' features."""
    map_, tokens = torch.empty(32, 64, 56, 56, device="meta"), torch.empty(8, 512, 12, 64, device="meta")
    found: dict[str, Launch] = {}
    for x in (
        map_.transpose(0, 1),
        map_.to(memory_format=torch.channels_last).bfloat16().transpose(0, 1),
        tokens.permute(2, 0, 1, 3),
    ):
        scale = torch.empty(x.shape[0], 1, 2, dtype=torch.bfloat16, device="meta")
        codes = empty_codes(x, scale, 1, 8, 0)
        launch = encoding(x, codes, scale.view(torch.int32), 1, 8, 0)
        if launch is not None:
            found[f"{launch.kernel.__name__} ranged {x.dtype} {tuple(x.shape)} {x.stride()}"] = launch
    return [launch.configuration(name) for name, launch in found.items()]
