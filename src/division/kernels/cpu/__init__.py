"""Bodies in C++ for the CPU, from ``kernels/csrc``: one file an op family, bit for bit what the reference gives."""

from division.kernels.cpu import bits, dual, frequency, group, index, library, pool

__all__ = ["bits", "dual", "frequency", "group", "index", "library", "pool"]
