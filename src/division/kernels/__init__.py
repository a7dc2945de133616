"""The ops under the codecs: one schema each, several bodies, one meaning.

``ops.py`` holds the schemas, the argument checks and the shapes of the results; a body is registered for a
dispatch key by ``@ops.body``. The bodies in ``reference/`` are plain PyTorch: they define what each op means,
serve every device that has no body of its own, and need no compiler. ``cpu/`` binds the C++ bodies of ``csrc/``,
``gpu/`` holds the Triton bodies; both give the same bits. ``bodies.py`` says which body an op uses where, and why.
"""

from division.kernels import bodies, cpu, gpu, noise, ops, reference

__all__ = ["bodies", "cpu", "gpu", "noise", "ops", "reference"]
