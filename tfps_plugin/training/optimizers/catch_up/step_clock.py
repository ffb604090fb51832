"""Clock of an optimizer's steps, for rows that catch up."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.training.optimizers.catch_up import learning_rates
from tfps_plugin.training.optimizers.catch_up import moment
from tfps_plugin.training.optimizers.catch_up.moment import Moment
from tfps_plugin.training.optimizers.catch_up.zero_gradients import (
    ZeroGradients,
)
from tfps_plugin.training.optimizers.step_count import one_after
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.lookup import graph_checks


class StepClock(tf.Module):
    """Counts the steps of an optimizer, for rows that catch up with them.

    It counts from its construction, not from the first step of the optimizer:
    loading the state of an optimizer leaves the rows as they are.

    Threading: like a `MirroredScalar`; workers read their own copies.
    """

    def __init__(
        self, optimizer: Any, zero_gradients: ZeroGradients, decay: float | None
    ) -> None:
        """Creates the scalars; call it in the strategy's scope.

        Args:
            optimizer: A Keras optimizer.
            zero_gradients: The closed forms of its steps.
            decay: Weight decay of the tables that use this clock; None if
                they have none.

        Raises:
            UnsupportedError: If the optimizer has no closed form with its
                learning rate.
        """
        super().__init__(name="step_clock")
        # Does not store the optimizer, which the clock is a part of.
        self._rate = lambda: optimizer.learning_rate
        self._iterations = lambda: optimizer.iterations
        self.zero_gradients = zero_gradients
        self.decay = decay
        self._rates = learning_rates.ahead(optimizer)
        self._is_scheduled = learning_rates.is_scheduled(optimizer)
        self._largest_rate = 0.0
        if decay:
            self._largest_rate = learning_rates.largest(optimizer)
            zero_gradients.require_closed_form(
                self._largest_rate, decay, is_scheduled=self._is_scheduled
            )
        self.names = zero_gradients.marks(decay)
        self._scalars = {name: _scalar(name) for name in self.names}
        for name, scalar in self._scalars.items():
            if name != moment.STEP and isinstance(scalar, MirroredScalar):
                # They belong to the step, whose count continues if its ps
                # is lost.
                scalar.outlives_ps = True

    def moment(self, numbers: tf.Tensor) -> Moment:
        """Creates a moment from its numbers."""
        return Moment(numbers, self.names)

    def now(self, *, exactly: bool = False) -> Moment:
        """Returns the state after the newest step.

        Args:
            exactly: Whether to ask the ps, in the same message as for
                weights; otherwise uses the caller's copies.
        """
        # The present device is a ps, and a copy of the caller would be read by
        # way of it, in a separate message.
        with compat.clear_device(), tf.device(graph_checks.CPU):
            values = [
                scalar.read_exactly()
                if exactly and isinstance(scalar, MirroredScalar)
                else scalar.read_value()
                for scalar in self._scalars.values()
            ]
            values += [
                tf.cast(tf.convert_to_tensor(number), tf.float64)
                for number in (self._rate(), self._iterations())
            ]
            return self.moment(tf.stack(values))

    def after(self, now: Moment) -> Moment:
        """Returns the state after the next step.

        A learning rate without a closed form is an error when the step runs:
        the program may have assigned it in the meantime.
        """
        with compat.clear_device(), tf.device(graph_checks.CPU):
            # For the current step, which is not counted yet.
            rate = self.zero_gradients.within_limit(
                now.rate, now.rate, self.decay, is_scheduled=self._is_scheduled
            )
            number = now.iterations + 1
            marks = {moment.STEP: now.mark(moment.STEP) + 1}
            if moment.ELAPSED in self.names:
                elapsed = rate
                if self.decay:
                    elapsed = -tf.math.log1p(-self.decay * rate) / self.decay
                marks[moment.ELAPSED] = now.mark(moment.ELAPSED) + elapsed
            if moment.POTENTIAL in self.names:
                marks[moment.POTENTIAL] = self.zero_gradients.potential(
                    number, rate, self.decay, self._rates, self._largest_rate
                )
            return self.moment(
                tf.stack([*(marks[name] for name in self.names), rate, number])
            )

    def advance(
        self, now: Moment, after: Moment, arrivals: Sequence[tf.Tensor] = ()
    ) -> None:
        """Counts a step.

        Args:
            now: The state that the step began with.
            after: The state that it ends with.
            arrivals: Tensors that the step sends to the ps; the numbers
                travel together with them, and not before.
        """
        with compat.clear_device(), tf.device(graph_checks.CPU):
            changes = {
                name: after.mark(name)
                if name == moment.POTENTIAL
                else after.mark(name) - now.mark(name)
                for name in self.names
                if name != moment.STEP
            }
        # Other workers count steps at the same time.
        self._scalars[moment.STEP].assign_add(one_after(arrivals, tf.float64))
        with tf.control_dependencies(list(arrivals)):
            for name, change in changes.items():
                scalar = self._scalars[name]
                if name == moment.POTENTIAL:
                    scalar.assign(change)
                else:
                    scalar.assign_add(change)
                if isinstance(scalar, MirroredScalar):
                    scalar.note_step(after.mark(moment.STEP))


def _scalar(name: str) -> Any:
    return tf.Variable(
        tf.zeros([], tf.float64),
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
