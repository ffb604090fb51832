"""Constraints of an optimizer's variables, on the parameter servers."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin.strategy import updates
from tfps_plugin.strategy.update_parts import UpdatePart
from tfps_plugin.training.optimizers import branches
from tfps_plugin.training.optimizers import whole_updates
from tfps_plugin.training.optimizers.moving_averages import is_overwrite_due


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
