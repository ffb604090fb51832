"""One `optimizer.apply` on variables of parameter servers.

Keras's own `apply` runs on the worker and reads variables there, even whole
tables for averages, constraints and accumulators. `OptimizerStep` does the same
work in the same order on the parameter servers. The optimizer's own
`update_step` changes the variables.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.strategy import updates
from tfps_plugin.strategy.update_parts import parts_of
from tfps_plugin.training.optimizers import sparse_gradients
from tfps_plugin.training.optimizers import step_count
from tfps_plugin.training.optimizers import whole_updates
from tfps_plugin.training.optimizers.after_updates import Constraints
from tfps_plugin.training.optimizers.after_updates import MovingAverages
from tfps_plugin.training.optimizers.automatic import automatic_updates
from tfps_plugin.training.optimizers.catch_up.caught_up_step import CaughtUpStep
from tfps_plugin.training.optimizers.step_staleness import StepStaleness
from tfps_plugin.variables.compression import error_feedback
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.lookup.distinct_rows import distinct
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.step_trace import View
from tfps_plugin.variables.updates.update_part import UpdatePart
from tfps_plugin.variables.updates.views import ValueView


class OptimizerStep:
    """Applies the gradients of one step.

    Threading: only the thread that traces or runs the step uses it.
    """

    def __init__(
        self,
        optimizer: Any,
        variables: Sequence[keras.Variable],
        trace: StepTrace,
    ) -> None:
        """Prepares a step.

        Args:
            optimizer: A built Keras optimizer of our strategy.
            variables: The variables that have a gradient.
            trace: The knowledge of the step, from `StepTrace.current`.
        """
        self._optimizer = optimizer
        self._variables = list(variables)
        self._trace = trace
        self._catch_up = CaughtUpStep(optimizer)
        self._staleness = StepStaleness(optimizer, trace)

    def run(self, gradients: Sequence[Any]) -> None:
        """Updates all variables, and counts the step.

        Args:
            gradients: A tensor or `tf.IndexedSlices` for every variable.
        """
        optimizer = self._optimizer
        gradients = [self._prepared(g) for g in gradients]
        whole_updates.require_rows(self._pairs(gradients))
        self._choose_form(gradients)
        number = self._number_if_it_decides()
        with (
            self._reading_scalars_once(number),
            self._catch_up.counting(gradients),
        ):
            by_rows, whole = self._by_form(gradients)
            constraints = Constraints(optimizer, by_rows, whole)
            averages = None
            if optimizer.use_ema:
                averages = MovingAverages(optimizer, by_rows, whole)
                averages.begin()
            if optimizer.gradient_accumulation_steps:
                self._accumulate(gradients, averages, constraints)
            else:
                self._update(gradients, averages, constraints)
            if averages is not None:
                averages.overwrite_if_due()
            constraints.finish()
        if number is None:
            step_count.count(optimizer, gradients, self._trace)

    def _prepared(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            gradient = distinct(gradient)
        scale = self._optimizer.loss_scale_factor
        if scale is None:
            return gradient
        return sparse_gradients.on_values(gradient, lambda v: v / scale)

    def _choose_form(self, gradients: Sequence[Any]) -> None:
        """Lets `sparse_update="auto"` decide how to update new tables."""
        optimizer = self._optimizer
        if compat.strategy_of(optimizer).sparse_update != "auto":
            return
        automatic_updates.of(optimizer).consider(
            optimizer,
            [
                variable
                for variable, gradient in self._pairs(gradients)
                if isinstance(gradient, tf.IndexedSlices)
                and not whole_updates.has_to_be_whole(optimizer, variable)
            ],
        )

    def _number_if_it_decides(self) -> tf.Tensor | None:
        """Counts the step if the optimizer acts on every n-th step.

        No other step gets the same number, so the optimizer acts exactly once.

        Returns:
            The number of the step, or None if the step is not counted yet.
        """
        optimizer = self._optimizer
        counter = compat.step_counter_of(optimizer).value
        decides = (
            optimizer.gradient_accumulation_steps
            or optimizer.ema_overwrite_frequency
        )
        if (
            decides
            and isinstance(counter, MirroredScalar)
            # Nobody else counts synchronous steps.
            and self._trace.only_on is None
        ):
            with tf.control_dependencies(self._trace.counts_after):
                return counter.take()
        return None

    @contextlib.contextmanager
    def _reading_scalars_once(self, number: tf.Tensor | None) -> Iterator[None]:
        """Shows every update the same step number and learning rate."""
        optimizer = self._optimizer
        seen: dict[str, View] = {}
        counter = compat.step_counter_of(optimizer).value
        if isinstance(counter, MirroredScalar):
            seen[counter._unique_id] = ValueView(
                counter.name,
                counter.read_exactly() if number is None else number,
            )
        rate = getattr(compat.learning_rate_behind(optimizer), "value", None)
        if isinstance(rate, MirroredScalar):
            seen[rate._unique_id] = ValueView(rate.name, rate.read_value())
        with self._trace.viewing(seen):
            yield

    def _by_form(
        self, gradients: Sequence[Any]
    ) -> tuple[list[keras.Variable], list[keras.Variable]]:
        """Separates variables that are updated by rows from all others."""
        by_rows: list[keras.Variable] = []
        whole: list[keras.Variable] = []
        for variable, gradient in self._pairs(gradients):
            is_rows = isinstance(
                gradient, tf.IndexedSlices
            ) and not whole_updates.is_whole(self._optimizer, variable)
            (by_rows if is_rows else whole).append(variable)
        return by_rows, whole

    def _accumulate(
        self,
        gradients: Sequence[Any],
        averages: MovingAverages | None,
        constraints: Constraints,
    ) -> None:
        """Updates with the mean of every few gradients."""
        optimizer = self._optimizer
        steps = optimizer.gradient_accumulation_steps
        accumulators = [
            compat.accumulator_of(optimizer, variable).value
            for variable in self._variables
        ]

        def update(sums: Sequence[Any]) -> None:
            means = [
                sparse_gradients.on_values(s, lambda v: v / steps) for s in sums
            ]
            self._update(means, averages, constraints)

        counter = compat.step_counter_of(optimizer)
        is_last = (tf.convert_to_tensor(counter) + 1) % steps == 0
        sparse_gradients.add_or_take(accumulators, gradients, is_last, update)
        if averages is not None:
            averages.update_whole()

    def _update(
        self,
        gradients: Sequence[Any],
        averages: MovingAverages | None,
        constraints: Constraints,
    ) -> None:
        """Clips gradients, and runs the updates of all variables."""
        optimizer = self._optimizer
        if compat.clips_by_itself(optimizer):
            self._require_all_gradients()
            gradients = compat.clip_by_itself(optimizer, gradients)
        else:
            gradients = sparse_gradients.clip(
                optimizer, gradients, self._variables
            )
        if compat.decays_weights_by_itself(optimizer):
            compat.decay_by_itself(optimizer, self._variables)
        variable_of = {id(compat.value_of(v)): v for v in self._variables}

        def update(pairs: Sequence[Any], learning_rate: Any) -> None:
            learning_rate = self._staleness.sent(learning_rate)
            parts = [
                part
                for gradient, value in pairs
                for part in self._parts(
                    variable_of[id(value)], gradient, learning_rate
                )
            ]
            self._staleness.read(parts)
            with self._reading_momentum_schedule_once():
                updates.run_parts(
                    parts,
                    lambda part: self._update_part(part, averages, constraints),
                    self._staleness.count,
                )

        compat.run_update(optimizer, update, gradients, self._variables)

    def _require_all_gradients(self) -> None:
        """Refuses clipping that would see the gradients of one ps only.

        Raises:
            UnsupportedError: If this is the step of one ps of several.
        """
        optimizer = self._optimizer
        num_ps = len(compat.strategy_of(optimizer).ps_devices)
        if self._trace.only_on is None or num_ps == 1:
            return
        raise errors.UnsupportedError(
            "In a synchronous step, each parameter server clips the gradients "
            "of its own variables, so an optimizer cannot have a clipping of "
            "its own. Expected clipnorm, global_clipnorm, clipvalue or none. "
            f"Received: {type(optimizer).__name__}._clip_gradients() on "
            f"{num_ps} parameter servers. Do not override it, or train with "
            "one parameter server or consistency=tfps.Async()."
        )

    def _parts(
        self, variable: keras.Variable, gradient: Any, learning_rate: Any
    ) -> list[UpdatePart]:
        """Cuts the update of a variable into one part for each shard.

        The arguments of a part are a gradient, the learning rate, and the
        moments that rows catch up with.
        """
        value = compat.value_of(variable)
        is_whole = whole_updates.is_whole(self._optimizer, variable)
        numbers = self._catch_up.numbers(variable, gradient, is_whole=is_whole)
        if self._trace.only_on is None:
            # Otherwise it has traveled, and was corrected before.
            gradient = error_feedback.corrected(value, gradient)
        parts = parts_of(
            value, (gradient, learning_rate, *numbers), exact=is_whole
        )
        return [
            self._catch_up.catching_up(
                dataclasses.replace(part, owner=variable), part.args[2:]
            )
            for part in parts
        ]

    @contextlib.contextmanager
    def _reading_momentum_schedule_once(self) -> Iterator[None]:
        """Shows every update the product that Nadam has just computed.

        The product is on one ps. Without this, other ps would wait for it
        while they hold their locks.
        """
        scalar = compat.momentum_schedule_of(self._optimizer)
        if scalar is None:
            yield
            return
        value = compat.value_of(scalar)
        seen = ValueView(value.name, value.read_value())
        with self._trace.viewing({value._unique_id: seen}):
            yield

    def _update_part(
        self,
        part: UpdatePart,
        averages: MovingAverages | None,
        constraints: Constraints,
    ) -> None:
        optimizer = self._optimizer
        gradient, learning_rate, *_ = part.args
        self._decay(part)
        learning_rate = self._staleness.scaled(part, learning_rate)
        optimizer.update_step(gradient, part.variable, learning_rate)
        self._staleness.require_used(part, learning_rate)
        if averages is not None and (
            part.is_rows or not optimizer.gradient_accumulation_steps
        ):
            averages.update(part)
        constraints.apply_to(part)

    def _decay(self, part: UpdatePart) -> None:
        """Decays weights as `TFOptimizer._apply_weight_decay` does."""
        optimizer = self._optimizer
        factor = compat.weight_decay_of(optimizer, part.owner)
        if factor is None or not compat.uses_weight_decay(
            optimizer, part.variable
        ):
            return
        dtype = part.variable.dtype
        rate = self._staleness.scaled(
            part, tf.cast(optimizer.learning_rate, dtype)
        )
        part.variable.assign_sub(part.variable * tf.cast(factor, dtype) * rate)

    def _pairs(
        self, gradients: Sequence[Any]
    ) -> list[tuple[keras.Variable, Any]]:
        return list(zip(self._variables, gradients, strict=True))
