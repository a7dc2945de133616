"""Two processes: exact codes change no bit of data-parallel, sharded or tensor-parallel training, and each rank draws its own noise."""

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import division
from division.methods import AcGc, ActNN, Comet, Division, Lossless, Method
from tests.methods.learning import Learning
from tests.models import WAYS, Copying, Log, go, images, same

WORLD = 2
#: Name to what one pair of processes tries, one after the other.
KINDS = {
    "ddp": ("ddp, unused weights", "ddp, static graph", "ddp"),
    "fsdp2": ("fsdp2",),
    "tensor parallel": ("tensor parallel",),
}
#: gloo and the sharding code warn about their own use of torch.
IGNORED = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 49, 32), nn.GELU(),
        nn.Linear(32, 4),
    )  # fmt: skip


class Shared(nn.Module):
    """One layer used twice, and one that only every other batch reaches."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared, self.sometimes = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.max_pool2d(self.shared(self.shared(x).relu()).relu(), 2)
        return self.sometimes(h) if self.always or x.mean() > 0.5 else h


def _wrapped(kind: str) -> nn.Module:
    ddp = nn.parallel.DistributedDataParallel
    if kind == "ddp, unused weights":
        return ddp(Shared(always=False), find_unused_parameters=True)
    if kind == "ddp, static graph":
        return ddp(Shared(always=True), static_graph=True)
    model = _model()
    if kind == "ddp":
        return ddp(model)
    if kind == "tensor parallel":
        return _tensor_parallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in (model[0], model[5], model[7]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _tensor_parallel(model: nn.Sequential) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"5": ColwiseParallel(), "7": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (WORLD,)), plan)


def _whole(x: Tensor) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x  # type: ignore[no-any-return]


def _train(kind: str, context: Any) -> list[Any]:
    model = _wrapped(kind)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    out: list[Any] = []
    for step in range(2):
        optimizer.zero_grad()
        with context:
            part = 0 if kind == "tensor parallel" else dist.get_rank()
            loss = model(images() + part + step).square().mean()
        loss.backward()
        out.append([loss.detach(), *(_whole(p.grad).clone() for p in model.parameters() if p.grad is not None)])
        optimizer.step()
    return [*out, *(_whole(p.detach()) for p in model.parameters())]


def _learn_unevenly(method: Method, without: Sequence[int]) -> Any:
    """What is learned where one process has no samples in some steps, and a value that isn't finite in another."""
    torch.manual_seed(0)
    convolutions = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten()
    rows = nn.Linear(64, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 64), nn.LayerNorm(64), nn.Linear(64, 4)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*convolutions, *rows))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    context = division.compress(method, model=model, optimizer=optimizer, seed=0)
    for step in range(12):
        optimizer.zero_grad()
        images = torch.randn(0 if dist.get_rank() and step in without else 4, 3, 8, 8)
        if dist.get_rank() and step == 7 and len(images):
            images[0, 0, 0, 0] = float("inf")
        with context:
            loss = model(images).square().sum()
        loss.backward()
        if all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None):
            optimizer.step()
    return method.state_dict()["sites"]


def _work(rank: int, kind: str, meet: str, results: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=WORLD)
    patch = pytest.MonkeyPatch()
    found: dict[str, Any] = {}
    for each in KINDS[kind]:
        plain = _train(each, nullcontext())
        for way in WAYS:
            go(way, patch)
            for method in (Lossless(), Copying()):
                context = division.compress(method)
                found[f"{each}, {way}, {method}"] = same(_train(each, context), plain)
                found[f"{each}, {way}, {method}, coded"] = any(not r.left for r in context.report.records)
    log = Log(Division())
    _train(kind, division.compress(log, seed=1))
    learned = []
    for learning in (Learning(), ActNN()):
        context = division.compress(learning, model=_wrapped(kind))
        _train(kind, context)
        learning.begin_step()  # what the last backward saw
        learned.append(context.state_dict()["method"]["learned"]["sites"])
    methods: tuple[type[Method], ...] = (ActNN, Comet, AcGc) if kind == "ddp" else ()
    uneven = {f"{m.name}, {len(no)}": _learn_unevenly(m(), no) for m in methods for no in ((0, 1, 3), range(12))}
    result = {"found": found, "seeds": log.seeds, "alive": log.alive, "learned": learned, "uneven": uneven}
    torch.save(result, f"{results}/{rank}.part")
    Path(results, f"{rank}.part").rename(Path(results, f"{rank}.pt"))
    _leave_together([Path(results, f"{other}.pt") for other in range(WORLD)])


def _leave_together(results: list[Path]) -> None:
    """End this process once both have their result, without tear-down: gloo's own aborts now and then, without us too."""
    for _ in range(600):
        if all(path.exists() for path in results):
            os._exit(0)
        time.sleep(0.1)
    raise TimeoutError(f"expected {results}, got {[path.exists() for path in results]} after a minute")


@IGNORED
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_without_us(kind: str, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_work, (kind, str(tmp_path / "meet"), str(tmp_path)), nprocs=WORLD)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD)]
    for rank in ranks:
        assert all(rank["found"].values()), rank["found"]
        assert rank["alive"] == 0
    assert ranks[0]["seeds"]
    assert not set(ranks[0]["seeds"]) & set(ranks[1]["seeds"])
    assert ranks[0]["learned"] == ranks[1]["learned"]
    assert ranks[0]["uneven"] == ranks[1]["uneven"]
    assert all(ranks[0]["uneven"].values())
    # With tensor parallelism no input of a layer is a plain tensor, but for that of the first, which is the batch.
    assert [sites != {} for sites in ranks[0]["learned"]] == [True, kind != "tensor parallel"]
