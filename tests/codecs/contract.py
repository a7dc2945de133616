"""What every codec is held to: functions that take a codec and a tensor and assert one promise each."""

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from division.codecs import CODECS, Codec, Elsewhere, Packed, from_config

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((2, 3, 9, 10), (4, 21), (2, 3, 37), (1, 2, 5, 4, 3), (2, 0, 4, 4), (0, 3, 4, 4), (1, 1, 1, 1), (11,), ())
#: A build without CUDA has no fake GPU either.
FAKE_DEVICES = ("cpu", "cuda") if torch.backends.cuda.is_built() else ("cpu",)
#: Codecs of which no element is promised: what they decode to is undefined.
UNDEFINED = frozenset({"shape"})
#: Codecs whose code goes by where the elements lie in memory: layouts of one tensor have one meaning, not one code.
IN_MEMORY_ORDER = frozenset(
    {"bits", "error_bound", "fixed", "interval", "mask", "positive", "sz3", "verbatim", "zeros"}
)
#: Codecs of which an element decodes by what lies around it: of another layout, to something else within the bound.
BY_NEIGHBOURS = frozenset({"error_bound", "sz3"})


def samples(codec: Codec) -> list[Tensor]:
    """Tensors that the codec takes: all of the candidates that it doesn't refuse."""
    make = _MEANT_FOR.get(codec.name, _any_tensor)
    found = [x for x in make(codec) if codec.why_not(x) is None]
    assert found, f"{codec} takes none of the samples: add some to tests/codecs/contract.py"
    return found


def _any_tensor(codec: Codec) -> Iterator[Tensor]:
    for i, shape in enumerate(SHAPES):
        generator = torch.Generator().manual_seed(i)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        yield from (x.to(dtype) for dtype in (FLOATS if i < 2 else (torch.float32,)))
        yield x > 0
        yield (x > 0) * 1.25


def _small_integers(codec: Codec) -> Iterator[Tensor]:
    limit, signed = codec.limit, codec.signed  # type: ignore[attr-defined]
    for shape in SHAPES:
        x = torch.randint(-limit if signed else 0, limit, shape, generator=torch.Generator().manual_seed(3))
        yield x
        yield x.to(torch.int32)


def _window_indices(codec: Codec) -> Iterator[Tensor]:
    setting = dataclasses.asdict(codec)  # type: ignore[call-overload]
    plane, kernel, stride = setting["plane"], setting["kernel"], setting["stride"]
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(plane) - 1]
    x = torch.randn(2, 3, *plane, generator=torch.Generator().manual_seed(4))
    padding, dilation = setting["padding"] or 0, setting["dilation"] or 1
    yield pool(x, kernel, stride, padding, dilation, return_indices=True)[1]


def _adaptive_indices(codec: Codec) -> Iterator[Tensor]:
    plane = codec.plane  # type: ignore[attr-defined]
    pool = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[len(plane) - 1]
    x = torch.randn(2, 3, *plane, generator=torch.Generator().manual_seed(5))
    for size in ([1] * len(plane), [3] * len(plane)):
        yield pool(x, size, return_indices=True)[1]


#: Codecs that take their input's values on trust get inputs that deserve it.
_MEANT_FOR: dict[str, Callable[[Codec], Iterator[Tensor]]] = {
    "narrow": _small_integers,
    "window": _window_indices,
    "adaptive_window": _adaptive_indices,
}


def encode(codec: Codec, x: Tensor, seed: int = 0) -> Packed:
    with torch.no_grad():
        return codec.encode(x, seed)


def decode(codec: Codec, packed: Packed, dtype: torch.dtype | None = None) -> Tensor:
    """What the code stands for, in another dtype if asked: float32 shows it before it is rounded to 16 bits."""
    with torch.no_grad():
        return codec.decode(dataclasses.replace(packed, dtype=dtype or packed.dtype))


def bits_of(x: Tensor) -> Tensor:
    """The bytes of the elements in row-major order, so that NaN equals itself and -0 differs from 0."""
    return x.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits_of(a), bits_of(b))


def same_code(a: Packed, b: Packed) -> bool:
    return len(a.parts) == len(b.parts) and all(map(same_bits, a.parts, b.parts))


def layouts(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Tensors equal to ``x`` with other strides, and their names; some with gaps."""
    dims = x.dim()
    yield "contiguous", x.contiguous()
    for name, order in (("reversed", [*range(dims)][::-1]), ("rotated", [*range(dims)][1:] + [*range(dims)][:1])):
        back = sorted(range(dims), key=order.__getitem__)
        yield name, x.permute(order).contiguous().permute(back)
    if dims == 4:
        yield "channels_last", x.contiguous(memory_format=torch.channels_last)
    if dims == 5:
        yield "channels_last_3d", x.contiguous(memory_format=torch.channels_last_3d)
    if dims:
        big = torch.zeros([n + 2 for n in x.shape], dtype=x.dtype)
        big[tuple(slice(1, n + 1) for n in x.shape)] = x
        yield "gapped", big[tuple(slice(1, n + 1) for n in x.shape)]
        wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)
        wide[..., ::2] = x
        yield "gapped by steps", wide[..., ::2]
    yield "offset", torch.cat((x.flatten(), x.flatten()))[x.numel() :].view(x.shape)
    if 1 in x.shape:
        plain = x.contiguous()
        odd = [
            12345 + d if n == 1 else stride for d, (n, stride) in enumerate(zip(x.shape, plain.stride(), strict=True))
        ]
        yield "odd strides", plain.as_strided(x.shape, odd)


def check_round_trip(codec: Codec, x: Tensor) -> None:
    """Input, global generator and code stay as they are; the result has the input's form and is fresh each time."""
    before, version, generator = bits_of(x).clone(), x._version, torch.get_rng_state()
    packed = encode(codec, x, 5)
    first = decode(codec, packed)
    if first.numel():
        kept = bits_of(first).clone()
        first.zero_()
        second = decode(codec, packed)
        assert first.data_ptr() != second.data_ptr()
        assert codec.name in UNDEFINED or torch.equal(bits_of(second), kept)
    assert torch.equal(bits_of(x), before)
    assert x._version == version
    assert torch.equal(torch.get_rng_state(), generator)
    assert (first.shape, first.dtype, first.device) == (x.shape, x.dtype, x.device)
    assert not first.requires_grad
    check_stride(x, first)
    check_parts(packed, x)


def check_parts(packed: Packed, x: Tensor) -> None:
    """The code keeps no more memory alive than it counts, and none of the input's."""
    for part in packed.parts:
        assert part.untyped_storage().nbytes() == part.nbytes
        assert not part.nbytes or part.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert not part.requires_grad


def check_stride(x: Tensor, out: Tensor) -> None:
    """Dense strides come back exactly, gapped ones closed up with the dims in the same order."""
    if x.numel() == 0 or _is_dense(x):
        assert out.stride() == x.stride()
        return
    assert _is_dense(out)
    moved = [d for d in range(x.dim()) if x.shape[d] > 1]
    assert sorted(moved, key=x.stride) == sorted(moved, key=out.stride)


def _is_dense(x: Tensor) -> bool:
    reach = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) + 1
    return reach == x.numel()


def check_bytes(codec: Codec, x: Tensor) -> None:
    """The formula, the code of a real tensor and that of a fake one, here and on a GPU, are of one size.

    Without the promise of a fixed size the real one is between the least and the most, and the fake one of the most.
    """
    promised = codec.packed_bytes(tuple(x.shape), x.dtype)
    packed = encode(codec, x)
    fixed = "fixed_size" in codec.promises
    assert codec.least_bytes(tuple(x.shape), x.dtype) <= packed.nbytes <= promised
    assert packed.nbytes == promised or not fixed
    for device in FAKE_DEVICES:
        with FakeTensorMode():
            fake = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
            code = encode(codec, fake)
            out = decode(codec, code)
        assert code.nbytes == promised
        assert [p.shape for p in code.parts] == [p.shape for p in packed.parts] or not fixed
        assert [p.dtype for p in code.parts] == [p.dtype for p in packed.parts]
        assert (out.stride(), out.dtype, out.device.type) == (packed.stride, x.dtype, device)


def check_layouts(codec: Codec, x: Tensor) -> None:
    """What is decoded depends on the elements alone, not on where they lie; nor do codes, but for those in their order."""
    plain = encode(codec, x.contiguous(), 3)
    expected = decode(codec, plain)
    for name, moved in layouts(x):
        assert torch.equal(bits_of(moved), bits_of(x)), name
        reason = codec.why_not(moved)
        if reason == "gapped layout" and not _is_dense(moved):
            continue
        assert reason is None, (name, moved.shape, moved.stride())
        version = moved._version
        code = encode(codec, moved, 3)
        own = codec.inner if isinstance(codec, Elsewhere) else codec
        assert torch.equal(bits_of(moved), bits_of(x)), f"{name}: the input was written to"
        assert moved._version == version, name
        assert own.name in IN_MEMORY_ORDER or same_code(code, plain), name
        out = decode(codec, code)
        assert own.name in UNDEFINED | BY_NEIGHBOURS or same_bits(out, expected), name
        check_stride(moved, out)


def check_refusals(codec: Codec, x: Tensor) -> None:
    """An expanded tensor and an overlapping one are refused, in words (by all that read elements)."""
    if codec.name in UNDEFINED or x.numel() < 2:
        return
    shared = x.flatten()[:1].expand(x.shape)
    d = max(range(x.dim()), key=x.shape.__getitem__)
    sliding = x.contiguous().flatten().as_strided((x.shape[d],) * 2, (1, 1)) if x.numel() >= 2 * x.shape[d] else shared
    for bad in (shared, sliding):
        reason = codec.why_not(bad)
        assert reason, f"{codec} takes an overlapping tensor of strides {bad.stride()}"


def check_value(codec: Codec) -> None:
    """A codec is a value: comparable, hashable, printable, picklable, and plain data in JSON."""
    twins = (
        from_config(codec.config()),
        from_config(json.loads(json.dumps(codec.config()))),
        pickle.loads(pickle.dumps(codec)),
        copy.deepcopy(codec),
        eval(repr(codec), {c.__name__: c for c in CODECS.values()} | {"inf": float("inf")}),
    )
    for twin in twins:
        assert twin == codec
        assert hash(twin) == hash(codec)
        assert repr(twin) == repr(codec)
        assert twin.promises == codec.promises
    assert codec.config()["codec"] == codec.name
    assert codec != object()
