"""The table of hazards names tests that there are."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import needs_extras
from tests.hazards.table import HAZARDS

ROOT = Path(__file__).parents[2]
#: Hazards that may go without a test, each with a reason in the table.
MOST_WITHOUT = 5
NAMED = {test for hazard in HAZARDS for test in hazard.tests}
FILES = {test.split("::", maxsplit=1)[0] for test in NAMED}


def collected(files: list[str]) -> set[str]:
    """Every test of these files, with its parameters and without; slow ones too."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *files]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=paths, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = {line for line in done.stdout.splitlines() if "::" in line}
    return found | {line.split("[")[0] for line in found}


def test_every_test_of_the_table_is_collected() -> None:
    """By pytest; of files that this environment can't import, whose packages it lacks, by their source."""
    core = importlib.util.find_spec("torchvision") is None
    files = {file for file in FILES if not (core and needs_extras((ROOT / file).read_text()))}
    found = collected(sorted(files))
    seen = {test.split("::", maxsplit=1)[0] for test in found}
    assert FILES - seen == set() or core or importlib.util.find_spec("triton") is None
    for file in FILES - seen:
        functions = [
            node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        found |= {test for test in NAMED if test.split("[")[0] in {f"{file}::{name}" for name in functions}}
    assert NAMED - found == set()
    assert len(NAMED) > 100


def test_every_hazard_is_named_once_and_has_a_test_or_a_reason() -> None:
    threads = [hazard.thread for hazard in HAZARDS]
    assert len(set(threads)) == len(threads) >= 85
    public = [thread for thread in threads if "#" in thread]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in public)
    assert len(public) >= 70
    for hazard in HAZARDS:
        assert hazard.fault
        assert bool(hazard.tests) is not bool(hazard.without), hazard.thread
        assert len(set(hazard.tests)) == len(hazard.tests), hazard.thread
    assert sum(bool(hazard.without) for hazard in HAZARDS) <= MOST_WITHOUT
