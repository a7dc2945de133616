"""How much memory coding takes beside its input and its result, as the system counts it: in a fresh process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from division.kernels.cpu import library

MEASURE = """
import ctypes, json
from pathlib import Path
import torch
from division.codecs import AdaptiveWindow, Bits, Dual, Frequency, Group, Interval, Mask, Mixed, Ranged, Window
from division.kernels.cpu import library

torch.set_num_threads(2)
trim = ctypes.CDLL(None).malloc_trim

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))

def temporary(call):
    '''Bytes beyond what was there before and the result.'''
    result = call()  # what is set up once, on each thread
    del result
    trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from now
    before = resident("VmRSS")
    result = call()
    peak = resident("VmHWM")
    parts = [result] if isinstance(result, torch.Tensor) else result.parts
    return peak - before - sum(part.nbytes for part in parts), result

def shaped(*size, last=False):
    x = torch.randn(size)
    return x.to(memory_format=torch.channels_last) if last else x

maps = (8, 64, 160, 160)
cases = {
    "dual": lambda: (Dual(), shaped(*maps)),
    "dual channels_last": lambda: (Dual(), shaped(*maps, last=True)),
    "dual 7x7": lambda: (Dual(), shaped(512, 512, 7, 7)),
    "dual 1 plane": lambda: (Dual(), shaped(1, 1, 3600, 3600)),
    "dual 1 row": lambda: (Dual(), shaped(1, 2, 6_500_000)),
    "dual 1 row channels_last": lambda: (Dual(), shaped(1, 203_000, 64).transpose(1, 2)),
    "dual 1 row channels_last, 1 block": lambda: (Dual(203_000), shaped(1, 203_000, 64).transpose(1, 2)),
    "dual 1 row, 1 block": lambda: (Dual(6_500_000), shaped(1, 2, 6_500_000)),
    "dual low": lambda: (Dual(part="low"), shaped(*maps)),
    "dual low 1 row": lambda: (Dual(part="low"), shaped(1, 2, 6_500_000)),
    "dual low 1 row, 1 block": lambda: (Dual(6_500_000, part="low"), shaped(1, 2, 6_500_000)),
    "dual low 1 row channels_last, 1 block": lambda: (
        Dual(203_000, part="low"), shaped(1, 203_000, 64).transpose(1, 2)
    ),
    "frequency": lambda: (Frequency(), shaped(*maps)),
    "frequency channels_last": lambda: (Frequency(), shaped(*maps, last=True)),
    "frequency 7x7": lambda: (Frequency(), shaped(512, 512, 7, 7)),
    "frequency 1 plane": lambda: (Frequency(), shaped(1, 1, 3600, 3600)),
    "frequency 1 row": lambda: (Frequency(), shaped(1, 2, 6_500_000)),
    "group": lambda: (Group(), shaped(512, 25600)),
    "group 3 bits": lambda: (Group(bits=3), shaped(512, 25600)),
    "mixed": lambda: (Mixed(2.5), shaped(512, 25600)),
    "mixed channels_last": lambda: (Mixed(), shaped(*maps, last=True)),
    "group of all": lambda: (Group(size=None), shaped(1, 64, 512, 400)),
    "ranged": lambda: (Ranged(), shaped(*maps)),
    "ranged channels_last": lambda: (Ranged(groups=2), shaped(*maps, last=True)),
    "bits": lambda: (Bits(lo=0.0), shaped(*maps)),
    "bits channels_last": lambda: (Bits(lo=0.0), shaped(*maps, last=True)),
    "interval": lambda: (Interval(lo=0.0, hi=6.0), shaped(*maps)),
    "mask": lambda: (Mask(), shaped(16, *maps[1:]) > 0),
    "window": lambda: (
        Window((160, 160), (2, 2), (2, 2)),
        torch.nn.functional.max_pool2d(shaped(*maps), 2, return_indices=True)[1],
    ),
}
found = {}
for name, make in cases.items():
    codec, x = make()
    encode, packed = temporary(lambda: codec.encode(x, 1))
    decode, back = temporary(lambda: codec.decode(packed))
    found[name] = x.nbytes, encode, decode
    del x, packed, back
print(json.dumps(found))
"""
MIB = 1 << 20


@pytest.fixture(scope="module")
def measured() -> dict[str, tuple[int, int, int]]:
    """For each case the bytes of its tensor, and those that encoding and decoding took for a time."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.skipif(len(library.RUNNABLE) == 1, reason="the compiled library is missing")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not count the peak anew")
@pytest.mark.parametrize("what", [1, 2], ids=["encode", "decode"])
def test_at_most_a_fiftieth_of_the_tensor_and_a_mebibyte_a_thread(
    what: int, measured: dict[str, tuple[int, int, int]]
) -> None:
    over = {
        name: f"{bytes_of[what] / MIB:.2f} MiB of {bytes_of[0] / MIB:.2f}"
        for name, bytes_of in measured.items()
        if bytes_of[what] > bytes_of[0] * 0.02 + 2 * MIB
    }
    assert not over
