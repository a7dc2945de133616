"""Plain PyTorch bodies: what each op means."""

from division.kernels.reference import bits, dual, group, index, pool, ranged

__all__ = ["bits", "dual", "group", "index", "pool", "ranged"]
