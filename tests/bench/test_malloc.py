import subprocess
import sys

import pytest

from division.bench import malloc

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")
#: In a process of its own: what tests before it have freed may serve a block at once.
KEEPING = """
import resource
from pathlib import Path
import torch
from division.bench import malloc

def fetched(size):
    '''Pages fetched from the system by filling a block: the fewest of some tries.'''
    found = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(size, dtype=torch.uint8)
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(found)

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

size = 48 << 20  # glibc maps so large a block anew each time
pages = size // resource.getpagesize()
assert fetched(size) > pages // 2
before = resident()
with malloc.keeping(8 * size):
    assert fetched(size) < pages // 100
    assert resident() > before + 7 * size
assert resident() < before + size
"""


def test_kept_memory_is_there_at_once_and_given_back_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    with malloc.keeping(1 << 20):
        malloc.trim()
