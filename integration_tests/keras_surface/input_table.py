"""What can be given to fit, evaluate and predict; a row for each method."""

from . import chief_inputs
from . import creator_inputs

KINDS = {**creator_inputs.KINDS, **chief_inputs.KINDS}
# What a method does not take would say nothing about it.
ROWS = [
    (name, method) for name, kind in KINDS.items() for method in kind.methods
]
