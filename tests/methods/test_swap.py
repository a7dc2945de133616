"""Saved tensors moved as they are: the same training, on the device next to nothing, and brought back ahead of time."""

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import division
from division import methods
from division.codecs import Elsewhere, Verbatim, store
from division.methods import ActNN, Division, FixedBits, Offload, Swap
from tests.codecs.contract import encode
from tests.models import convnet, images, mlp, same, steps, total


@pytest.mark.parametrize("method", ["swap", "swap-lossless"])
def test_training_is_the_same_bit_for_bit(method: str) -> None:
    for model, x in ((convnet(16), images(4, 3, 32, 32)), (mlp(), torch.randn(64, 64))):
        plain = steps(model, [x], lambda m: division.compress("none"), 3)
        assert same(plain, steps(model, [x], lambda m: division.attach(m, method), 3))


def test_what_is_kept_is_what_is_normal_but_not_on_the_device() -> None:
    model, x = convnet(16), images(4, 3, 32, 32)
    with division.attach(model, "none") as plain:
        model(x)
    with division.attach(model, "swap") as handle:
        model(x)
    report, prediction = handle.report, division.predict(model, x, "swap")
    assert report.raw_bytes == plain.report.raw_bytes
    assert report.packed_bytes == report.raw_bytes
    # The batch, which its owner holds, and what is too small to be moved.
    small = sum(r.raw_bytes for r in plain.report.records if r.raw_bytes < 4096 and r.left not in ("weight", "state"))
    assert x.nbytes <= report.packed_bytes - report.elsewhere_bytes <= x.nbytes + small
    assert (prediction.packed_bytes, prediction.elsewhere_bytes) == (report.packed_bytes, report.elsewhere_bytes)
    assert "of the codes, to host memory or a file" in str(report)
    assert not any("elsewhere" in r.codec and r.held for r in report.records)


def test_codes_of_another_method_are_moved_and_so_is_what_it_leaves() -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.Softplus(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)),
        images(4, 3, 64, 64),
    )
    found, gradients = {}, {}
    for method in ("division", "offload-division", "swap-division", "swap"):
        with division.attach(model, method, seed=0) as handle:
            loss = model(x).sum()
        found[method] = handle.report
        loss.backward()
        gradients[method] = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
    assert found["swap-division"].packed_bytes == found["division"].packed_bytes
    assert found["swap-division"].elsewhere_bytes >= found["offload-division"].elsewhere_bytes > 0
    assert found["division"].elsewhere_bytes == 0
    assert same(gradients["swap-division"], gradients["division"])
    assert found["swap"].packed_bytes > 3 * found["swap-division"].packed_bytes


@pytest.mark.parametrize("inner", ["division", "fixed-2", "checkpoint", "checkpoint-fixed-2"])
def test_what_is_only_moved_leaves_the_noise_of_the_others_alone(inner: str) -> None:
    model, x, found = convnet(16), images(4, 3, 32, 32), {}
    for method in (inner, f"swap-{inner}", f"offload-{inner}"):
        torch.manual_seed(0)
        with division.compress(method, model=model, seed=0):
            loss = model(x).square().sum()
        found[method] = torch.autograd.grad(loss, list(model.parameters()))
    assert same(found[f"swap-{inner}"], found[inner])
    assert same(found[f"offload-{inner}"], found[inner])


def test_what_a_method_learns_is_what_it_learns_without() -> None:
    """Tanh keeps its result, which the next layer reads: left by the one, moved by the other."""
    found = []
    for wrap in (lambda method: method, Swap, lambda method: Offload(Swap(method))):
        torch.manual_seed(0)
        layers = nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 512), nn.LayerNorm(512), nn.Linear(512, 64), nn.ReLU()
        model, method = nn.Sequential(*layers, nn.Linear(64, 8)), ActNN(interval=3)
        context = division.compress(wrap(method), model=model, seed=1)
        for _ in range(5):
            with context:
                loss = model(torch.randn(256, 64)).square().mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
        found.append((gradients, method.learned.values, context.report.packed_bytes))
    assert same(found[0], found[1])
    assert same(found[1], found[2])


def test_what_is_moved_is_not_moved_again() -> None:
    model, x = convnet(16), images(4, 3, 32, 32)
    for name in ("swap", "swap-blpa", "actnn-L4"):
        once, twice = division.predict(model, x, name), division.predict(model, x, f"offload-{name}")
        assert twice.packed_bytes == once.packed_bytes
        assert not any("elsewhere(inner=elsewhere" in r.codec for r in twice.report.records)


def test_one_tensor_of_two_nodes_is_moved_once() -> None:
    x = torch.randn(64, 256, requires_grad=True)
    with division.compress("swap") as context:
        h = (x * 2).relu()
        loss = (h * h.sigmoid()).sum() + (h @ torch.randn(256, 4)).sum()
    moved = [r for r in context.report.records if r.codec and r.shape == (64, 256)]
    assert sum(r.packed_bytes for r in moved) == 2 * h.nbytes
    assert len(moved) > 2
    loss.backward()


def test_exact_codes_of_what_is_moved_as_it_is_add_nothing() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 100, 64), nn.ReLU(),
        nn.Linear(64, 4),
    )  # fmt: skip
    x, found = images(8, 3, 14, 14), {}
    for method in ("none", "lossless", "swap", "swap-lossless"):
        with division.compress(method) as context:
            loss = model(x).square().sum()
        found[method] = torch.autograd.grad(loss, list(model.parameters()))
        assert context.report.packed_bytes == context.report.raw_bytes
        assert division.predict(model, x, method, loss=lambda y: y.square().sum()).ratio == 1
    assert all(same(gradients, found["none"]) for gradients in found.values())


class Own(torch.autograd.Function):
    """Saves its input; no rule knows of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * gradient * ctx.saved_tensors[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("left_last", [True, False])
def test_who_reads_what_another_leaves_reads_it_as_it_is(left_last: bool) -> None:
    """As with the method itself."""
    first, last = nn.Conv2d(8, 8, 3), nn.Linear(8 * 400, 4)
    x, found = torch.randn(2, 8, 20, 20, requires_grad=True), {}
    for method in ("blpa", "swap-blpa"):
        with division.compress(method, model=nn.ModuleList([first, last])) as context:
            h = (x + x).relu()
            outputs = (
                [first(h).sum(), last(h.flatten(1)).sum()] if left_last else [last(h.flatten(1)).sum(), first(h).sum()]
            )
        found[method] = torch.autograd.grad(outputs, [x, first.weight, last.weight])
    assert same(found["swap-blpa"], found["blpa"])
    assert context.report.elsewhere_bytes == h.nbytes


def test_what_was_moved_is_given_up_where_it_stays_for_another() -> None:
    x = torch.randn(64, 256, requires_grad=True)

    def loss() -> Tensor:
        h = (x * 2).exp()
        return h.view(128, 128).square().sum() + h[:32].square().sum() + Own.apply(h).sum()  # type: ignore[no-any-return, no-untyped-call]

    with division.compress("swap") as context:
        moved = loss()
    assert same(torch.autograd.grad(moved, [x]), torch.autograd.grad(loss(), [x]))
    assert context.report.packed_bytes == context.report.raw_bytes
    assert context.report.elsewhere_bytes == 0
    assert not any(r.codec for r in context.report.records)


def test_views_of_what_was_moved_are_read_from_it_and_not_once_it_is_changed() -> None:
    x = torch.randn(64, 256, requires_grad=True)

    def loss(change: bool) -> Tensor:
        h = (x * 2).exp()
        y = h.view(128, 128).square().sum() + h.t()[:100].square().sum()
        return y + (h.add_(1) if change else h).view(32, 512).square().sum()

    with division.compress("swap") as context:
        moved = loss(False)
    assert context.report.elsewhere_bytes == x.nbytes
    assert same(torch.autograd.grad(moved, [x]), torch.autograd.grad(loss(False), [x]))
    with division.compress("swap") as context:
        changed = loss(True)
    assert context.report.elsewhere_bytes == 2 * x.nbytes
    changed.backward()


def test_places_in_the_file_are_used_again() -> None:
    model, x = convnet(16), images(4, 3, 32, 32)
    file = store._file(None, os.getpid())
    ends = []
    for _ in range(4):
        with division.compress("swap"):
            loss = total(model(x))
        loss.backward()
        del loss
        gc.collect()
        ends.append(file.size)
    assert len(set(ends)) == 1


def test_names_and_bad_input(tmp_path: Path) -> None:
    assert methods.find("swap") == Swap()
    assert methods.find("swap-fixed-4") == Swap(FixedBits(4))
    assert methods.find("swap-division", bits=4) == Swap(Division(bits=4))
    assert methods.find("swap-offload") == Swap(Offload())
    with pytest.raises(ValueError, match="got method 'divisoin'"):
        methods.find("swap-divisoin")
    with pytest.raises(ValueError, match="is or holds a method 'swap' itself"):
        Swap(Offload(Swap()))
    with pytest.raises(TypeError, match="got 'division' to use before swapping, expected a method"):
        Swap("division")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected the path of a directory"):
        Swap(directory=str(tmp_path / "nowhere"))
    with pytest.raises(TypeError, match="got directory=3, expected the path of a directory"):
        Swap(directory=3)  # type: ignore[arg-type]


class Gpu:
    """A stand-in for torch's streams: notes what is asked of which stream, in order."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.current: list[Stream] = [Stream(self, "main")]
        self.made = 0

    def stream(self, device: object, *, back: bool = False) -> "Stream":
        return Stream(self, "back" if back else "out")

    @contextlib.contextmanager
    def on(self, stream: "Stream") -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()

    def event(self) -> "Event":
        self.made += 1
        return Event(self, self.made)


class Stream:
    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name = gpu, name

    def wait_stream(self, other: "Stream") -> None:
        self.gpu.log.append((self.name, "waits for stream", other.name))

    def wait_event(self, event: "Event") -> None:
        self.gpu.log.append((self.name, "waits for", event.number))


class Event:
    def __init__(self, gpu: Gpu, number: int) -> None:
        self.gpu, self.number = gpu, number

    def record(self, stream: Stream) -> None:
        self.gpu.log.append((stream.name, "is at", self.number))


class Part:
    """A stand-in for a tensor, on the GPU or pinned."""

    nbytes, shape, dtype, device = 8, (2,), torch.float32, "cuda:0"

    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name = gpu, name

    def copy_(self, part: "Part", non_blocking: bool) -> None:
        assert non_blocking
        self.gpu.log.append((self.gpu.current[-1].name, "copies out", self.name))

    def to(self, device: str, non_blocking: bool) -> "Part":
        assert (device, non_blocking) == ("cuda:0", True)
        self.gpu.log.append((self.gpu.current[-1].name, "copies back", self.name))
        return Part(self.gpu, self.name)

    def record_stream(self, stream: Stream) -> None:
        self.gpu.log.append((stream.name, "uses", self.name))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(store, "_stream", made.stream)
    monkeypatch.setattr(store, "_host_like", lambda part: Part(made, part.name))
    monkeypatch.setattr(store, "_kept", store._Kept())
    monkeypatch.setattr(store, "_ahead", {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made.current[-1])
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    return made


def kept(gpu: Gpu, count: int) -> list[store._Pinned]:
    pieces = [store._Pinned(Part(gpu, name)) for name in "abcdefgh"[:count]]  # type: ignore[arg-type]
    gpu.log.clear()
    return pieces


def copies(gpu: Gpu) -> list[str]:
    """Who copies what back, since the last question."""
    found = [f"{stream} {name}" for stream, what, name in gpu.log if what == "copies back"]
    gpu.log.clear()
    return found


def test_a_part_leaves_on_a_stream_of_its_own_once_it_is_there(gpu: Gpu) -> None:
    store._Pinned(Part(gpu, "a"))  # type: ignore[arg-type]
    assert gpu.log == [
        ("out", "waits for stream", "main"), ("out", "copies out", "a"), ("out", "is at", 1), ("out", "uses", "a"),
    ]  # fmt: skip


def test_backward_finds_what_it_needs_next_on_its_way(gpu: Gpu) -> None:
    pieces = kept(gpu, 5)
    seen = []
    for piece in reversed(pieces):
        piece.get()
        seen.append(copies(gpu))
    assert seen == [["main e", "back d", "back c"], ["back b"], ["back a"], [], []]


def test_what_comes_back_is_waited_for_and_its_memory_is_not_used_anew(gpu: Gpu) -> None:
    pieces = kept(gpu, 2)
    pieces[1].get()
    assert gpu.log == [
        ("main", "waits for", 2), ("main", "copies back", "b"),
        ("back", "waits for", 1), ("back", "copies back", "a"), ("back", "is at", 3),
    ]  # fmt: skip
    gpu.log.clear()
    pieces[0].get()
    assert gpu.log == [("main", "waits for", 3), ("main", "uses", "a")]
    gpu.log.clear()
    pieces[0].get()  # again, as with a retained graph
    assert gpu.log == [("main", "waits for", 1), ("main", "copies back", "a")]


def test_no_more_than_a_few_are_on_their_way_in_any_order(gpu: Gpu) -> None:
    pieces = kept(gpu, 8)
    for number in (7, 3, 5, 1, 6, 2):
        pieces[number].get()
        assert sum(piece._coming is not None for piece in pieces) <= store.AHEAD
    gpu.log.clear()
    assert pieces[4].get() is not None


def test_a_part_that_is_changed_leaves_once_more(gpu: Gpu) -> None:
    (piece,) = kept(gpu, 1)
    piece.put(piece.peek())
    assert gpu.log == [
        ("main", "waits for", 1), ("main", "copies back", "a"),
        ("out", "waits for stream", "main"), ("out", "copies out", "a"), ("out", "is at", 2), ("out", "uses", "a"),
    ]  # fmt: skip
    gpu.log.clear()
    piece.get()
    assert gpu.log == [("main", "waits for", 2), ("main", "copies back", "a")]


def test_what_was_freed_is_passed_over(gpu: Gpu) -> None:
    pieces = kept(gpu, 3)
    last = pieces.pop()
    del pieces
    gc.collect()
    last.get()
    assert copies(gpu) == ["main c"]


@pytest.mark.parametrize("layout", ["dense", "permuted", "gapped", "one element", "in steps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
def test_layouts_and_dtypes_come_back(layout: str, dtype: torch.dtype) -> None:
    x: Tensor = torch.randn(6, 8, 10).mul(3).to(dtype)
    x = {
        "dense": x,
        "permuted": x.permute(2, 0, 1),
        "gapped": x[:, ::2],
        "one element": x[:1, :1, :1],
        "in steps": x.flatten()[::3],
    }[layout]
    codec = Elsewhere(Verbatim())
    packed = encode(codec, x)
    before = x.clone()
    x.zero_()
    assert torch.equal(codec.decode(packed), before)
    assert codec.decode(packed).stride() == packed.stride
    assert codec.decode(packed).data_ptr() != codec.decode(packed).data_ptr()
