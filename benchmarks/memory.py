"""Predicted memory of the papers' networks, batch by batch, under every method. Run: ``python -m benchmarks.memory``.

Where bytes depend on values, or on what a method learns, it first trains each network for a few steps on crops of photographs
at 224x224; the predictions are then by what it recorded.
"""

import argparse

import torch
import torch.nn.functional as F
import torchvision

import division
from benchmarks.rows import provenance, record
from division.bench.tasks import Task
from division.methods import Method, find

MODELS = ("resnet50", "wide_resnet50_2")
BATCHES = (64, 128, 256, 512)
METHODS = (
    "none", "lossless", "division", "low-frequency", "fixed-4", "actnn", "comet", "jpeg-act", "blpa-4", "blpa-8", "ac-gc", "mesa",
    "gact", "gact-2", "checkpoint", "checkpoint-division", "swap",
)  # fmt: skip
#: Methods that train first, and for how many steps: until AC-GC's bits have settled, COMET's bounds been taken five times.
TRAINED = {"comet": 17, "jpeg-act": 1, "ac-gc": 25}
TRAINING_BATCH = 8


def trained(model: str, name: str) -> Method:
    """A method that has learned from some steps of a network's training."""
    torch.manual_seed(0)
    task, method = Task(model, 224, TRAINING_BATCH), find(name)
    network, draw = task.build("cpu"), task.batches(0, "cpu")
    optimizer = task.optimizer(network)
    context = division.compress(method, seed=0, model=network, optimizer=optimizer)
    for _ in range(TRAINED[name]):
        optimizer.zero_grad()
        with context:
            loss = task.loss(network, draw())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return method


def measure(model: str, batch: int, name: str, method: Method) -> dict[str, object]:
    """One row: what a training step at 224x224 keeps, cross entropy included."""
    labels = torch.zeros(batch, dtype=torch.long)
    images = torch.empty(batch, 3, 224, 224, device="meta")
    build = getattr(torchvision.models, model)
    predicted = division.predict(build, images, method, loss=lambda out: F.cross_entropy(out, labels))
    return {
        "model": model,
        "image_size": 224,
        "batch_size": batch,
        "method": name,
        "normal_bytes": predicted.normal_bytes,
        "least_bytes": predicted.least_bytes,
        "packed_bytes": predicted.packed_bytes,
        "recomputed_bytes": predicted.recomputed_bytes,
        "elsewhere_bytes": predicted.elsewhere_bytes,
        "basis": predicted.basis,
        "trained_steps": TRAINED.get(name),
        "ratio": predicted.ratio,
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    source, rows = provenance(), []
    for model in MODELS:
        for name in METHODS:
            method = trained(model, name) if name in TRAINED else find(name)
            rows += [measure(model, batch, name, method) for batch in BATCHES]
    record("memory", [{**row, **source} for row in rows])
