"""Plain PyTorch bodies: what each op means."""

from division.kernels.reference import bits, dual, error_bound, group, index, pool

__all__ = ["bits", "dual", "error_bound", "group", "index", "pool"]
