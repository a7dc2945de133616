"""When CUDA tensors take the Triton bodies, and what is said when they don't."""

import subprocess
import sys

import pytest
import torch

from division.kernels import ops
from division.kernels.gpu import launch


def test_importing_the_package_imports_no_triton() -> None:
    code = "import sys, division.kernels.gpu as gpu; gpu.status(); sys.exit('triton' in sys.modules)"
    env = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0


def test_every_op_that_has_a_module_has_a_reference_body() -> None:
    for name in launch.MODULE_OF:
        assert callable(launch.reference(name)), name


def test_every_op_is_bound_to_cuda_where_triton_is_installed() -> None:
    bound = {
        name for name in launch.MODULE_OF if torch._C._dispatch_has_kernel_for_dispatch_key(f"division::{name}", "CUDA")
    }
    assert bound == (set(launch.MODULE_OF) if launch.installed() else set())


def test_without_triton_nothing_is_bound_and_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "installed", lambda: False)
    monkeypatch.setattr(ops, "body", None)
    launch.register()
    assert launch.status() == (False, "triton is not installed")


def test_the_reason_of_a_device_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "installed", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert launch.status() == (False, "no CUDA device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, index))
    monkeypatch.delenv(launch.VARIABLE, raising=False)
    launch.failure.cache_clear()
    assert launch.status() == (False, "compute capability 7.3, and the kernels need 8.0")
    monkeypatch.setenv(launch.VARIABLE, "reference")
    launch.failure.cache_clear()
    assert launch.status() == (False, "DIVISION_KERNELS=reference in the environment")
    launch.failure.cache_clear()


def test_a_kernel_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: launch.Launch) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease install one")

    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch, "empty", lambda *args, **settings: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: torch.no_grad())
    monkeypatch.setattr(launch.Launch, "__call__", broken)
    monkeypatch.delenv(launch.VARIABLE, raising=False)
    launch.failure.cache_clear()
    assert launch.failure(0) == "triton fails to compile or to launch: RuntimeError: Failed to find C compiler."
    launch.failure.cache_clear()
