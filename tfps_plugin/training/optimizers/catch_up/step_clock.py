"""Scalars of an optimizer that rows catch up with."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.training.optimizers.catch_up import learning_rates
from tfps_plugin.training.optimizers.catch_up.zero_gradients import (
    ZeroGradients,
)
from tfps_plugin.variables import graph_checks
from tfps_plugin.variables.mirrored_scalar import MirroredScalar

# What a row remembers of the step that last updated it: the step, the elapsed
# learning rate and the potential; see `zero_gradients`.
NUM_MARKS = 3


@dataclasses.dataclass(frozen=True)
class Moment:
    """The state of an optimizer's clock after some step.

    Attributes:
        numbers: The marks of that step, followed by its learning rate and by
            the optimizer's own number of it; shape `(5,)`, float64. They are
            one tensor, as they cross from worker to ps together.
    """

    numbers: tf.Tensor

    @property
    def marks(self) -> tf.Tensor:
        """What rows that are updated in that step remember, shape `(3,)`."""
        return self.numbers[:NUM_MARKS]

    @property
    def step(self) -> tf.Tensor:
        """Number of steps that the clock has counted."""
        return self.numbers[0]

    @property
    def elapsed(self) -> tf.Tensor:
        """Elapsed learning rate; see `zero_gradients.Gap`."""
        return self.numbers[1]

    @property
    def potential(self) -> tf.Tensor:
        """Potential of the step."""
        return self.numbers[2]

    @property
    def rate(self) -> tf.Tensor:
        """Learning rate of the step."""
        return self.numbers[3]

    @property
    def iterations(self) -> tf.Tensor:
        """Steps that the optimizer has done, those before the clock too."""
        return self.numbers[4]


class StepClock(tf.Module):
    """Counts the steps of an optimizer, for rows that catch up with them.

    It counts from its construction, not from the first step of the optimizer:
    loading the state of an optimizer leaves the rows as they are.

    Threading: as a `MirroredScalar`; workers read a copy of their own.
    """

    def __init__(
        self, optimizer: Any, zero_gradients: ZeroGradients, decay: float | None
    ) -> None:
        """Creates the scalars; to be called in the strategy's scope.

        Args:
            optimizer: A Keras optimizer.
            zero_gradients: Its steps.
            decay: Weight decay of the tables that go by this clock; None:
                they have none.
        """
        super().__init__(name="step_clock")
        # Not the optimizer itself, of which the clock is a part.
        self._rate = lambda: optimizer.learning_rate
        self._iterations = lambda: optimizer.iterations
        self.zero_gradients = zero_gradients
        self.decay = decay
        self._rates = learning_rates.ahead(optimizer)
        self._step = _scalar("step")
        self._elapsed = _scalar("elapsed")
        self._potential = _scalar("potential")

    def now(self, *, exactly: bool = False) -> Moment:
        """Returns the state after the newest step.

        Args:
            exactly: Whether the ps is asked, in the message in which it is
                asked for weights; otherwise the caller's copies count.
        """
        scalars = [self._step, self._elapsed, self._potential]
        values = [
            scalar.read_exactly()
            if exactly and isinstance(scalar, MirroredScalar)
            else scalar.read_value()
            for scalar in scalars
        ]
        with compat.clear_device(), tf.device(graph_checks.CPU):
            values += [
                tf.cast(tf.convert_to_tensor(number), tf.float64)
                for number in (self._rate(), self._iterations())
            ]
            return Moment(tf.stack(values))

    def after(self, now: Moment) -> Moment:
        """Returns the state after the step that follows."""
        with compat.clear_device(), tf.device(graph_checks.CPU):
            # Of the step that is being made: it is not counted yet.
            rate = now.rate
            elapsed = rate
            if self.decay:
                elapsed = -tf.math.log1p(-self.decay * rate) / self.decay
            number = now.iterations + 1
            potential = self.zero_gradients.potential(
                number, rate, self.decay, self._rates
            )
            return Moment(
                tf.stack(
                    [
                        now.step + 1,
                        now.elapsed + elapsed,
                        potential,
                        rate,
                        number,
                    ]
                )
            )

    def advance(self, now: Moment, after: Moment) -> None:
        """Counts a step.

        Args:
            now: The state that the step began with.
            after: The state that it ends with.
        """
        with compat.clear_device(), tf.device(graph_checks.CPU):
            elapsed = after.elapsed - now.elapsed
            potential = tf.identity(after.potential)
        # Added, not assigned: other workers count steps at the same time.
        self._step.assign_add(tf.ones([], tf.float64))
        self._elapsed.assign_add(elapsed)
        self._potential.assign(potential)


def _scalar(name: str) -> Any:
    return tf.Variable(
        tf.zeros([], tf.float64),
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
