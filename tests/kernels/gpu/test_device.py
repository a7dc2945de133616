"""The same bits on a real GPU: ``device.py`` in a process of its own, where Triton isn't interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_codes_on_a_gpu_are_those_of_the_cpu() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    env = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.gpu.device"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
