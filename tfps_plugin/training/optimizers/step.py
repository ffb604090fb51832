"""One `optimizer.apply` on variables of parameter servers.

Keras's own `apply` reads variables where it runs, on the worker: tables, for
averages, constraints and accumulators. Here the same steps, in the same
order, run where the variables live; the optimizer's own `update_step` is what
changes them.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.strategy import updates
from tfps_plugin.strategy.update_parts import UpdatePart
from tfps_plugin.strategy.update_parts import parts_of
from tfps_plugin.training.optimizers import automatic_updates
from tfps_plugin.training.optimizers import gradient_accumulators
from tfps_plugin.training.optimizers import gradient_clipping
from tfps_plugin.training.optimizers import table_constraints
from tfps_plugin.training.optimizers import whole_matrix
from tfps_plugin.training.optimizers.catch_up import caught_up_shard
from tfps_plugin.training.optimizers.catch_up import caught_up_tables
from tfps_plugin.training.optimizers.catch_up.caught_up_update import (
    CaughtUpUpdate,
)
from tfps_plugin.training.optimizers.catch_up.moment import Moment
from tfps_plugin.training.optimizers.catch_up.step_clock import StepClock
from tfps_plugin.variables.compression import gradient_residual
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.lookup.distinct_rows import distinct
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.step_trace import View
from tfps_plugin.variables.updates import views


class OptimizerStep:
    """Applies one step's gradients.

    Threading: made, used and dropped by the thread that traces the step.
    """

    def __init__(
        self, optimizer: Any, variables: Sequence[keras.Variable]
    ) -> None:
        """Prepares a step.

        Args:
            optimizer: A built Keras optimizer of our strategy.
            variables: Those that have a gradient.
        """
        self._optimizer = optimizer
        self._variables = list(variables)
        self._strategy = optimizer._distribution_strategy
        # By clock, before and after the step.
        self._moments: dict[StepClock, tuple[Moment, Moment]] = {}

    def run(self, gradients: Sequence[Any]) -> None:
        """Does everything that follows the gradients, and counts the step.

        Args:
            gradients: A tensor or `tf.IndexedSlices` for every variable.
        """
        optimizer = self._optimizer
        iterations = optimizer._iterations
        gradients = [self._prepared(g) for g in gradients]
        if self._strategy.sparse_update == "auto":
            automatic_updates.of(optimizer).consider(
                optimizer,
                [
                    variable
                    for variable, gradient in zip(
                        self._variables, gradients, strict=True
                    )
                    if isinstance(gradient, tf.IndexedSlices)
                    and not self._is_updated_whole(variable)
                ],
            )
        number = None
        if (
            optimizer.gradient_accumulation_steps
            or optimizer.ema_overwrite_frequency
        ) and isinstance(iterations.value, MirroredScalar):
            # What happens every n steps must not happen twice, or never.
            number = iterations.value.take()
        with (
            self._reading_scalars_once(number),
            self._counting_moments(gradients),
        ):
            if optimizer.use_ema:
                self._begin_averages_of_rows(gradients)
            if optimizer.gradient_accumulation_steps:
                self._accumulate(gradients)
            else:
                self._update(gradients)
            if optimizer.use_ema and optimizer.ema_overwrite_frequency:
                self._overwrite_with_averages()
        if number is None:
            iterations.assign_add(1)

    def _prepared(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            gradient = distinct(gradient)
        scale = self._optimizer.loss_scale_factor
        if scale is None:
            return gradient
        return gradient_clipping.on_values(gradient, lambda v: v / scale)

    @contextlib.contextmanager
    def _reading_scalars_once(self, number: tf.Tensor | None) -> Iterator[None]:
        """Shows every update the same step number and learning rate."""
        optimizer = self._optimizer
        seen: dict[str, View] = {}
        iterations = getattr(optimizer._iterations, "value", None)
        if isinstance(iterations, MirroredScalar):
            seen[iterations._unique_id] = views.ValueView(
                iterations.name,
                iterations.read_exactly() if number is None else number,
            )
        rate = getattr(optimizer._learning_rate, "value", None)
        if isinstance(rate, MirroredScalar):
            seen[rate._unique_id] = views.ValueView(
                rate.name, rate.read_value()
            )
        with StepTrace.current().viewing(seen):
            yield

    @contextlib.contextmanager
    def _counting_moments(self, gradients: Sequence[Any]) -> Iterator[None]:
        """Counts the step for the rows that catch up with it."""
        tables = caught_up_tables.of(self._optimizer)
        if tables is None:
            yield
            return
        with tables.step(gradients) as self._moments:
            yield

    # Accumulation.

    def _accumulate(self, gradients: Sequence[Any]) -> None:
        optimizer = self._optimizer
        steps = optimizer.gradient_accumulation_steps
        accumulators = [
            optimizer._accumulated_gradients[optimizer._get_variable_index(v)]
            for v in self._variables
        ]

        def add() -> None:
            for accumulator, gradient in zip(
                accumulators, gradients, strict=True
            ):
                gradient_accumulators.add(accumulator.value, gradient)

        def apply() -> None:
            sums = [
                gradient_accumulators.take(accumulator.value, gradient)
                for accumulator, gradient in zip(
                    accumulators, gradients, strict=True
                )
            ]
            means = [
                gradient_clipping.on_values(s, lambda v: v / steps)
                for s in sums
            ]
            self._update(means)

        is_last = (tf.convert_to_tensor(optimizer._iterations) + 1) % steps == 0
        tf.cond(is_last, _without_result(apply), _without_result(add))
        if optimizer.use_ema:
            self._average_whole(gradients)

    # Updates.

    def _update(self, gradients: Sequence[Any]) -> None:
        optimizer = self._optimizer
        if compat.clips_by_itself(optimizer):
            gradients = optimizer._clip_gradients(gradients)
        else:
            gradients = gradient_clipping.clip(optimizer, gradients)
        if compat.decays_weights_by_itself(optimizer):
            optimizer._apply_weight_decay(self._variables)
        compat.run_update(
            optimizer, self._update_variables, gradients, self._variables
        )

    def _update_variables(
        self, gradients_and_values: Sequence[Any], learning_rate: Any
    ) -> None:
        """Runs `update_step` of all variables, each on its ps."""
        variable_of = {id(compat.value_of(v)): v for v in self._variables}
        parts = []
        for gradient, value in gradients_and_values:
            variable = variable_of[id(value)]
            exact = self._is_exact(variable)
            moments = self._moments_of(variable, gradient, exact=exact)
            parts += [
                self._catching_up(dataclasses.replace(part, owner=variable))
                for part in parts_of(
                    value,
                    (
                        gradient_residual.corrected(value, gradient),
                        learning_rate,
                        *(moment.numbers for moment in moments),
                    ),
                    exact=exact,
                )
            ]
        with self._reading_momentum_schedule_once():
            updates.run_parts(parts, self._update_part)

    def _moments_of(
        self, variable: keras.Variable, gradient: Any, *, exact: bool
    ) -> tuple[Moment, ...]:
        """The moments before and after the step, if rows have to catch up."""
        tables = caught_up_tables.of(self._optimizer)
        clock = tables and tables.clock_of(compat.value_of(variable))
        if clock is not None:
            return self._moments[clock]
        if (
            self._strategy.sparse_update == "caught_up"
            and isinstance(gradient, tf.IndexedSlices)
            and not exact
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
        return ()

    def _catching_up(self, part: UpdatePart) -> UpdatePart:
        """The same part, which sees rows of now."""
        _, _, *numbers = part.args
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

    @contextlib.contextmanager
    def _reading_momentum_schedule_once(self) -> Iterator[None]:
        """Shows every update the product that Nadam has computed by now.

        It is on one ps: the others would wait for it under their locks.
        """
        scalar = compat.momentum_schedule_of(self._optimizer)
        if scalar is None:
            yield
            return
        value = compat.value_of(scalar)
        seen = views.ValueView(value.name, value.read_value())
        with StepTrace.current().viewing({value._unique_id: seen}):
            yield

    def _is_exact(self, variable: keras.Variable) -> bool:
        """Whether a gradient of some rows updates all rows."""
        form = self._strategy.sparse_update
        return (
            form == "exact"
            or (
                form == "auto"
                and automatic_updates.of(self._optimizer).is_exact(variable)
            )
            or self._is_updated_whole(variable)
        )

    def _is_updated_whole(self, variable: keras.Variable) -> bool:
        """Whether rows of it cannot be updated alone."""
        constraint = getattr(variable, "constraint", None)
        if constraint is not None and (
            self._strategy.sparse_update == "caught_up"
        ):
            # It applies after every step, also to rows without a gradient.
            return True
        return whole_matrix.needs_whole_matrix(
            self._optimizer, variable
        ) or not table_constraints.is_row_wise(constraint, len(variable.shape))

    def _update_part(self, part: UpdatePart) -> None:
        optimizer = self._optimizer
        gradient, learning_rate, *_ = part.args
        self._decay(part)
        optimizer.update_step(gradient, part.variable, learning_rate)
        if optimizer.use_ema and (
            part.is_rows or not optimizer.gradient_accumulation_steps
        ):
            self._average(part)
        constraint = getattr(part.owner, "constraint", None)
        if constraint is not None:
            part.variable.assign(constraint(part.variable))

    def _decay(self, part: UpdatePart) -> None:
        """Weight decay, as `TFOptimizer._apply_weight_decay`."""
        optimizer = self._optimizer
        factor = compat.weight_decay_of(optimizer, part.owner)
        if factor is None or not optimizer._use_weight_decay(part.variable):
            return
        dtype = part.variable.dtype
        rate = tf.cast(optimizer.learning_rate, dtype)
        part.variable.assign_sub(part.variable * tf.cast(factor, dtype) * rate)

    # Averages of the weights.

    def _average(self, part: UpdatePart) -> None:
        """As `BaseOptimizer._update_model_variables_moving_average`."""
        optimizer = self._optimizer
        average = self._average_of(part.owner)
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

    def _average_whole(self, gradients: Sequence[Any]) -> None:
        """Averages of variables that are not updated row by row.

        Keras brings averages up to date with every batch, also where the
        variables wait for more gradients; rows wait with their variable.
        """
        whole = [
            variable
            for variable, gradient in zip(
                self._variables, gradients, strict=True
            )
            if not self._is_updated_by_rows(variable, gradient)
        ]
        updates.run_parts(_whole_parts(whole), self._average)

    def _begin_averages_of_rows(self, gradients: Sequence[Any]) -> None:
        """Lets averages begin as their variables are at the first step.

        Keras's do, as a whole; later steps see the rows of their batch alone.
        """
        by_rows = [
            variable
            for variable, gradient in zip(
                self._variables, gradients, strict=True
            )
            if self._is_updated_by_rows(variable, gradient)
        ]
        if not by_rows:
            return

        def assign(part: UpdatePart) -> None:
            average = self._average_of(part.owner)
            if average is not None:
                average.value.assign(tf.convert_to_tensor(part.variable))

        def begin() -> None:
            updates.run_parts(_whole_parts(by_rows), assign)

        is_first = tf.equal(tf.convert_to_tensor(self._optimizer.iterations), 0)
        tf.cond(is_first, _without_result(begin), _without_result(_nothing))

    def _is_updated_by_rows(
        self, variable: keras.Variable, gradient: Any
    ) -> bool:
        return isinstance(gradient, tf.IndexedSlices) and not self._is_exact(
            variable
        )

    def _average_of(self, variable: keras.Variable) -> Any:
        averages = self._optimizer._model_variables_moving_average
        return averages[self._optimizer._get_variable_index(variable)]

    def _overwrite_with_averages(self) -> None:
        optimizer = self._optimizer
        is_due = (
            tf.convert_to_tensor(optimizer.iterations) + 1
        ) % optimizer.ema_overwrite_frequency == 0

        def overwrite() -> None:
            optimizer._overwrite_model_variables_with_average_value(
                optimizer._trainable_variables
            )

        tf.cond(is_due, _without_result(overwrite), _without_result(_nothing))


def _whole_parts(variables: Sequence[Any]) -> list[UpdatePart]:
    return [
        dataclasses.replace(part, owner=variable)
        for variable in variables
        for part in parts_of(compat.value_of(variable), (), exact=True)
    ]


def _without_result(function: Callable[[], None]) -> Callable[[], tf.Tensor]:
    """A branch of a condition: it has to return something."""

    def branch() -> tf.Tensor:
        function()
        return tf.constant(0)

    return branch


def _nothing() -> None:
    pass
