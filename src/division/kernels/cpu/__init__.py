"""Bodies in C++ for the CPU, from ``kernels/csrc``: one file an op family, bit for bit what the reference gives."""

from division.kernels.cpu import bits, dual, error_bound, frequency, group, index, library, mixed, pool, ranged

__all__ = ["bits", "dual", "error_bound", "frequency", "group", "index", "library", "mixed", "pool", "ranged"]
