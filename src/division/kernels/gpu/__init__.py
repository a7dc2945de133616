"""Triton bodies of the ops for CUDA: the same bits as the reference bodies, in one read and one write.

``launch.py`` says how a body is bound and a kernel launched, ``rounding.py`` and ``noise.py`` hold what kernels
share, and one file an op's family holds the kernels, named as in ``reference/``. Importing this package imports no
Triton; where it is missing, CUDA tensors take the reference bodies.
"""

from division.kernels import reference  # noqa: F401  (defines the ops)
from division.kernels.gpu.launch import Configuration, Launch, register, status

__all__ = ["Configuration", "Launch", "status"]

register()
