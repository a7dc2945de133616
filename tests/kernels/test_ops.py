"""The ops as torch sees them: schemas, fakes, argument checks at the call, and the memory they take."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import division.codecs  # noqa: F401  (defines the ops)
from division.kernels import ops
from division.kernels.reference import chunks, dual, frequency, group, mixed, pool, ranged
from tests.codecs.contract import FAKE_DEVICES

call = ops.call


def map_cases(x: Tensor) -> dict[str, tuple[Any, ...]]:
    """Arguments for each op on maps."""
    place = (list(x.shape), list(x.stride()), x.dtype)
    code = call("dual_encode")(x, 4, 2, 7)
    return {
        "dual_encode": (x, 4, 2, 7),
        "dual_decode": (*code, *place, 4, 2),
        "block_pool": (x, 4),
        "block_spread": (call("block_pool")(x, 4), *place, 4),
    }


def row_cases(x: Tensor) -> dict[str, tuple[Any, ...]]:
    place = (list(x.shape), list(x.stride()), x.dtype)
    return {
        "group_encode": (x, 1, 8, [3], 7),
        "group_decode": (*call("group_encode")(x, 1, 8, [3], 7), *place, 1, 8, [3]),
        "ranged_encode": (x, call("group_encode")(x, 1, max(x.numel(), 1), [3], 7)[1], 1, 3, 7),
    }


def block_cases(x: Tensor) -> dict[str, tuple[Any, ...]]:
    """Of ops whose results are as large as the values make them; their fakes give the largest."""
    place = (list(x.shape), list(x.stride()), x.dtype)
    return {
        "frequency_encode": (x, 2.0, 0.3),
        "frequency_decode": (*call("frequency_encode")(x, 2.0, 0.3), *place, 2.0, 0.3),
    }


def cases(x: Tensor) -> dict[str, tuple[Any, ...]]:
    return map_cases(x) | row_cases(x) | block_cases(x)


def sample_cases(x: Tensor) -> dict[str, tuple[Any, ...]]:
    """The ops that keep the ranges of all groups for a time."""
    place = (list(x.shape), list(x.stride()), x.dtype)
    return {
        "mixed_encode": (x, 256, 5, 7),
        "mixed_decode": (*call("mixed_encode")(x, 256, 5, 7), *place, 256),
    }


def overload(name: str) -> torch._ops.OpOverload:
    found = call(name)
    assert isinstance(found, torch._ops.OpOverload)
    return found


NAMES = list(cases(torch.zeros(1, 1, 2, 2)))
SAMPLE_NAMES = list(sample_cases(torch.zeros(2, 1, 2, 2)))
OF_VALUES = frozenset({"frequency_encode"})


@pytest.mark.parametrize("name", NAMES + SAMPLE_NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "empty"])
def test_opcheck(name: str, dtype: torch.dtype, layout: str) -> None:
    x = torch.randn(2, 0 if layout == "empty" else 3, 5, 6).to(dtype)
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    args = (cases(x) | sample_cases(x))[name]
    torch.library.opcheck(overload(name), args, test_utils=tests[:2] if name in OF_VALUES else tests)


@pytest.mark.parametrize("name", NAMES + SAMPLE_NAMES)
@pytest.mark.parametrize("device", FAKE_DEVICES)
def test_fakes_are_of_any_device(name: str, device: str) -> None:
    x = torch.randn(2, 3, 5, 6)
    args = (cases(x) | sample_cases(x))[name]
    real = call(name)(*args)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(a).to(device) if isinstance(a, Tensor) else a for a in args]
        results = call(name)(*fake)
    for a, b in zip(tree_leaves(real), tree_leaves(results), strict=True):
        assert (b.dtype, b.stride(), b.device.type) == (a.dtype, a.stride(), device)
        assert b.shape == a.shape or (name in OF_VALUES and b.numel() >= a.numel())


def test_every_op_is_defined_with_a_check_and_a_body() -> None:
    for name in ops._checks:
        full = overload(name).name()
        assert torch._C._dispatch_has_kernel(full), name
        keys = ("CompositeExplicitAutograd", "CPU")
        assert any(torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for key in keys), name


X = torch.zeros(2, 3, 4, 4)
_dual, _group, _mixed = map_cases(X), row_cases(X), sample_cases(X)
_frequency = block_cases(X)["frequency_decode"]


def changed(args: tuple[Any, ...], i: int, value: Any) -> tuple[Any, ...]:
    return (*args[:i], value, *args[i + 1 :])


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize(
    ("name", "args", "error", "words"),
    [
        ("dual_encode", (torch.zeros(2, 3), 8, 2, 0), ValueError, r"got a tensor of shape \(2, 3\), expected \(N, C"),
        ("dual_encode", (torch.zeros(2, 3, 4, dtype=torch.int64), 8, 2, 0), TypeError, "got dtype torch.int64"),
        ("dual_encode", (X, 0, 2, 0), ValueError, "got block=0, expected at least 1"),
        ("dual_encode", (X, 8, 3, 0), ValueError, r"got bits=3, expected one of \(1, 2, 4, 8\)"),
        ("block_pool", (X, -1), ValueError, "got block=-1"),
        ("dual_decode", changed(_dual["dual_decode"], 0, torch.zeros(6, 1)), ValueError, "got lfc torch.float32"),
        ("dual_decode", changed(_dual["dual_decode"], 3, [2, 3, 4, 5]), ValueError, "expected .* for shape"),
        ("dual_decode", changed(_dual["dual_decode"], 7, 5), ValueError, "got codes|expected"),
        ("block_spread", changed(_dual["block_spread"], 1, [2, 3, 9, 4]), ValueError, "got lfc"),
        ("group_encode", (X, 5, 8, [2], 0), ValueError, "got lead=5, expected 0 to 4"),
        ("group_encode", (X, 1, 0, [2], 0), ValueError, "got a group of 0 elements"),
        ("group_encode", (X, 1, 8, [17], 0), ValueError, r"got bits=\[17\]"),
        ("group_encode", (X, 1, 8, [], 0), ValueError, "got 0 bit widths"),
        ("group_encode", (X, 1, 8, [2, 3, 4], 0), ValueError, "got 3 bit widths"),
        ("group_encode", (X, 0, 8, [2, 3], 0), ValueError, "got 2 bit widths"),
        ("group_encode", (X.to(torch.complex64), 1, 8, [2], 0), TypeError, "got dtype torch.complex64"),
        (
            "group_decode",
            changed(_group["group_decode"], 0, torch.zeros(3, dtype=torch.uint8)),
            ValueError,
            "got codes",
        ),
        ("group_decode", changed(_group["group_decode"], 6, 20), ValueError, "got scale"),
        (
            "mixed_encode",
            (X, 100, 4, 0),
            ValueError,
            "got a group of 100 elements, expected a multiple of 16 up to 4096",
        ),
        ("mixed_encode", (X, 16, 1, 0), ValueError, "got 1 bits for 2 samples, expected 1 to 8 for each: 2 to 16"),
        ("mixed_encode", (X, 16, 17, 0), ValueError, "got 17 bits for 2 samples"),
        ("mixed_encode", (torch.zeros(()), 16, 0, 0), ValueError, "got a tensor without dims"),
        ("mixed_encode", (X.to(torch.complex64), 16, 4, 0), TypeError, "got dtype torch.complex64"),
        (
            "mixed_decode",
            changed(_mixed["mixed_decode"], 0, torch.zeros(7, dtype=torch.uint8)),
            ValueError,
            "got codes",
        ),
        ("mixed_decode", changed(_mixed["mixed_decode"], 6, 16), ValueError, "got scale"),
        ("mixed_decode", changed(_mixed["mixed_decode"], 2, torch.zeros(2)), ValueError, "got widths torch.float32"),
        ("ranged_encode", changed(_group["ranged_encode"], 1, torch.zeros(2, 2)), ValueError, "got scale"),
        ("ranged_encode", changed(_group["ranged_encode"], 3, 0), ValueError, r"got bits=\[0\]"),
        ("ranged_encode", changed(_group["ranged_encode"], 2, 9), ValueError, "got lead=9"),
        (
            "frequency_encode",
            (torch.zeros(2, 3), 8.0, 0.3),
            ValueError,
            r"got a tensor of shape \(2, 3\), expected \(N, C",
        ),
        ("frequency_encode", (X, 0.0, 0.3), ValueError, "got quality=0.0, expected a finite number above 0"),
        ("frequency_encode", (X, 8.0, -1.0), ValueError, "got slope=-1.0, expected a finite number of at least 0"),
        ("frequency_decode", changed(_frequency, 0, torch.zeros(6, 1)), ValueError, "got masks torch.float32"),
        ("frequency_decode", changed(_frequency, 2, torch.zeros(2)), ValueError, r"got peaks .*expected .*\(3,\)"),
        (
            "frequency_decode",
            changed(_frequency, 1, torch.zeros(97, dtype=torch.int8)),
            ValueError,
            "expected at most 96",
        ),
    ],
)
def test_a_wrong_argument_is_refused_at_the_call(
    name: str, args: tuple[Any, ...], error: type[Exception], words: str, fake: bool
) -> None:
    if not fake:
        with pytest.raises(error, match=words):
            call(name)(*args)
        return
    with FakeTensorMode() as mode:
        args = tuple(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args)
        with pytest.raises(error, match=words):
            call(name)(*args)


class Peak(TorchDispatchMode):
    """Bytes of the storages made inside, at their most."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                ref = StorageWeakRef(leaf.untyped_storage())
                self.live[ref.cdata] = (ref, leaf.untyped_storage().nbytes())
        self.live = {key: pair for key, pair in self.live.items() if not pair[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return out


def extra_bytes(body: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Peak of what a body allocates, over its arguments' and its result's bytes."""
    given = {a.untyped_storage()._cdata for a in tree_leaves(args) if isinstance(a, Tensor)}
    with Peak() as peak:
        result = body(*args)
    kept = sum(r.nbytes for r in tree_leaves(result))
    of_arguments = sum(size for ref, size in peak.live.values() if ref.cdata in given)
    return peak.peak - kept - of_arguments


BODIES: dict[str, Callable[..., Any]] = {
    "dual_encode": dual.dual_encode,
    "dual_decode": dual.dual_decode,
    "block_pool": pool.block_pool,
    "block_spread": pool.block_spread,
    "group_encode": group.group_encode,
    "group_decode": group.group_decode,
    "ranged_encode": ranged.ranged_encode,
    "frequency_encode": frequency.frequency_encode,
    "frequency_decode": frequency.frequency_decode,
}


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_temporary_memory_is_bounded(layout: str) -> None:
    """A map of 64 MiB in planes of 4096 cells, or 8 MiB where that takes long: a few MiB beside it and its code."""
    x = torch.randn(64, 64, 64, 64)
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    for name, args in (map_cases(x) | row_cases(x) | block_cases(x[:8])).items():
        assert extra_bytes(BODIES[name], args) < 8 << 20, name


def test_mixed_keeps_little_beside_the_ranges() -> None:
    x = torch.randn(64, 64, 64, 64)
    args = (x, 256, 160, 7)
    assert extra_bytes(mixed.mixed_encode, args) < 11 << 20
    code = mixed.mixed_encode(*args)
    assert extra_bytes(mixed.mixed_decode, (*code, list(x.shape), list(x.stride()), x.dtype, 256)) < 8 << 20


@pytest.mark.parametrize("name", NAMES)
def test_temporary_memory_does_not_grow_with_the_tensor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_CPU_ELEMENTS", 1 << 13)
    small, large = (extra_bytes(BODIES[name], cases(torch.randn(n, 8, 32, 32))[name]) for n in (4, 16))
    assert 0 < large <= small * 1.02 + 512
