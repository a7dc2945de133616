"""What all tests share: seeds, hypothesis settings, and which files run where only the library is installed."""

import ast
import gc
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

# Before anything imports Triton: its kernels then run on CPU tensors, in the interpreter.
os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).parents[1]
#: Distributions whose module has another name.
MODULE_OF = {"scikit-image": "skimage"}
#: Parts of the package, and of its tests, that stand on the extras.
USES_EXTRAS = ("division.train", "division.cli", "tests.train")

# Time limits on single examples would fail on a busy machine. Where CI is set, hypothesis draws the same examples every run.
hypothesis.settings.register_profile("division", parent=hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("division")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--core",
        action="store_true",
        help="collect only the test files that need no more than torch, numpy and the extra `test`",
    )


def extra_modules() -> set[str]:
    """The modules that the extras `train` and `report` bring, by the project's own list."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [r for extra in ("train", "report") for r in project["optional-dependencies"][extra]]
    names = [requirement.split(";")[0].split("[")[0] for requirement in requirements]
    names = [name.rstrip("<>=~!.0123456789 ") for name in names]
    return {MODULE_OF.get(name, name) for name in names}


def imported(source: str) -> set[str]:
    """Every module that a source imports, wherever it does, `a.b` for `from a import b` too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def needs_extras(source: str) -> bool:
    """Whether a test file imports what only the extras bring."""
    prefixes = (*extra_modules(), *USES_EXTRAS)
    return any(module == p or module.startswith(p + ".") for module in imported(source) for p in prefixes)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # Asked for by name, never inferred from what fails to import: a broken environment must not pass by testing less.
    if not config.getoption("--core"):
        return None
    # A folder goes by its conftest, which is imported before any file in it is looked at.
    source = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    left_out = source.suffix == ".py" and source.exists() and needs_extras(source.read_text())
    return True if left_out else None


def pytest_report_header(config: pytest.Config) -> str:
    core = ", core tests only" if config.getoption("--core") else ""
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads{core}"


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Every test starts from one seed and must leave the process-wide settings of torch as it found them."""
    torch.manual_seed(0)
    before = _settings()
    yield
    assert _settings() == before, "the test changed a process-wide setting of torch"


def _settings() -> dict[str, object]:
    return {
        "default dtype": torch.get_default_dtype(),
        "grad enabled": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


@pytest.fixture
def no_gc() -> Iterator[None]:
    """What must be free, must be so by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
