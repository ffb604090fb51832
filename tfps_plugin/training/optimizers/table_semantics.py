"""Logs what a step does to rows that its batch does not contain."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import keras

from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.training.optimizers import whole_matrix
from tfps_plugin.training.optimizers.catch_up import caught_up_tables

_logger = logging.getLogger("tfps_plugin.training")

# Most rows of smaller tables are in most batches.
_BIG_BYTES = 1 << 20
_SHOWN = 3
_TOLD = "told_table_semantics"


def tell(optimizer: Any, variables: Sequence[Any], sparse_update: str) -> None:
    """Logs, once for an optimizer, how its big tables are updated.

    Args:
        optimizer: A Keras optimizer of a strategy, or None.
        variables: The `keras.Variable`s that it trains.
        sparse_update: Setting of the strategy.
    """
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    if (
        optimizer is None
        or sparse_update == "auto"  # see tell_choice
        or getattr(optimizer, _TOLD, False)
    ):
        return
    setattr(optimizer, _TOLD, True)
    tables = [variable for variable in variables if _is_big_table(variable)]
    lazy = [
        table
        for table in tables
        if sparse_update == "lazy" and _differs(optimizer, table)
    ]
    if lazy:
        _logger.warning(
            "%s leaves rows of %s alone that a batch does not contain "
            "(sparse_update='lazy'); in one process they would go on to move. "
            "sparse_update='caught_up' gives the numbers of one process at the "
            "cost of the batch, 'exact' at that of the table.",
            type(optimizer).__name__,
            _names(lazy),
        )
    elif tables:
        _logger.info(
            "%s updates rows of %s as in one process (sparse_update=%r).",
            type(optimizer).__name__,
            _names(tables),
            sparse_update,
        )


def tell_choice(
    name: str,
    tables: list[keras.Variable],
    *,
    is_exact: bool,
    seconds: float,
    seconds_between_updates: float,
    is_measured: bool,
) -> None:
    """Logs how `sparse_update="auto"` updates some tables.

    Args:
        name: Name of the optimizer, for messages.
        tables: Some of its tables, all updated in the same way.
        is_exact: Whether all of their rows are updated.
        seconds: Time that a parameter server takes to update all rows of all
            tables.
        seconds_between_updates: Seconds between two updates of a parameter
            server, with the updates of all workers.
        is_measured: Whether that was measured, or is a guess.
    """
    beside = (
        f"{1e3 * seconds:.2g} ms of a parameter server, with an update every "
        f"{1e3 * seconds_between_updates:.2g} ms"
        f"{'' if is_measured else ', as in steps of a common length'}"
    )
    if is_exact:
        _logger.info(
            "%s updates all rows of %s in every step, as in one process "
            "(sparse_update='auto'): they take %s.",
            name,
            _names(tables),
            beside,
        )
    else:
        _logger.warning(
            "%s leaves rows of %s alone that a batch does not contain "
            "(sparse_update='auto'); in one process they would go on to move. "
            "All rows would take %s. sparse_update='caught_up' gives the "
            "numbers of one process at the cost of the batch, 'exact' at that "
            "of the table.",
            name,
            _names(tables),
            beside,
        )


def _is_big_table(variable: Any) -> bool:
    if not caught_up_tables.is_table(variable):
        return False
    num_bytes = math.prod(variable.shape) * variable.value.dtype.size
    return num_bytes >= _BIG_BYTES


def _differs(optimizer: Any, table: keras.Variable) -> bool:
    """Returns whether lazy updates and those of all rows differ."""
    if isinstance(optimizer, compat.MultiOptimizer):
        optimizer = compat.optimizer_of(optimizer, table)
    if whole_matrix.needs_whole_matrix(optimizer, table):
        return False
    return caught_up_tables.changes_without_gradient(optimizer, table)


def _names(tables: list[keras.Variable]) -> str:
    shown = ", ".join(
        f"{compat.path_of(table)} {tuple(table.shape)}"
        for table in tables[:_SHOWN]
    )
    more = len(tables) - _SHOWN
    return f"{shown} and {more} more tables" if more > 0 else shown
