"""Plain PyTorch bodies: what each op means."""

from division.kernels.reference import bits, dual, frequency, group, index, pool

__all__ = ["bits", "dual", "frequency", "group", "index", "pool"]
