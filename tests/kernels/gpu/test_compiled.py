"""Every kernel compiled ahead for two architectures: no spilled register, no operation that isn't IEEE's."""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from division.kernels import gpu

pytest.importorskip("triton", reason="triton is not installed")

ARCHITECTURES = ("80", "90")
ROOT = Path(__file__).parents[3]
#: Multiplied and added in one rounding, or divided and rooted with less than IEEE's precision.
FORBIDDEN = re.compile(
    r"(fma|mad)\.(rn|rz|rm|rp)\S*f(16|32|64)|(mad|fma)\.f|div\.(full|approx)|(rcp|sqrt|rsqrt)\.approx"
)
#: Results where numbers too small for float32's exponents became 0: of roundings to whole numbers alone, here.
FLUSHED = re.compile(r"^(?!cvt\.r[mpzn]i\.ftz\.f32\.f32$).*\.ftz")


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    """One for each configuration and architecture."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-m", "tests.kernels.gpu.ahead", *ARCHITECTURES]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def kernels() -> set[str]:
    """The kernels of the package's modules, by their names."""
    names = set()
    for found in pkgutil.iter_modules(gpu.__path__):
        module = importlib.import_module(f"{gpu.__name__}.{found.name}")
        names |= {name for name in vars(module) if name.endswith("_kernel")}
    return names


def test_every_kernel_is_compiled_for_every_architecture(reports: list[dict[str, Any]]) -> None:
    for architecture in map(int, ARCHITECTURES):
        assert {one["kernel"] for one in reports if one["architecture"] == architecture} == kernels()


def test_no_register_is_spilled(reports: list[dict[str, Any]]) -> None:
    assert [(one["name"], one["architecture"], one["spilled"]) for one in reports if one["spilled"]] == []


def test_all_arithmetic_is_that_of_ieee(reports: list[dict[str, Any]]) -> None:
    found = {
        (one["name"], opcode)
        for one in reports
        for opcode in one["opcodes"]
        if FORBIDDEN.match(opcode) or FLUSHED.match(opcode)
    }
    assert found == set()


def test_contiguous_maps_are_moved_16_bytes_at_a_time(reports: list[dict[str, Any]]) -> None:
    for kernel, opcode in (("encode_kernel", "ld.global.v4.b32"), ("decode_kernel", "st.global.v4.b32")):
        first = [one for one in reports if one["kernel"] == kernel and "channels_last" not in one["name"]][:2]
        assert len(first) == 2
        for one in first:
            assert opcode in one["opcodes"], (one["name"], one["architecture"])


@pytest.mark.parametrize(
    ("opcode", "forbidden"),
    [
        ("fma.rn.f32", True),
        ("mad.f32", True),
        ("div.full.f32", True),
        ("div.approx.ftz.f32", True),
        ("rcp.approx.ftz.f32", True),
        ("mul.ftz.f32", True),
        ("add.rn.f32", False),
        ("div.rn.f32", False),
        ("mad.wide.u32", False),
        ("mad.lo.s32", False),
        ("cvt.rpi.ftz.f32.f32", False),
        ("cvt.rn.f16.f32", False),
        ("ld.global.v4.b32", False),
    ],
)
def test_forbidden_operations_are_seen(opcode: str, forbidden: bool) -> None:
    assert bool(FORBIDDEN.match(opcode) or FLUSHED.match(opcode)) == forbidden
