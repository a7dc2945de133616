"""division: training with far less memory.

Backward needs the tensors that forward saw. This package keeps them compressed, for any model, with one line:

    with division.compress():
        loss = criterion(model(x), y)
    loss.backward()
"""

from division import codecs, methods
from division.attach import Handle, attach
from division.compress import compress, disabled
from division.predict import Prediction, predict
from division.recompute import recompute
from division.rules import Use, register_rule
from division.variance import gradient_variance

__version__ = "0.1.0"

__all__ = [
    "Handle",
    "Prediction",
    "Use",
    "attach",
    "codecs",
    "compress",
    "disabled",
    "gradient_variance",
    "methods",
    "predict",
    "recompute",
    "register_rule",
]
