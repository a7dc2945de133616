"""Predicted memory of the paper's networks, batch by batch. Run: ``python -m benchmarks.memory``."""

import torch
import torch.nn.functional as F
import torchvision

import division
from benchmarks.rows import provenance, record

MODELS = ("resnet50", "wide_resnet50_2")
BATCHES = (64, 128, 256)
METHODS = ("division", "lossless", "low-frequency", "fixed-4")


def measure(model: str, batch: int, method: str) -> dict[str, object]:
    """One row: what a training step at 224x224 keeps, cross entropy included."""
    labels = torch.zeros(batch, dtype=torch.long)
    images = torch.empty(batch, 3, 224, 224, device="meta")
    build = getattr(torchvision.models, model)
    predicted = division.predict(build, images, method, loss=lambda out: F.cross_entropy(out, labels))
    return {
        "model": model,
        "image_size": 224,
        "batch_size": batch,
        "method": method,
        "normal_bytes": predicted.normal_bytes,
        "packed_bytes": predicted.packed_bytes,
        "ratio": predicted.ratio,
    }


if __name__ == "__main__":
    source = provenance()
    rows = [measure(model, batch, method) for model in MODELS for batch in BATCHES for method in METHODS]
    record("memory", [{**row, **source} for row in rows])
