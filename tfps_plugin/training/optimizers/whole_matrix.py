"""Optimizers and constraints that need more of a table than single rows.

Most optimizers of Keras compute each element from itself, its gradient and
its slots, so they can run on single rows. Three need a whole matrix. Some
constraints do, too.
"""

from typing import Any

import keras

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup.table import table_behind

_WHOLE_MATRIX = {
    keras.optimizers.Adafactor: "keeps statistics of whole rows and columns",
    keras.optimizers.Lamb: "scales an update by the norm of the whole matrix",
    keras.optimizers.Muon: "makes the update of a matrix orthogonal",
}


def needs_whole_matrix(optimizer: Any, variable: keras.Variable) -> bool:
    """Returns whether an optimizer cannot update single rows of a variable."""
    if not isinstance(optimizer, tuple(_WHOLE_MATRIX)):
        return False
    if isinstance(optimizer, keras.optimizers.Muon):
        # Muon uses AdamW for embeddings and for everything but matrices.
        return not compat.uses_adamw(optimizer, variable)
    return True


def require_supported(optimizer: Any, variables: list[Any]) -> None:
    """Checks an optimizer and the constraints of its variables.

    Args:
        optimizer: A Keras optimizer that does not wrap another.
        variables: The `keras.Variable`s that it will update.

    Raises:
        UnsupportedError: If a variable is sharded, or is a table without a
            fixed number of rows, and the optimizer or a constraint needs it
            whole.
    """
    for variable in variables:
        if not isinstance(variable, keras.Variable):
            continue
        require_row_wise(variable)
        if not needs_whole_matrix(optimizer, variable):
            continue
        found = table_behind(variable)
        if found is not None and found[0].has_directory:
            raise errors.UnsupportedError(_refusal_by_id(optimizer, variable))
        if isinstance(variable.value, ShardedVariable):
            raise errors.UnsupportedError(_refusal(optimizer, variable))


def require_compilable(optimizer: Any, variables: list[Any]) -> None:
    """Checks the optimizer of a model against the variables to train.

    Args:
        optimizer: The optimizer given to `compile`; wrapped optimizers are
            checked. May be None.
        variables: The trainable variables that the model has so far.

    Raises:
        UnsupportedError: See `require_supported`.
    """
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    for variable in variables:
        if isinstance(optimizer, compat.MultiOptimizer):
            of_variable = compat.optimizer_of(optimizer, variable)
        else:
            of_variable = optimizer
        require_supported(of_variable, [variable])


def _refusal(optimizer: Any, variable: keras.Variable) -> str:
    what, advice = _what_it_does_and_advice(optimizer)
    return (
        f"{what}, and {variable.path!r} is cut into "
        f"{variable.value.layout.num_shards} shards. Received: "
        f"shape={tuple(variable.shape)}. {advice}; or keep it whole with the "
        "strategy's variable_partitioner: on one parameter server the update "
        "is exact."
    )


def _refusal_by_id(optimizer: Any, variable: keras.Variable) -> str:
    what, advice = _what_it_does_and_advice(optimizer)
    return (
        f"{what}, and the table {variable.path!r} has no fixed number of rows: "
        "most of its memory may belong to no id. Expected: an optimizer that "
        "updates single rows. Received: "
        f"optimizer={type(optimizer).__name__}. {advice}."
    )


def _what_it_does_and_advice(optimizer: Any) -> tuple[str, str]:
    kind = next(k for k in _WHOLE_MATRIX if isinstance(optimizer, k))
    return (
        f"The optimizer {type(optimizer).__name__} {_WHOLE_MATRIX[kind]}",
        "Name it in exclude_layers, so that Muon updates it as AdamW does"
        if kind is keras.optimizers.Muon
        else "Use another optimizer for it (keras.optimizers.MultiOptimizer "
        "gives each variable its own)",
    )


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
