"""Which parts of a network are run again in backward: consecutive layers and blocks, found in its structure."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import nn
from torch.jit import ScriptModule

#: Layers in a block, as a rule: of a residual network a block has seven, of a transformer eight or nine.
_LAYERS = 8
_FEWEST, _SLACK = 4, 1.5
_LISTS = (nn.ModuleList, nn.ModuleDict)


class Segment(NamedTuple):
    """Modules that are run again together: one module, or some consecutive members of an ``nn.Sequential``.

    Attributes:
        name: of the module, or of the sequence and the numbers of its first and last member: ``"features.0-4"``.
        module: the module, or the sequence.
        start, stop: which of its members; None for the whole of a module.
        layers: how many modules without parts it holds; what a sequence holds twice, it holds twice here.
    """

    name: str
    module: nn.Module
    start: int | None
    stop: int | None
    layers: int


def choose(
    model: nn.Module, count: int | None = None, covered: Callable[[str], bool] = lambda name: True
) -> list[Segment]:
    """Segments of a network, each to be run again in backward from what it was called with.

    Beginning with the network as a whole, what has more than its share of the layers is divided: a plain
    ``nn.Sequential`` between two of its members, another module into the parts it calls. The share is that of about
    the square root of the number of blocks, since what is kept grows with the number of segments and what is
    recomputed at once shrinks with it. The network as a whole is never one segment.

    Args:
        model: the network.
        count: of shares; None for the square root of an eighth of the number of layers, at least 4.
        covered: whether a module of this name may be run again.

    Returns:
        the segments, in the order in which the network holds them; at least 2.

    Raises:
        ValueError: fewer than two are found.

    Example:
        >>> layers = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())]
        >>> [segment.name for segment in choose(nn.Sequential(*layers))]
        ['0-2', '3-5', '6-8', '9-11']
    """
    total = _layers(model)
    shares = max(_FEWEST, round(math.sqrt(total / _LAYERS))) if count is None else count
    share = min(max(2, _SLACK * total / shares), total - 1)
    found = [segment for segment in _divided("", model, share, covered, set()) if segment.layers > 1]
    if len(found) < 2:
        raise ValueError(
            f"found no blocks in {type(model).__name__} to run again in backward, expected a network of two or more modules"
            " with several layers each, or a longer nn.Sequential: group its layers into modules, or call"
            " division.recompute() or torch.utils.checkpoint in its forward"
        )
    return found


def is_sequence(module: nn.Module) -> bool:
    """Whether its forward is that of ``nn.Sequential``: one member after another."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def members_of(sequence: nn.Module) -> list[tuple[str, nn.Module]]:
    """What a sequence runs, with the names; a module that it holds twice is there twice, other than among its children."""
    return list(sequence._modules.items())  # type: ignore[arg-type]


def _divided(
    name: str, module: nn.Module, share: float, covered: Callable[[str], bool], seen: set[nn.Module]
) -> Iterator[Segment]:
    if module in seen:  # by another name: of two segments from one place each call would run both
        return
    free = bool(seen) and _free(name, module, covered)
    seen.add(module)
    layers = _layers(module)
    if free and layers <= share:
        yield Segment(name, module, None, None, layers)
    elif is_sequence(module) and _open(module) and None not in module._modules.values():
        yield from _ranges(name, module, 0, len(members_of(module)), share, covered, seen)
    else:
        parts = [segment for part in _parts(name, module) for segment in _divided(*part, share, covered, seen)]
        held = sum(segment.layers for segment in parts if segment.layers > 1)
        # A block that falls into single layers saves nothing: it stays one, unless it is most of the network.
        if free and held < layers / 2 and layers < 2 * share:
            yield Segment(name, module, None, None, layers)
        else:
            yield from parts


def _ranges(
    name: str, sequence: nn.Module, start: int, stop: int, share: float, covered: Callable[[str], bool],
    seen: set[nn.Module],
) -> Iterator[Segment]:  # fmt: skip
    members = members_of(sequence)[start:stop]
    sizes = [_layers(member) for _, member in members]
    if len(members) == 1:
        yield from _divided(_joined(name, members[0][0]), members[0][1], share, covered, seen)
        return
    free = all(_free(_joined(name, own), member, covered) for own, member in members)
    if members and free and sum(sizes) <= share:
        yield Segment(_joined(name, f"{members[0][0]}-{members[-1][0]}"), sequence, start, stop, sum(sizes))
    elif members:
        # Not before one that works in place: its input, which is to be kept, would have to be copied.
        cuts = [i for i in range(1, len(members)) if not getattr(members[i][1], "inplace", False)]
        cuts = cuts or list(range(1, len(members)))
        middle = min(cuts, key=lambda i: abs(sum(sizes[:i]) - sum(sizes[i:])))
        yield from _ranges(name, sequence, start, start + middle, share, covered, seen)
        yield from _ranges(name, sequence, start + middle, stop, share, covered, seen)


def _free(name: str, module: nn.Module, covered: Callable[[str], bool]) -> bool:
    """Whether a module may be run again: of TorchScript nobody knows what it would change."""
    parts = module.named_modules()
    return all(
        covered(_joined(name, part)) and not isinstance(each, ScriptModule) and not _scales_its_weight(each)
        for part, each in parts
    )


def _scales_its_weight(module: nn.Module) -> bool:
    """Whether forward changes the weight: run again in backward, it would do so once more."""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None


def _parts(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What a module calls, as far as its structure tells: its children, of lists that can't be called their members."""
    if not _open(module):
        return
    for child_name, child in module.named_children():
        full = _joined(name, child_name)
        if type(child).forward is nn.Module.forward or type(child) in _LISTS:
            yield from _parts(full, child)
        else:
            yield full, child


def _open(module: nn.Module) -> bool:
    """Whether its parts can be run otherwise: not of TorchScript, of what is compiled, and of what works on copies."""
    compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    return not (compiled or isinstance(module, ScriptModule | nn.DataParallel))


def _layers(module: nn.Module) -> int:
    """How many modules without parts a module holds, itself included; each once, but as often as a sequence has it."""
    return _held(module, set()) if _open(module) else 1


def _held(module: nn.Module, seen: set[nn.Module]) -> int:
    if module in seen:
        return 0
    seen.add(module)
    if next(module.children(), None) is None:
        return 1
    parts = Counter(module._modules.values()) if is_sequence(module) else dict.fromkeys(module.children(), 1)
    return sum(times * _held(part, seen) for part, times in parts.items() if part is not None)


def _joined(name: str, part: str) -> str:
    return f"{name}.{part}" if name and part else name or part
