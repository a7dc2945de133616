"""Runs an op with its saved tensors coded as the rules say, and compares gradients with plain PyTorch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from division.codecs.bits import Mask, is_mask
from division.codecs.codec import Codec
from division.codecs.layout import overlaps
from division.rules import Reading, Use, rules_for

Key = tuple[str, str]
Swap = Callable[[Key, Reading, Tensor], Tensor | None]
"""What backward gets instead of a saved tensor; None to leave it alone."""


@dataclass(frozen=True)
class Case:
    """An op with the uses its rules should find.

    Attributes:
        name: id of the test.
        op: from inputs to an output.
        shapes: shapes of the inputs; the first is the activation, in several layouts.
        uses: the use expected for each (node, field).
        thresholds: where the op changes its mind; they and their neighbours are put among the inputs.
        frozen: inputs that take no gradient.
        double: whether PyTorch itself has a double backward.
        widest: the widest dtype it takes.
    """

    name: str
    op: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    uses: dict[Key, Use]
    thresholds: tuple[float, ...] = ()
    frozen: tuple[int, ...] = ()
    double: bool = True
    widest: torch.dtype = torch.float64


def nodes_of(output: Tensor, seen: set[Any] | None = None) -> Iterator[Any]:
    """The nodes of an output's graph that aren't among those seen, which they are added to."""
    seen, todo = set() if seen is None else seen, [output.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        todo += [following for following, _ in node.next_functions]


def saved_by(node: Any, field: str | int) -> tuple[Any, Any]:
    """Raw and read, what a node saved in a field, which ``[i]`` may end in; None where it is none, or a shorter list."""
    name, _, index = str(field).removesuffix("]").partition("[")
    raw, saved = getattr(node, f"_raw_saved_{name}"), getattr(node, f"_saved_{name}")
    if not index:
        return raw, saved
    i = int(index)
    return (raw[i], saved[i]) if i < len(raw) else (None, None)


def readings_of(output: Tensor, seen: set[Any] | None = None) -> Iterator[tuple[Key, Any, Reading, Tensor]]:
    """Each saved tensor in the graph of an output that a rule has something to say about."""
    for node in nodes_of(output, seen):
        for name, rule in rules_for(node.name()).items():
            raw, saved = saved_by(node, name)
            if not isinstance(saved, Tensor) or saved.layout != torch.strided:
                continue
            reading = rule(node)
            if reading is not None:
                yield (node.name(), str(name)), raw, reading, saved


def code_graph(output: Tensor, swap: Swap, seen: set[Any] | None = None) -> dict[Key, Use]:
    """Hook every saved tensor that a rule speaks of; returns what was found."""
    found: dict[Key, Use] = {}
    plans = []
    for key, raw, reading, saved in readings_of(output, seen):
        found[key] = reading.use
        with torch.no_grad():
            instead = swap(key, reading, saved.detach())
        if instead is not None:
            plans.append((raw, instead))
    for raw, instead in plans:
        raw.register_hooks(lambda _, code=instead: code, fresh)
    return found


def fresh(x: Tensor) -> Tensor:
    """A copy with exactly these strides, and as far from an aligned address: sums may depend on that.

    What overlaps itself is handed out as it is.
    """
    if overlaps(x):
        return x
    with torch.no_grad():
        reach = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() else 0
        offset = x.storage_offset() % 64
        memory = torch.empty(offset + reach, dtype=x.dtype, device=x.device)
        return memory.as_strided(x.shape, x.stride(), offset).copy_(x)


def codec_of(reading: Reading, saved: Tensor) -> Codec | None:
    """The exact codec for a saved tensor, if there is one and it takes the tensor."""
    codec = Mask() if reading.factor and saved.dim() and is_mask(saved) else reading.codec
    return codec if codec is not None and codec.why_not(saved) is None else None


def coded(key: Key, reading: Reading, saved: Tensor) -> Tensor | None:
    """By the exact codec; a plain copy for the uses that have none."""
    codec = codec_of(reading, saved)
    if codec is None:
        return fresh(saved) if reading.codec is None and saved.numel() and not overlaps(saved) else None
    packed = codec.encode(saved, seed=0)
    assert packed.nbytes == codec.packed_bytes(saved.shape, saved.dtype)
    return codec.decode(packed)


def gradients(
    case: Case, inputs: Sequence[Tensor], swap: Swap | None, double: bool = False
) -> tuple[list[Tensor | None], dict[Key, Use]]:
    """Gradients of all inputs that need one, and of the second order if asked; with the same random numbers always."""
    torch.default_generator.manual_seed(1)
    output = case.op(*inputs)
    found = code_graph(output, swap) if swap else {}
    weight = torch.randn(output.shape, dtype=torch.float64).to(output.dtype)
    wanted = [x for x in inputs if x.requires_grad]
    if not double:
        return list(torch.autograd.grad(output, wanted, weight)), found
    weight.requires_grad_()
    first = torch.autograd.grad(output, wanted, weight, create_graph=True)
    total = sum(
        ((g * torch.randn(g.shape).to(g.dtype)).sum() for g in first if g.requires_grad), start=weight.sum() * 0
    )
    second = torch.autograd.grad(total, [*wanted, weight], allow_unused=True)
    return [*(g.detach() for g in first), *second], found


def differ(got: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> list[str]:
    """How two lists of gradients differ: values bit for bit (any NaN equals any NaN), strides, dtypes."""
    wrong = []
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a is None or b is None:
            if a is not b:
                wrong.append(f"gradient {i} is None in one of the two")
            continue
        if (a.shape, a.stride(), a.dtype) != (b.shape, b.stride(), b.dtype):
            wrong.append(f"gradient {i}: {a.shape} {a.stride()} {a.dtype}, expected {b.shape} {b.stride()} {b.dtype}")
            continue
        same = ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())
        if not same.all():
            wrong.append(f"gradient {i}: {a[~same][:4].tolist()}, expected {b[~same][:4].tolist()}")
    return wrong


def specials(thresholds: Sequence[float], dtype: torch.dtype) -> Tensor:
    """NaN, both zeros, both infinities, the thresholds and their neighbours on both sides."""
    points = torch.tensor([*thresholds, 0.0, -0.0, 1.0, -1.0], dtype=torch.float64).to(dtype)
    ends = torch.tensor([torch.inf, -torch.inf], dtype=dtype)
    near = [torch.nextafter(points, end.expand_as(points)) for end in ends]
    return torch.cat([points, *near, ends, torch.tensor([torch.nan], dtype=dtype)])


LAYOUTS = ("contiguous", "channels_last", "permuted", "gapped")


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The same values in another layout; ``channels_last`` below 3 dims is the same as ``permuted``."""
    if layout == "contiguous" or values.dim() == 0:
        return values.contiguous()
    if layout == "gapped":
        wide = torch.zeros((*values.shape[:-1], 2 * values.shape[-1] + 1), dtype=values.dtype)
        gapped = wide[..., 1 : 1 + values.shape[-1]]
        gapped.copy_(values)
        return gapped
    last = 1 if layout == "channels_last" and values.dim() > 2 else 0
    order = [d for d in range(values.dim()) if d != last] + [last]
    back = [order.index(d) for d in range(values.dim())]
    return values.permute(order).contiguous().permute(back)


def inputs_of(case: Case, dtype: torch.dtype, layout: str, special: bool) -> list[Tensor]:
    """Random inputs of a case, the first in this layout and with special values strewn in if asked."""
    torch.default_generator.manual_seed(0)
    inputs = []
    for i, shape in enumerate(case.shapes):
        values = (torch.randn(shape, dtype=torch.float64) * 2).to(dtype)
        if special and i == 0:
            strewn = specials(case.thresholds, dtype)
            flat = values.view(-1)
            count = min(len(strewn), flat.numel())
            flat[torch.randperm(flat.numel())[:count]] = strewn[:count]
        x = laid_out(values, layout if i == 0 else "contiguous").detach()
        inputs.append(x.requires_grad_(i not in case.frozen))
    return inputs
