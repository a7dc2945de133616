"""What the installed package promises before anything in it is used."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import division
from tests.conftest import extra_modules, needs_extras

ROOT = Path(__file__).parents[1]

IMPORTS = """
import json, sys, time
start = time.perf_counter()
import torch
middle = time.perf_counter()
before = set(sys.modules)
import division
end = time.perf_counter()
print(json.dumps({
    "torch_s": middle - start,
    "division_s": end - middle,
    "added": sorted(set(sys.modules) - before),
    "cuda": torch.cuda.is_initialized(),
}))
"""


def _import_afresh() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_import_adds_no_optional_package_and_leaves_cuda_alone() -> None:
    facts = _import_afresh()
    added = {name.split(".")[0] for name in facts["added"]}
    assert "division" in added
    assert not added & {"triton", "matplotlib", *extra_modules()}
    assert not {"division.train", "division.cli"} & set(facts["added"])
    assert facts["cuda"] is False


def test_import_costs_at_most_a_fifth_of_importing_torch() -> None:
    torch_s = division_s = float("inf")
    for _ in range(7):  # the least of several: a busy machine only ever adds time
        facts = _import_afresh()
        torch_s, division_s = min(torch_s, facts["torch_s"]), min(division_s, facts["division_s"])
        if (ratio := (torch_s + division_s) / torch_s) <= 1.2:
            break
    assert ratio <= 1.2


def test_version_is_that_of_the_distribution() -> None:
    installed = importlib.metadata.version("division")
    assert getattr(division, "__version__", installed) == installed


def test_only_torch_and_numpy_are_required() -> None:
    required = importlib.metadata.requires("division") or []
    assert sorted(r.split(">=")[0] for r in required if "extra ==" not in r) == ["numpy", "torch"]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel, without those of its metadata, built from a copy of the sources where no compiler works."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so"))
    build = "import setuptools.build_meta as build; build.build_wheel('wheel')"
    no_compiler = {**os.environ, "CC": "false", "CXX": "false"}
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True, env=no_compiler)
    (wheel,) = (copy / "wheel").glob("*.whl")
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_wheel_holds_every_module_and_the_mark_of_a_typed_package(shipped: set[str]) -> None:
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "division").rglob("*.py")}
    assert sources | {"division/py.typed"} <= shipped


def test_wheel_is_built_without_a_compiler_too(shipped: set[str]) -> None:
    assert "division/kernels/cpu/library.py" in shipped
    assert not any(name.endswith(".so") for name in shipped)


def test_source_distribution_holds_what_the_compiled_library_is_built_from(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so"))
    build = "import setuptools.build_meta as build; build.build_sdist('sdist')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    (archive,) = (tmp_path / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src/division/kernels/csrc").iterdir()}
    assert sources | {"setup.py"} <= held


def test_wheel_holds_nothing_beside_the_package(shipped: set[str]) -> None:
    assert {name.split("/")[0] for name in shipped} == {"division"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch", False),
        ("import division\nfrom division.methods import Division", False),
        ("import torchvision.models", True),
        ("def test() -> None:\n    from skimage import data", True),
        ("from division.train import loop", True),
        ("from division import cli", True),
    ],
)
def test_files_left_out_of_the_core_tests_are_those_that_need_extras(source: str, expected: bool) -> None:
    assert needs_extras(source) is expected
