"""Codes that are kept elsewhere: the same values, out of the process's memory, and gone with the graph."""

import copy
import errno
import gc
import itertools
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import division
from division import methods
from division.codecs import Dual, Elsewhere, Group, store
from division.methods import Division, FixedBits, Lossless, Offload, Swap
from tests.models import convnet, images, total


def gradients(method: methods.Method, seed: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = convnet(16)
    with division.compress(method, seed=seed):
        loss = total(model(images(4, 3, 32, 32)))
    loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("method", [Division(), FixedBits(4), Lossless(), Division(restore_zeros=True)], ids=str)
def test_gradients_are_those_of_the_method_itself(method: methods.Method) -> None:
    assert all(map(torch.equal, gradients(method), gradients(Offload(method))))


def test_the_account_says_what_is_kept_elsewhere() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)), images(4, 3, 64, 64)
    found = {}
    for method in (Division(), Offload()):
        with division.compress(method) as context:
            model(x).sum()
        found[method] = context.report
    assert found[Offload()].packed_bytes == found[Division()].packed_bytes
    assert any(record.codec.startswith("elsewhere(") for record in found[Offload()].records)
    assert division.predict(model, x, Offload()).packed_bytes == division.predict(model, x, Division()).packed_bytes


def test_signs_that_two_codes_share_are_moved_once() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)), images(4, 3, 64, 64)
    found = []
    for method in (Division(restore_zeros=True), Offload(Division(restore_zeros=True))):
        with division.compress(method) as context:
            model(x)
        found.append(context.report.packed_bytes)
    assert found[0] == found[1]


def test_small_codes_stay() -> None:
    with division.compress(Offload()) as context:
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3))(images(2, 3, 10, 10)).sum()
    codecs = [record.codec for record in context.report.records if record.codec]
    assert codecs
    assert not any("elsewhere" in codec for codec in codecs)


def test_parts_are_not_in_memory_and_places_are_used_again() -> None:
    x, codec = torch.randn(64, 4096), Elsewhere(Group(8))
    file = store._file(None, os.getpid())
    packed = codec.encode(x, 0)
    end = file.size
    for _ in range(5):
        assert torch.equal(codec.decode(packed), codec.inner.decode(codec.inner.encode(x, 0)))
        del packed
        gc.collect()
        packed = codec.encode(x, 0)
    assert file.size == end, "what was freed is written to again"
    parts = packed.parts
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(parts, packed.parts, strict=True))


def test_the_file_holds_little_more_than_what_is_kept_whatever_the_sizes() -> None:
    """Codes of other sizes at every step, some of which outlive it: nothing overlaps, everything comes back."""
    file, chance = store._File(None), random.Random(0)
    kept: list[tuple[Tensor, store._Written]] = []
    most = 0
    for step in range(60):
        kept = [pair for pair in kept if chance.random() < 0.2]
        for _ in range(30):
            part = torch.randint(0, 256, (chance.choice([1, 7, 4096, chance.randrange(1, 20_000)]),), dtype=torch.uint8)
            kept.append((part, store._Written(file, part)))
        places = sorted((piece._place, piece._place + piece.nbytes) for _, piece in kept)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places)), step
        most = max(most, sum(part.nbytes for part, _ in kept))
        assert all(torch.equal(piece.get(), part) for part, piece in kept), step
        assert file.size <= 2 * most, step
    assert os.fstat(file._file).st_size == file.size
    kept.clear()
    assert file.write(torch.zeros(file.size, dtype=torch.uint8)) == 0, "all gaps have become one"


@pytest.mark.parametrize("method", ["offload-jpeg-act", "swap-comet"])
def test_the_file_does_not_grow_over_steps_whose_codes_have_other_sizes(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = store._File(None)
    monkeypatch.setattr(store, "_file", lambda *_: file)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3))
    context = division.compress(method, seed=0, model=model)
    most = 0
    for step in range(12):
        with context:
            loss = model(images(4, 3, 32, 32) * (1 + step / 2)).square().mean()
        most = max(most, context.report.elsewhere_bytes)
        loss.backward()
        del loss
    assert 0 < file.size <= 1.1 * most


def test_a_place_is_freed_in_the_middle_of_a_write() -> None:
    """As when the collector finds a code while the lock is held."""
    file = store._File(None)
    first = file.write(torch.zeros(100))
    with file._lock:
        file.free(first, 400)
    assert file.write(torch.ones(50)) == first


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_the_resident_set_does_not_hold_them() -> None:
    script = """
import torch, division
from pathlib import Path
from division.codecs import Elsewhere, Group
def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
x = torch.randn(1024, 4096)
held = [Elsewhere(Group(16)).encode(x, 0)]
before = resident()
held += [Elsewhere(Group(16)).encode(x, seed) for seed in range(20)]
print(resident() - before, sum(packed.nbytes for packed in held[1:]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    grown, kept = map(int, done.stdout.split())
    assert kept > 160 << 20
    assert grown < kept / 5


def test_threads_and_many_unpacks() -> None:
    x = torch.randn(32, 2048)
    codec = Elsewhere(Group(4))
    found: dict[int, bool] = {}

    def work(seed: int) -> None:
        packed = [codec.encode(x, seed) for _ in range(20)]
        expected = codec.inner.decode(codec.inner.encode(x, seed))
        found[seed] = all(torch.equal(codec.decode(p), expected) for p in packed for _ in range(2))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(6), True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_fork_writes_into_a_file_of_its_own() -> None:
    x, codec = torch.randn(16, 1024), Elsewhere(Group(8))
    packed = codec.encode(x, 0)
    expected = codec.decode(packed)
    child = os.fork()
    if child == 0:
        for seed in range(5):
            codec.encode(x, seed)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(codec.decode(packed), expected)


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(
        OSError, match=rf"No space left on device: 131072 bytes .* in {tmp_path}; name another .*Swap.*Offload"
    ):
        Elsewhere(Group(8), str(tmp_path)).encode(torch.randn(128, 1024), 0)


@pytest.mark.parametrize("method", [Offload, Swap])
def test_a_directory_that_is_gone_is_told(method: type[Offload | Swap], tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    context = division.compress(method(Lossless(), directory=str(place)))
    place.rmdir()
    with context, pytest.raises(OSError, match=rf"No such file or directory: no file .* in {place}; name another"):
        nn.Sequential(nn.ReLU(), nn.ReLU())(torch.randn(64, 4096, requires_grad=True))


def test_an_interrupted_write_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, place: pwrite(fd, data[:1000], place))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, place: preadv(fd, [buffers[0][:777]], place))
    x, codec = torch.randn(16, 1024), Elsewhere(Group(8))
    assert torch.equal(codec.decode(codec.encode(x, 0)), codec.inner.decode(codec.inner.encode(x, 0)))


def test_the_directory_is_used_and_left_empty(tmp_path: Path) -> None:
    codec = Elsewhere(Dual(), str(tmp_path))
    x = torch.randn(2, 16, 32, 32)
    assert torch.equal(codec.decode(codec.encode(x, 0)), Dual().decode(Dual().encode(x, 0)))
    assert list(tmp_path.iterdir()) == []


def test_names_and_bad_input(tmp_path: Path) -> None:
    assert methods.find("offload") == Offload(Division())
    assert methods.find("offload-fixed-4") == Offload(FixedBits(4))
    assert methods.find("offload", bits=4) == Offload(Division(bits=4))
    assert copy.deepcopy(Offload()) == Offload()
    with pytest.raises(ValueError, match="got method 'divisoin', expected one of"):
        methods.find("offload-divisoin")
    with pytest.raises(ValueError, match="is or holds a method 'offload' itself"):
        methods.find("offload-offload")
    with pytest.raises(TypeError, match="got 'division' to offload, expected a method"):
        Offload("division")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected the path of a directory"):
        Offload(directory=str(tmp_path / "nowhere"))
    with pytest.raises(TypeError, match="got directory=3, expected the path of a directory"):
        Offload(directory=3)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_codes_lie_in_pinned_host_memory() -> None:
    x = torch.randn(64, 128, 56, 56, device="cuda")
    codec = Elsewhere(Dual())
    before = torch.cuda.memory_allocated()
    packed = [codec.encode(x + i, i) for i in range(4)]
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
    for i, code in enumerate(packed):
        assert torch.equal(codec.decode(code), Dual().decode(Dual().encode(x + i, i)))
