"""One optimizer step on tables whose rows catch up."""

import contextlib
import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.strategy.update_parts import UpdatePart
from tfps_plugin.training.optimizers.catch_up import caught_up_shard
from tfps_plugin.training.optimizers.catch_up import caught_up_tables
from tfps_plugin.training.optimizers.catch_up.caught_up_update import (
    CaughtUpUpdate,
)
from tfps_plugin.training.optimizers.catch_up.moment import Moment
from tfps_plugin.training.optimizers.catch_up.step_clock import StepClock


class CaughtUpStep:
    """Moments before and after a step, and the updates between them.

    Threading: only the thread that traces the step uses it.
    """

    def __init__(self, optimizer: Any) -> None:
        """Finds the tables; traces nothing yet.

        Args:
            optimizer: A built Keras optimizer of our strategy, with or without
                tables that catch up.
        """
        self._optimizer = optimizer
        self._tables = caught_up_tables.of(optimizer)
        # Moments before and after the step, by clock.
        self._moments: dict[StepClock, tuple[Moment, Moment]] = {}

    @contextlib.contextmanager
    def counting(self, gradients: Sequence[Any]) -> Iterator[None]:
        """Counts the step on the clocks that rows catch up with.

        Returns:
            A context for the updates of the step.
        """
        if self._tables is None:
            yield
            return
        with self._tables.step(gradients) as self._moments:
            yield

    def numbers(
        self, variable: keras.Variable, gradient: Any, *, is_whole: bool
    ) -> list[tf.Tensor]:
        """Returns the moments as the tensors that an update sends to each ps.

        Args:
            variable: The variable that is updated.
            gradient: A tensor or `tf.IndexedSlices`.
            is_whole: Whether the gradient updates all rows.

        Returns:
            A tensor for the moment before the step and one for the moment after
            it. An empty list if the variable does not catch up.

        Raises:
            UnsupportedError: If the table had to be known before the optimizer
                was built.
        """
        tables = self._tables
        clock = tables and tables.clock_of(compat.value_of(variable))
        if clock is not None:
            return [moment.numbers for moment in self._moments[clock]]
        strategy = compat.strategy_of(self._optimizer)
        if (
            strategy.sparse_update == "caught_up"
            and isinstance(gradient, tf.IndexedSlices)
            and not is_whole
            and caught_up_tables.changes_without_gradient(
                self._optimizer, variable
            )
        ):
            raise errors.UnsupportedError(
                "sparse_update='caught_up' has to know a table before its "
                "optimizer is built, and nobody had looked up rows of this one "
                f"by then. Received: variable={compat.path_of(variable)!r}. "
                "Build the model first (call it on a batch, or "
                "model.build(shape)), and then the optimizer: "
                "optimizer.build(model.trainable_variables)."
            )
        return []

    def catching_up(
        self, part: UpdatePart, numbers: Sequence[tf.Tensor]
    ) -> UpdatePart:
        """Returns a part of an update that sees rows that have caught up.

        Args:
            part: The part, whose `owner` is the variable.
            numbers: The tensors of `numbers`, on the part's ps.

        Raises:
            UnsupportedError: If the rows catch up with another optimizer.
        """
        if not numbers or part.shard is None:
            return part
        shard = caught_up_shard.of(part.shard)
        if shard is None or shard.clock not in self._moments:
            raise errors.UnsupportedError(
                "Two optimizers train one table, whose rows can only catch up "
                "with one of them (sparse_update='caught_up'). Received: "
                f"variable={compat.path_of(part.owner)!r}, "
                f"optimizer={self._optimizer.name!r}. Use one optimizer for "
                "it, or another sparse_update."
            )
        now, after = map(shard.clock.moment, numbers)
        update = CaughtUpUpdate(shard, part.ids_U, now)
        return dataclasses.replace(
            part,
            seen={**part.seen, **update.views()},
            finish=lambda: update.finish(after),
        )
