"""Hundreds of steps in whatever a training is wrapped in: nothing grows, everything stays finite."""

import gc
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import division
from division.codecs import store
from division.methods import Division, Offload
from tests.models import WAYS, go, images

STEPS = 500
#: Where the bytes alive are counted; by the first, caches and optimizer are filled.
COUNTED = (99, 299, 499)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return go(request.param, monkeypatch)


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip


def batch(step: int) -> Tensor:
    return images(4, 3, 8, 8) * (1 + step % 3)


def plain(model: nn.Sequential, x: Tensor) -> Tensor:
    return model(x).square().mean()  # type: ignore[no-any-return]


def autocast(model: nn.Sequential, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float().square().mean()  # type: ignore[no-any-return]


def checkpointed(model: nn.Sequential, x: Tensor) -> Tensor:
    return model[6:](checkpoint(model[:6], x, use_reentrant=False)).square().mean()  # type: ignore[no-any-return]


def alive() -> int:
    """Bytes of the storages under all tensors that the collector knows, and of the codes of ours."""
    gc.collect()
    found = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and x.layout is torch.strided]
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in found}.values())


def train(
    context: Any, forward: Callable[[nn.Sequential, Tensor], Tensor], counts: list[int], pause: Callable[[], object]
) -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        with context:
            loss = forward(model, batch(step))
        loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            assert torch.isfinite(p.grad).all(), step
        optimizer.step()
        assert torch.isfinite(loss), step
        del loss
        if step in COUNTED:
            optimizer.zero_grad()
            pause()
            counts.append(alive())
            pause()
    assert all(torch.isfinite(x).all() for x in model.state_dict().values())


def recomputed(model: nn.Sequential, x: Tensor) -> Tensor:
    return model[3:](RECOMPUTE(model[:3], x * 1)).square().mean()  # type: ignore[no-any-return]


RECOMPUTE = division.recompute(8, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lossless", "division"])
@pytest.mark.parametrize("forward", [plain, autocast, checkpointed, recomputed], ids=lambda f: f.__name__)
def test_steps(forward: Callable[[nn.Sequential, Tensor], Tensor], method: str, way: str) -> None:
    counts: list[int] = []
    context = division.compress(method, seed=0)
    train(context, forward, counts, lambda: None)
    assert counts == counts[:1] * len(COUNTED)
    assert context.report.steps == STEPS
    assert context.report.packed_bytes < context.report.raw_bytes


@pytest.mark.slow
@pytest.mark.parametrize("forward", [plain, autocast, checkpointed], ids=lambda f: f.__name__)
def test_steps_with_codes_in_a_file(
    forward: Callable[[nn.Sequential, Tensor], Tensor], way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file doesn't grow either."""
    monkeypatch.setattr("division.codecs.elsewhere.LEAST", 16)
    file = store._file(str(tmp_path), os.getpid())._file
    counts: list[int] = []
    sizes: list[int] = []
    context = division.compress(Offload(Division(), str(tmp_path)), seed=0)
    train(context, forward, counts, lambda: sizes.append(os.fstat(file).st_size))
    assert counts == counts[:1] * len(COUNTED)
    assert sizes == sizes[:1] * len(sizes)
    assert sizes[0] > 0
    assert context.report.packed_bytes < context.report.raw_bytes


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lossless", "division"])
@pytest.mark.parametrize("shared", [True, False], ids=["one context", "one each"])
def test_steps_of_several_threads(shared: bool, method: str, way: str) -> None:
    together = threading.Barrier(3)
    common = division.compress(method, seed=0)
    counts: list[list[int]] = [[], [], []]
    failed: list[BaseException] = []

    def work(i: int) -> None:
        try:
            context = common if shared else division.compress(method, seed=i)
            train(context, (plain, autocast, checkpointed)[i], counts[i], partial(together.wait, 120))
        except BaseException as error:
            failed.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    for own in counts:
        assert own == own[:1] * len(COUNTED)
