"""What only a GPU shows: that nothing waits for it, streams, and graphs that are captured and replayed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import division
from tests.models import Copying, convnet, grads, images, same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
#: The other tests run Triton's kernels in its interpreter, on the CPU, which waits for the GPU all the time.
INTERPRETED = os.environ.get("TRITON_INTERPRET") != "0"
compiled = pytest.mark.skipif(INTERPRETED, reason="run in a process of its own, without Triton's interpreter")
METHODS = ["division", "fixed-2", "lossless"]


@pytest.mark.skipif(not INTERPRETED, reason="this is the process of its own")
def test_all_of_this_file_without_the_interpreter() -> None:
    env = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).resolve())]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def net() -> nn.Module:
    torch.manual_seed(0)
    model = convnet(16)
    model[7] = nn.Identity()
    return model.cuda()


def batch() -> Tensor:
    return images(4, 3, 32, 32).cuda()


@pytest.fixture
def strict() -> Iterator[None]:
    """Whatever makes the CPU wait for the GPU is an error."""
    before = torch.cuda.get_sync_debug_mode()
    yield
    torch.cuda.set_sync_debug_mode(before)


def train(model: nn.Module, x: Tensor, context: Any) -> list[Any]:
    model.zero_grad()
    with context:
        loss = model(x).square().mean()
    loss.backward()
    return [loss.detach().clone(), grads(model)]


@compiled
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("method", METHODS)
def test_no_step_waits_for_the_gpu(method: str) -> None:
    model, x = net(), batch()
    noise = (torch.rand_like(x) > 0.5) * 2.0
    context = division.compress(method, inputs=True)
    train(model, x * noise, context)  # compiles kernels
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    train(model, x * noise, context)
    assert any(not r.left for r in context.report.records)


@compiled
@pytest.mark.parametrize("method", [*METHODS, Copying()], ids=str)
def test_a_context_made_on_one_stream_works_on_another(method: Any) -> None:
    model, x = net(), batch()
    plain = train(model, x, division.compress(method, seed=0))
    context = division.compress(method, seed=0)
    start = context.state_dict()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for _ in range(20):
        with torch.cuda.stream(stream):
            for layer in model.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.reset_running_stats()
            context.load_state_dict(start)
            ours = train(model, x, context)
            churn = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(4)]
            del churn
    torch.cuda.current_stream().wait_stream(stream)
    assert same(ours, plain)


@compiled
@pytest.mark.parametrize("method", METHODS)
def test_a_captured_step_replays_as_it_ran(method: str) -> None:
    """With the noise of the step that was captured, each time: seeds are numbers of Python's."""
    model, x = net().eval(), batch()
    for _ in range(3):
        plain = train(model, x, division.compress(method, seed=0))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            train(model, x, division.compress(method, seed=0))
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with division.compress(method, seed=0):
            loss = model(x).square().mean()
        loss.backward()
    for _ in range(3):
        for p in model.parameters():
            assert p.grad is not None
            p.grad.zero_()
        graph.replay()
        torch.testing.assert_close(grads(model), plain[1])
        torch.testing.assert_close(loss.detach(), plain[0])
