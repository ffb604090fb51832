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
    """Marks the slots of dynamic tables that differ from others.

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
        average = (
            compat.average_of(optimizer, variable)
            if optimizer.use_ema
            else None
        )
        if average is not None:
            keras_compat.value_of(average).begins_as_its_variable = True
        if optimizer.gradient_accumulation_steps:
            # Gradients are added to it long after their lookup, too.
            sums = compat.accumulator_of(optimizer, variable)
            lookups = found[0].lookups_of_steps
            keras_compat.value_of(sums).lookups_of_steps = lookups


def require_known_slots(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> None:
    """Refuses slots of which the lookups of the same step know nothing.

    Lookups evict rows, and clear their slots.

    Args:
        optimizer: An optimizer that is built.
        variables: The variables that it updates.

    Raises:
        OptimizerNotBuiltError: If one of the tables evicts rows, and the step
            that is traced has looked it up before it had all of its slots.
    """
    for variable in variables:
        found = table_behind(variable)
        if found is None or found[0].lookups_of_steps is None:
            continue
        table, _ = found
        if not table.lookups_of_steps.know_slots(len(table.shards[0].family)):
            raise errors.OptimizerNotBuiltError(
                f"The optimizer {optimizer.name!r} was built in the middle of "
                f"a step. The table {variable.path!r} evicts rows, and slots "
                "of the optimizer with them, which its lookups have to know "
                "before. Received: optimizer.apply() in a tf.function, without "
                "optimizer.build(). Call "
                "optimizer.build(model.trainable_variables) before the first "
                "step, or call the step once more: it is built now."
            )


def _copies_variables(optimizer: keras.optimizers.Optimizer) -> bool:
    # Since Keras 3.14.
    kind = getattr(keras.optimizers, "ScheduleFreeAdamW", None)
    return kind is not None and isinstance(optimizer, kind)
