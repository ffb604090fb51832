"""Penalties on the weights of tables.

A regularizer sums a penalty over all rows, and its gradient touches all of
them: every step would send the table to the worker and back. With
`sparse_update="auto"` or `"lazy"` the penalty is applied to the rows that a
batch looks up. Otherwise Keras's own penalty applies.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat.runtime import tensorflow_strategy
from tfps_plugin.strategy.parameter_server_strategy import (
    ParameterServerStrategy,
)
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.step_trace import StepTrace

_logger = logging.getLogger("tfps_plugin.training")

_SUMS_OVER_ROWS = (
    keras.regularizers.L1,
    keras.regularizers.L2,
    keras.regularizers.L1L2,
)


def sums_over_rows(regularizer: Any) -> bool:
    """Returns whether a penalty is a sum of penalties of single rows.

    Keras's own regularizers are known. Others declare it with an attribute
    `row_wise = True`.
    """
    declared = getattr(regularizer, "row_wise", None)
    if declared is not None:
        return bool(declared)
    return type(regularizer) in _SUMS_OVER_ROWS


def penalties(
    original: Callable[[Any], list[Any]],
) -> Callable[[Any], list[Any]]:
    """Returns a `_get_regularization_losses` that penalizes rows."""

    @functools.wraps(original)
    def get(self: Any) -> list[Any]:
        variables = [
            v for v in self.trainable_weights if v.regularizer is not None
        ]
        if keras_compat.in_stateless_scope() or not any(
            map(_is_lazy, variables)
        ):
            return original(self)
        return [v.regularizer(_penalised(v)) for v in variables]

    return get


def _is_lazy(variable: keras.Variable) -> bool:
    strategy = tensorflow_strategy.strategy_of(variable.value)
    return (
        isinstance(variable.value, Table)
        and isinstance(strategy, ParameterServerStrategy)
        and strategy.sparse_update in ("auto", "lazy")
        and sums_over_rows(variable.regularizer)
    )


def _penalised(variable: keras.Variable) -> Any:
    """Returns the rows that this step looks up; else the variable itself."""
    table = variable.value
    lookups = []
    if _is_lazy(variable):
        lookups = StepTrace.current().lookups_of(table)
    if not lookups:
        return variable
    if not table.has_warned_of_penalties:
        table.has_warned_of_penalties = True
        _logger.warning(
            "The regularizer of %s is applied to the rows that a batch looks "
            "up, not to the whole table. "
            'tfps.ParameterServerStrategy(sparse_update="exact") applies it '
            "to all rows in every step, which then all travel.",
            variable.path,
        )
    if len(lookups) == 1:
        return lookups[0][1]
    # Counts each row once, however many layers share the table.
    ids_N = tf.concat([tf.cast(ids, tf.int64) for ids, _ in lookups], 0)
    ids_U, _ = tf.unique(ids_N)
    return row_lookup.look_up(table, ids_U)
