"""The memory that a training step of a named model would need, without allocating it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import division
from division.train import models
from division.train.errors import SettingsError

CLASSES = 1000


def predict(
    model: str, batch_size: int, image_size: int, method: str, block: int | None = None, bits: int | None = None
) -> tuple[dict[str, Any], Any]:
    """What backward of one step keeps: normally, and with a method.

    Args:
        model: a name of `models.names()`; 1000 classes, colour images.
        batch_size: images a step.
        image_size: height and width.
        method: a name of `division.methods`.
        block: of the method, where it takes one.
        bits: likewise.

    Returns:
        a row (model, method, batch_size, image_size, normal_bytes, packed_bytes, least_bytes, basis, ratio,
        recomputed_bytes, elsewhere_bytes) and the report behind it. Where packed_bytes depend on the values
        (basis "interval"), they are the most, least_bytes the fewest, and ratio is that of the most.

    Raises:
        SettingsError: a wrong name or number, or a size that the model can't take.
    """
    numbers = (("batch size", batch_size), ("image size", image_size))
    problems = [f"{name} is {value}: expected 1 or more" for name, value in numbers if value < 1]
    wrong_model = models.problem(model)
    if wrong_model is not None:
        problems.append(wrong_model)
    try:
        found = division.methods.find(method, block=block, bits=bits)
    except (ValueError, TypeError) as error:
        problems.append(str(error))
    if problems:
        raise SettingsError(problems)
    shape = (batch_size, 3, image_size, image_size)
    misfit = models.misfit(model, shape, CLASSES)
    if misfit is not None:
        raise SettingsError([misfit])
    with torch.random.fork_rng(devices=[]), torch.device("meta"):  # some weights can't be drawn under fake tensors
        images, network = torch.empty(shape), models.build(model, 3, CLASSES, image_size)
    prediction = division.predict(network, images, found, loss=_loss)
    row = {
        "model": model,
        "method": method,
        "batch_size": batch_size,
        "image_size": image_size,
        "normal_bytes": prediction.normal_bytes,
        "packed_bytes": prediction.packed_bytes,
        "least_bytes": prediction.least_bytes,
        "basis": prediction.basis,
        "ratio": prediction.ratio,
        "recomputed_bytes": prediction.recomputed_bytes,
        "elsewhere_bytes": prediction.elsewhere_bytes,
    }
    return row, prediction.report


def sentence(row: dict[str, Any]) -> str:
    """A row in words; the least and the most of what is kept where the values decide."""
    normal, most, least = row["normal_bytes"], row["packed_bytes"], row["least_bytes"]
    kept = f"{_gib(most)}, ratio {row['ratio']:.2f}"
    if least < most:
        kept = f"{_gib(least)} to {_gib(most)}, ratio {normal / most:.2f} to {normal / least:.2f}, as the values decide"
    return (
        f"{row['model']}, batch {row['batch_size']}, {row['image_size']}x{row['image_size']}: normal {_gib(normal)}, "
        f"with {row['method']} {kept}"
        + ", in its first steps, less once it has learned" * (row["basis"] == "beginning")
        + f", of it {_gib(row['elsewhere_bytes'])} off the device" * (row["elsewhere_bytes"] > 0)
        + f", {_gib(row['recomputed_bytes'])} more while blocks run again" * (row["recomputed_bytes"] > 0)
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.3f} GiB"


def _loss(outputs: models.Outputs) -> Tensor:
    scores = models.logits(outputs)
    return models.cross_entropy(outputs, torch.zeros(len(scores), dtype=torch.int64, device=scores.device))
