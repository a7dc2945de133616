"""Compile every kernel ahead of time, without a GPU: a JSON line for each configuration and architecture.

``python -m tests.kernels.gpu.ahead 80 90`` compiles each module's ``configurations()`` for sm_80 and sm_90 with Triton's
own ptxas, and prints what the PTX holds and whether registers were spilled. It must run in a process of its own, since kernels that
were made for the interpreter aren't compiled.
"""

import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from division.kernels import gpu

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def configurations() -> Iterator[gpu.Configuration]:
    """Those of every module of the package that has some."""
    for found in pkgutil.iter_modules(gpu.__path__):
        module = importlib.import_module(f"{gpu.__name__}.{found.name}")
        if hasattr(module, "configurations"):
            yield from module.configurations()


def compiled(configuration: gpu.Configuration, architecture: int) -> Any:
    """Triton's result: ``.asm["ptx"]``, ``.asm["cubin"]``, ..."""
    names = list(configuration.signature)
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in configuration.aligned}
    source = ASTSource(configuration.kernel, configuration.signature, configuration.constexprs, attributes)
    options = {
        "num_warps": configuration.num_warps,
        "num_stages": configuration.num_stages,
        "enable_fp_fusion": False,
    }
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def spilled(cubin: bytes) -> int:
    """Bytes a thread keeps in memory for want of registers: its stack, which these kernels have no other use for."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (stack,) = re.findall(r"REG:\d+ STACK:(\d+) ", usage)
    return int(stack)


def report(configuration: gpu.Configuration, architecture: int) -> dict[str, Any]:
    """What a test wants to know of one."""
    code = compiled(configuration, architecture).asm
    ptx = code["ptx"]
    opcodes = set(re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*\.[\w.:]+)", ptx, re.MULTILINE))
    return {
        "name": configuration.name,
        "kernel": configuration.kernel.__name__,
        "architecture": architecture,
        "spilled": spilled(code["cubin"]),
        "opcodes": sorted(opcodes),
    }


if __name__ == "__main__":
    for one in configurations():
        for number in sys.argv[1:]:
            sys.stdout.write(json.dumps(report(one, int(number))) + "\n")
