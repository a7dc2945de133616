"""The compiled library: what is built, how a body is chosen, and what happens without it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import division
from division.kernels import bodies, ops
from division.kernels.cpu import library

PACKAGE = Path(division.__file__).parent


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no compiler to build with")
def test_is_built_where_there_is_a_compiler() -> None:
    assert "portable" in library.RUNNABLE


def test_the_fastest_body_is_the_default_and_the_one_that_is_said() -> None:
    with library.forced(library.RUNNABLE[-1]):
        assert library.body() == bodies.body_of("dual_encode", "cpu").body == library.RUNNABLE[-1]
    assert set(library.RUNNABLE) <= set(library.BODIES)


def test_forcing_holds_inside_alone() -> None:
    before = library.body()
    with library.forced("reference"):
        assert library.body() == "reference"
        assert library.function("dual_encode") is None
        found = bodies.body_of("dual_encode", "cpu")
        assert (found.body, "reference" in found.why) == (
            "reference",
            len(library.RUNNABLE) > 1 or "missing" in found.why,
        )
    assert library.body() == before


def test_an_unknown_body_is_refused() -> None:
    with (
        pytest.raises(ValueError, match="got body 'sse9', expected one that runs here: reference"),
        library.forced("sse9"),
    ):
        pass


def test_the_environment_chooses_a_body() -> None:
    code = "from division.kernels.cpu import library; print(library.body())"
    source = {"PYTHONPATH": str(PACKAGE.parent)}
    assert run(code, **source, DIVISION_KERNELS="reference").stdout.strip() == "reference"
    refused = run(code, **source, DIVISION_KERNELS="fast")
    assert "got DIVISION_KERNELS='fast', expected one that runs here: reference" in refused.stderr


def test_without_the_library_everything_runs_and_the_reason_is_said(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "division", ignore=shutil.ignore_patterns("_cpu*", "__pycache__"))
    code = (
        "import torch, division; from division.kernels.bodies import body_of\n"
        "x = torch.arange(1024.).view(2, 2, 16, 16); code = division.codecs.Dual()\n"
        "print(code.decode(code.encode(x, 3)).sum().item()); print(body_of('dual_encode', 'cpu'))"
    )
    done = run(code, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    total, body = done.stdout.splitlines()
    codec = division.codecs.Dual()
    assert float(total) == codec.decode(codec.encode(torch.arange(1024.0).view(2, 2, 16, 16), 3)).sum().item()
    assert "body='reference'" in body
    assert "install a C++ compiler" in body


def test_a_library_that_does_not_load_is_said_and_left(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "division", ignore=shutil.ignore_patterns("_cpu*", "__pycache__"))
    (tmp_path / "division" / "kernels" / "_cpu.so").write_bytes(b"no library")
    code = "from division.kernels.cpu import library; print(library.body(), library.why())"
    assert "reference the compiled library _cpu.so does not load" in run(code, PYTHONPATH=str(tmp_path)).stdout


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is missing")
@pytest.mark.skipif(len(library.RUNNABLE) == 1, reason="the compiled library is missing")
def test_the_instruction_sets_share_no_function() -> None:
    """What a linker folds into one function for all may hold instructions that a processor lacks."""
    (built,) = (PACKAGE / "kernels").glob("_cpu*.so")
    listing = subprocess.run(["nm", "-C", "--defined-only", str(built)], capture_output=True, text=True, check=True)
    shared = [line for line in listing.stdout.splitlines() if line.split(" ")[1] in "WVu"]
    foreign = [line for line in shared if not any(f"division::{name}::" in line for name in library.BODIES)]
    assert not foreign


def test_every_op_is_known_and_an_unknown_one_refused() -> None:
    for name in ops.names():
        for device in ("cpu", "cuda", "mps"):
            found = bodies.body_of(name, device)
            assert (found.op, found.device) == (name, device)
            assert found.body in (*library.BODIES, "triton")
            assert found.why or found.body in (library.RUNNABLE[-1], "triton")
    with pytest.raises(ValueError, match=r"got op 'dual', expected one of .*dual_encode"):
        bodies.body_of("dual", "cpu")
