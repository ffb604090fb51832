"""Variables whose rows are all updated in every step."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.strategy import update_parts
from tfps_plugin.training.optimizers import whole_matrix
from tfps_plugin.training.optimizers.automatic import automatic_updates
from tfps_plugin.variables.storage import on_disk
from tfps_plugin.variables.updates.update_part import UpdatePart


def require_rows(
    pairs: Iterable[tuple[keras.Variable, Any]],
) -> None:
    """Refuses to update all rows of variables on disk.

    Args:
        pairs: Variables and their gradients.

    Raises:
        errors.UnsupportedError: If a gradient of a variable on disk is dense.
    """
    for variable, gradient in pairs:
        if _is_on_disk(variable) and not isinstance(gradient, tf.IndexedSlices):
            raise errors.UnsupportedError(
                f"The variable {variable.path!r} is on the disks of parameter "
                "servers, where steps update single rows only, and this step "
                "has a gradient of all of its rows. Expected: a table, of "
                "which steps look up rows and use nothing else. Received: a "
                f"dense gradient, shape={tuple(variable.shape)}. If this is no "
                "table, such as the kernel of a Dense layer, "
                f"{on_disk.IN_MEMORY_INSTEAD}."
            )


def is_whole(optimizer: Any, variable: keras.Variable) -> bool:
    """Returns whether a gradient of some rows updates all rows of a variable.

    Args:
        optimizer: A Keras optimizer of our strategy.
        variable: A variable that it trains.
    """
    form = compat.strategy_of(optimizer).sparse_update
    if _is_on_disk(variable):
        if form == "exact" or has_to_be_whole(optimizer, variable):
            raise errors.UnsupportedError(
                f"The table {variable.path!r} is on the disks of parameter "
                "servers, where steps update single rows only. Expected "
                "sparse_update='lazy' or 'auto', an optimizer that updates "
                "rows, and no constraint of whole columns. Received: "
                f"sparse_update={form!r}, optimizer={optimizer.name!r}, "
                f"constraint={getattr(variable, 'constraint', None)!r}. Or "
                f"{on_disk.IN_MEMORY_INSTEAD}."
            )
        return False
    return (
        form == "exact"
        or (
            form == "auto"
            and automatic_updates.of(optimizer).is_exact(variable)
        )
        or has_to_be_whole(optimizer, variable)
    )


def _is_on_disk(variable: keras.Variable) -> bool:
    return bool(getattr(compat.value_of(variable), "is_on_disk", False))


def has_to_be_whole(optimizer: Any, variable: keras.Variable) -> bool:
    """Returns whether rows of a variable cannot be updated alone.

    Args:
        optimizer: A Keras optimizer of our strategy.
        variable: A variable that it trains.
    """
    constraint = getattr(variable, "constraint", None)
    form = compat.strategy_of(optimizer).sparse_update
    if constraint is not None and form == "caught_up":
        # The constraint applies after every step, to all rows.
        return True
    return whole_matrix.needs_whole_matrix(
        optimizer, variable
    ) or not whole_matrix.is_row_wise(constraint, len(variable.shape))


def parts_of(variables: Iterable[keras.Variable]) -> list[UpdatePart]:
    """Returns the parts of updates of all rows, without arguments.

    Args:
        variables: Keras variables of our strategy.
    """
    return [
        dataclasses.replace(part, owner=variable)
        for variable in variables
        for part in update_parts.parts_of(
            compat.value_of(variable), (), exact=True
        )
    ]
