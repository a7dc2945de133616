"""Plain PyTorch bodies: what each op means."""

from division.kernels.reference import bits, dual, error_bound, frequency, group, index, mixed, pool, ranged

__all__ = ["bits", "dual", "error_bound", "frequency", "group", "index", "mixed", "pool", "ranged"]
