"""Plain PyTorch bodies: what each op means."""

from division.kernels.reference import dual, group, pool

__all__ = ["dual", "group", "pool"]
