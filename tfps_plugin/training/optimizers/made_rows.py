"""Slots of rows that are made while a model trains.

A row of a dynamic table has slots like those of any row that no step has
changed yet. Most begin with a constant. A moving average begins with the row.
"""

from collections.abc import Sequence

import keras

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.variables.lookup.table import table_behind


def prepare(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> None:
    """Marks the slots of dynamic tables that begin as their variable.

    Args:
        optimizer: An optimizer that has just been built.
        variables: Its variables.

    Raises:
        UnsupportedError: If the optimizer has other slots of that kind.
    """
    for variable in variables:
        found = table_behind(variable)
        if found is None or not found[0].has_directory:
            continue
        if _copies_variables(optimizer):
            raise errors.UnsupportedError(
                f"The table {variable.path!r} has no fixed number of rows, and "
                "the optimizer copies all rows when it is built. Received: "
                f"optimizer={type(optimizer).__name__}. Use another optimizer, "
                "such as AdamW with a schedule of learning rates."
            )
        if not optimizer.use_ema:
            continue
        average = compat.average_of(optimizer, variable)
        if average is not None:
            keras_compat.value_of(average).begins_as_its_variable = True


def _copies_variables(optimizer: keras.optimizers.Optimizer) -> bool:
    # Since Keras 3.14.
    kind = getattr(keras.optimizers, "ScheduleFreeAdamW", None)
    return kind is not None and isinstance(optimizer, kind)
