"""Inputs of fit, evaluate and predict; a row for each method."""

from . import chief_inputs
from . import creator_inputs

KINDS = {**creator_inputs.KINDS, **chief_inputs.KINDS}
# Arguments that a method does not take would not test it.
ROWS = [
    (name, method) for name, kind in KINDS.items() for method in kind.methods
]
