"""Values that a synchronous step assigns."""

from typing import Any

import tensorflow as tf

from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.methods import self_assignment


def handles_of(variable: Any) -> list[tf.Tensor]:
    """Returns the handles of a variable, or its shards, in the present step.

    Args:
        variable: A variable on parameter servers.
    """
    shards = getattr(variable, "variables", None)
    return [each.handle for each in (shards or [variable])]


def as_addition(variable: Any, value: tf.Tensor) -> tf.Tensor | None:
    """Returns the addend if a value is the variable itself plus an addend.

    Args:
        variable: A variable on parameter servers.
        value: The value to assign, a tensor of the step.
    """
    if isinstance(variable, ShardedVariable):
        return None
    return self_assignment.as_addition(variable, value)
