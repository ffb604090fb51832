"""Refuses models whose variables were not made under the scope."""

from typing import Any

import keras

from tfps_plugin import errors
from tfps_plugin.training import preprocessing

_SHOWN = 5


def require_created_in_scope(model: keras.Model) -> None:
    """Checks every variable that a training step uses.

    Args:
        model: A built and compiled model.

    Raises:
        VariableCreationError: If layers, metrics or the optimizer hold
            variables that live on the chief, where workers would read and
            write them one by one.
    """
    extended = model.distribute_strategy.extended
    variables = [*model.variables, *model.metrics_variables]
    if model.optimizer is not None:
        variables += model.optimizer.variables
    unused = preprocessing.variables_that_no_step_reads(model)
    foreign = [
        v.path
        for v in variables
        if not _created_in_scope(extended, v) and id(v) not in unused
    ]
    if foreign:
        shown = ", ".join(foreign[:_SHOWN])
        more = len(foreign) - _SHOWN
        if more > 0:
            shown += f" and {more} more"
        raise errors.VariableCreationError(
            f"Some variables of the model {model.name!r} were created outside "
            "strategy.scope(), so they are on the chief instead of the "
            f"parameter servers. Received: {shown}. Create the layers, "
            "metrics and the optimizer inside `with strategy.scope():`."
        )


def _created_in_scope(extended: Any, variable: keras.Variable) -> bool:
    value = getattr(variable, "_value", None)
    return value is not None and extended.variable_created_in_scope(value)
