"""COMET's model of errors on a network of torchvision and photographs."""

import pytest
import torch

import division
from division.bench.tasks import Task
from tests.methods.test_comet import Watching, ratios, sgd, train


@pytest.mark.slow
def test_the_error_in_every_convolution_of_resnet18_is_the_predicted_one() -> None:
    torch.manual_seed(0)
    photographs = Task("resnet18", 96, 16)
    model, draw = photographs.build("cpu"), photographs.batches(0, "cpu")
    optimizer, method = sgd(model), Watching(norms=False, interval=16)
    context = division.compress(method, model=model, optimizer=optimizer)
    for _ in range(65):
        x, y = draw()
        train(model, x, y, optimizer, context, 1)
    found = ratios(method, model, [draw() for _ in range(8)], context)
    assert len(found) == 19  # all but the first, whose input is the batch
    assert all(1 / 1.5 < ratio < 1.5 for ratio in found.values()), found
