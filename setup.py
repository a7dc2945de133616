"""Builds the C++ bodies of the ops; everything else about the package is in pyproject.toml.

One plain shared library, without Python's or torch's headers, loaded by ``ctypes``. Each source is compiled once for
every instruction set; which one runs is chosen when the library is loaded. Where there is no compiler the package
installs without it and runs on its plain PyTorch bodies.
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CSRC = Path("src/division/kernels/csrc")
#: Compiled once: what does not depend on the instruction set.
ONCE = ("library.cpp",)
#: Products and sums must round as IEEE says, each on its own: the bodies are equal bit for bit.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-g0",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
)
#: What gcc says of its own headers.
QUIET = ("-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized")
X86_SETS = {
    "portable": (),
    "avx2": ("-mavx2", "-mf16c", "-mbmi2", "-mpopcnt"),
    "avx512": ("-mavx2", "-mf16c", "-mbmi2", "-mpopcnt", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
}
X86_SETS["avx512vbmi2"] = (*X86_SETS["avx512"], "-mavx512vbmi2")
#: Of sets that are for some sources alone, these; all others run as they are for the set below.
ALONE = {"avx512vbmi2": ("error_bound.cpp",)}


class Build(build_ext):
    """Compiles the sources for each instruction set, and links them without Python."""

    def build_extension(self, ext: Extension) -> None:
        """Overrides setuptools': one object for each source and instruction set."""
        x86 = platform.machine().lower() in ("x86_64", "amd64", "i686")
        macros = [("DIVISION_X86", "1")] if x86 else []
        sets = X86_SETS if x86 else {"portable": ()}
        jobs = [(source, "once", macros, ()) for source in ext.sources if Path(source).name in ONCE]
        for name, flags in sets.items():
            own = [*macros, ("DIVISION_ISA", name)]
            for source in ext.sources:
                file = Path(source).name
                if file not in ONCE and file in ALONE.get(name, (file,)):
                    jobs.append((source, name, own, flags))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [built for found in pool.map(lambda job: self._compile(*job), jobs) for built in found]
        target = self.get_ext_fullpath(ext.name)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, target, target_lang="c++")

    def _compile(self, source: str, name: str, macros: list[tuple[str, str]], flags: tuple[str, ...]) -> list[str]:
        return self.compiler.compile(  # type: ignore[no-any-return]
            [source],
            output_dir=str(Path(self.build_temp, name)),
            macros=macros,
            extra_postargs=[*FLAGS, *QUIET, *flags],
            depends=[str(path) for path in CSRC.glob("*.h")],
        )


setup(
    cmdclass={"build_ext": Build},
    ext_modules=[
        Extension("division.kernels._cpu", sorted(str(path) for path in CSRC.glob("*.cpp")), optional=True),
    ],
)
