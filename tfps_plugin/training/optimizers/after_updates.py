"""Moving averages and constraints, which follow updates on the ps."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.strategy import updates
from tfps_plugin.training.optimizers import branches
from tfps_plugin.training.optimizers import whole_updates
from tfps_plugin.variables.updates.update_part import UpdatePart


def is_overwrite_due(optimizer: Any) -> tf.Tensor | None:
    """Returns whether this step assigns averages to variables.

    Args:
        optimizer: A Keras optimizer that has not counted the step yet.

    Returns:
        A boolean scalar; None if no step does.
    """
    frequency = optimizer.ema_overwrite_frequency
    if not optimizer.use_ema or not frequency:
        return None
    number = tf.convert_to_tensor(optimizer.iterations) + 1
    return tf.equal(number % frequency, 0)


class MovingAverages:
    """Moving averages of the variables that one step updates.

    Each ps computes the averages of its own variables.

    Threading: only the thread that traces the step uses it.
    """

    def __init__(
        self,
        optimizer: Any,
        by_rows: Sequence[keras.Variable],
        whole: Sequence[keras.Variable],
    ) -> None:
        """Remembers the variables; computes nothing yet.

        Args:
            optimizer: A built Keras optimizer with `use_ema`.
            by_rows: Variables of which the step updates some rows.
            whole: The other variables of the step.
        """
        self._optimizer = optimizer
        self._by_rows = by_rows
        self._whole = whole

    def begin(self) -> None:
        """Copies variables to their averages at the first step.

        Keras does so, too. Later steps see only the rows of their batches.
        """
        if not self._by_rows:
            return
        is_first = tf.equal(tf.convert_to_tensor(self._optimizer.iterations), 0)
        branches.run_if(
            is_first,
            lambda: updates.run_parts(
                whole_updates.parts_of(self._by_rows), self._copy_variable
            ),
        )

    def update_whole(self) -> None:
        """Updates the averages of whole variables between two updates.

        With gradient accumulation, Keras updates averages with every batch.
        Averages of rows only change together with their variables.
        """
        updates.run_parts(whole_updates.parts_of(self._whole), self.update)

    def update(self, part: UpdatePart) -> None:
        """Updates the averages of the values of a part.

        Does the same as Keras's `_update_model_variables_moving_average`.

        Args:
            part: Part of an update, whose `owner` is the variable.
        """
        optimizer = self._optimizer
        average = compat.average_of(optimizer, part.owner)
        if average is None:
            return
        dtype = part.variable.dtype
        is_first = tf.equal(tf.convert_to_tensor(optimizer.iterations), 0)
        momentum = tf.where(
            is_first,
            tf.zeros([], dtype),
            tf.cast(optimizer.ema_momentum, dtype),
        )
        value = tf.convert_to_tensor(part.variable)
        average.value.assign(
            momentum * tf.convert_to_tensor(average.value)
            + (1 - momentum) * value
        )

    def overwrite_if_due(self) -> None:
        """Assigns the averages to the variables, if this step is to do so."""
        is_due = is_overwrite_due(self._optimizer)
        if is_due is not None:
            branches.run_if(
                is_due,
                lambda: compat.overwrite_with_averages(self._optimizer),
            )

    def _copy_variable(self, part: UpdatePart) -> None:
        average = compat.average_of(self._optimizer, part.owner)
        if average is not None:
            average.value.assign(tf.convert_to_tensor(part.variable))


class Constraints:
    """Constraints of the variables that one step updates.

    Keras applies the constraint of every variable at the end of `apply`. Here
    an update applies it to the values that it has changed, while it holds them.
    The rest follows at the end of the step: variables to which averages were
    assigned, and, with gradient accumulation, values that no update has changed
    yet.

    Threading: only the thread that traces the step uses it.
    """

    def __init__(
        self,
        optimizer: Any,
        by_rows: Sequence[keras.Variable],
        whole: Sequence[keras.Variable],
    ) -> None:
        """Remembers the variables that have a constraint.

        Args:
            optimizer: A built Keras optimizer.
            by_rows: Variables of which the step updates some rows.
            whole: The other variables of the step.
        """
        self._optimizer = optimizer
        self._by_rows = [v for v in by_rows if _constraint_of(v) is not None]
        self._whole = [v for v in whole if _constraint_of(v) is not None]

    def apply_to(self, part: UpdatePart) -> None:
        """Applies a constraint to the values that an update has changed.

        With gradient accumulation, `finish` does so for whole variables: Keras
        first updates their averages.

        Args:
            part: Part of an update, whose `owner` is the variable.
        """
        if part.is_rows or not self._optimizer.gradient_accumulation_steps:
            _apply(part)

    def finish(self) -> None:
        """Applies the constraints that updates have not applied."""
        optimizer = self._optimizer
        if not self._by_rows and not self._whole:
            return
        is_overwritten = is_overwrite_due(optimizer)
        if optimizer.gradient_accumulation_steps:
            updates.run_parts(whole_updates.parts_of(self._whole), _apply)
            # Later, rows change in updates alone, which apply constraints.
            is_due = tf.equal(tf.convert_to_tensor(optimizer.iterations), 0)
            if is_overwritten is not None:
                is_due |= is_overwritten
            _apply_if(is_due, self._by_rows)
        elif is_overwritten is not None:
            _apply_if(is_overwritten, [*self._whole, *self._by_rows])


def _apply_if(
    condition: tf.Tensor, variables: Sequence[keras.Variable]
) -> None:
    if variables:
        branches.run_if(
            condition,
            lambda: updates.run_parts(
                whole_updates.parts_of(variables), _apply
            ),
        )


def _apply(part: UpdatePart) -> None:
    constraint = _constraint_of(part.owner)
    if constraint is not None:
        part.variable.assign(constraint(part.variable))


def _constraint_of(variable: Any) -> Any:
    return getattr(variable, "constraint", None)
