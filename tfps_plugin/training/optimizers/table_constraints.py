"""Constraints of tables that can be applied row by row."""

from typing import Any

import keras

from tfps_plugin import errors
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable

_NORMS = (
    keras.constraints.MaxNorm,
    keras.constraints.MinMaxNorm,
    keras.constraints.UnitNorm,
)


def is_row_wise(constraint: Any, rank: int) -> bool:
    """Returns whether a constraint treats each row of a table by itself.

    Keras's constraints are known. Others declare it with an attribute
    `row_wise = True`.

    Args:
        constraint: A Keras constraint, any callable of a tensor, or None.
        rank: Number of axes of the table.

    Returns:
        Whether single rows may be constrained.
    """
    if constraint is None:
        return True
    declared = getattr(constraint, "row_wise", None)
    if declared is not None:
        return bool(declared)
    if type(constraint) is keras.constraints.NonNeg:
        return True
    if type(constraint) not in _NORMS:
        return False
    axes = constraint.axis
    axes = axes if isinstance(axes, list | tuple) else [axes]
    return all(axis % rank != 0 for axis in axes)


def require_row_wise(variable: keras.Variable) -> None:
    """Checks the constraint of a sharded variable.

    Raises:
        UnsupportedError: If the constraint needs the whole table at once.
    """
    constraint = variable.constraint
    if constraint is None or not isinstance(variable.value, ShardedVariable):
        return
    if is_row_wise(constraint, len(variable.shape)):
        return
    shards = variable.value.layout.num_shards
    raise errors.UnsupportedError(
        f"The constraint of {variable.path!r} needs the whole table, which is "
        f"cut into {shards} shards. Expected a constraint of single rows, such "
        "as NonNeg() or MaxNorm(axis=1). Received: constraint="
        f"{_described(constraint)}. Give the norm another axis, set "
        "`row_wise = True` on a constraint of your own that looks at each row "
        "by itself, or keep this variable whole with the strategy's "
        "variable_partitioner."
    )


def _described(constraint: Any) -> str:
    name = type(constraint).__name__
    if isinstance(constraint, keras.constraints.Constraint):
        try:
            config = constraint.get_config()
        except NotImplementedError:
            return f"{name}()"
        arguments = ", ".join(f"{k}={v!r}" for k, v in config.items())
        return f"{name}({arguments})"
    return repr(constraint)
