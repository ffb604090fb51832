"""The steps that passed since rows were updated, and their sums.

Shape legend: U rows, M marks of a row. Tensors of one number for each row have
the shape `(U, 1, ...)`, of the rows' rank: what depends on the row alone is
computed once for it.
"""

import dataclasses
import math

import tensorflow as tf

from tfps_plugin.training.optimizers.catch_up import moment
from tfps_plugin.training.optimizers.catch_up.moment import Moment


@dataclasses.dataclass(frozen=True)
class Gap:
    """The steps that passed since each row was updated, as tensors.

    A row that no step has passed keeps its values bit for bit: all factors are
    1 there, and all sums 0.

    Attributes:
        steps: How many; 0 for none.
        last_step: Number of the optimizer's newest step, a scalar.
        rate: Learning rate of the newest step, a scalar.
        elapsed: Sum of the learning rates; with weight decay
            `-log(1 - wd * lr) / wd` in the place of each. None: not needed.
        potential: Potential after the newest step, a scalar; None likewise.
        risen: By how much it is above that after the step that updated the
            row.
        decay: The weight decay; None: the table has none.
    """

    steps: tf.Tensor
    last_step: tf.Tensor
    rate: tf.Tensor
    elapsed: tf.Tensor | None = None
    potential: tf.Tensor | None = None
    risen: tf.Tensor | None = None
    decay: float | None = None
    # Powers of factors that were asked for.
    _powers: dict[float, tf.Tensor] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def shrunk(self, values: tf.Tensor) -> tf.Tensor:
        """Returns what weight decay alone has left of values."""
        if not self.decay or self.elapsed is None:
            return values
        return values * tf.exp(-self.decay * self.elapsed)

    def faded(self, factor: float) -> tf.Tensor:
        """Power of a factor: what the steps leave of a moving average."""
        if not factor:
            return tf.cast(tf.equal(self.steps, 0), self.steps.dtype)
        return tf.exp(self.steps * math.log(factor))

    def faded_sum(self, factor: float) -> tf.Tensor:
        """Sum of the powers from 1 on, each shrunk by the steps after it."""
        relative = self._relative(factor)
        return self.shrunk(
            (1 - self._left(factor)) * (relative / (1 - relative))
        )

    def moved(self, ratio: float) -> tf.Tensor:
        """Sum of a series that has a potential, shrunk likewise."""
        gone = 1 - self._left(ratio)
        return self.shrunk(gone * self.potential - self.risen)

    def mean_step(self, ratio: float) -> tf.Tensor:
        """Mean number of a step, each weighted by a power of `ratio`."""
        left = self._left(ratio)
        # For no step, any number is as good.
        behind = tf.math.divide_no_nan(self.steps * left, 1 - left)
        return 1 / (1 - self._relative(ratio)) - behind

    def _relative(self, factor: float) -> float | tf.Tensor:
        return relative_to_decay(factor, self.rate, self.decay)

    def _left(self, factor: float) -> tf.Tensor:
        """Power of a factor, in units of what weight decay leaves."""
        if factor not in self._powers:
            relative = self._relative(factor)
            if isinstance(relative, float):
                power = self.faded(relative)
            else:
                power = tf.exp(self.steps * tf.math.log(relative))
            self._powers[factor] = power
        return self._powers[factor]


def between(
    marks_UM: tf.Tensor,
    now: Moment,
    decay: float | None,
    dtype: tf.DType,
    rank: int,
) -> Gap:
    """Returns the steps between the last updates of rows and the newest step.

    Args:
        marks_UM: What the rows remember, float64.
        now: The newest step that the caller knows of. Where workers train at
            the same time, a row may have been updated after it: then no step
            has passed.
        decay: Weight decay of the table; None: it has none.
        dtype: Of what is computed: differences are small where the marks
            themselves are not.
        rank: Of the rows.
    """
    passed_UM = tf.cast(now.marks - marks_UM, dtype)
    columns = {
        name: tf.reshape(column, [-1] + [1] * (rank - 1))
        for name, column in zip(
            now.names,
            tf.unstack(passed_UM, len(now.names), axis=1),
            strict=True,
        )
    }
    steps = tf.maximum(columns[moment.STEP], 0)
    # What changes in no step is nothing, also where another worker's step was
    # as far as this one.
    is_behind = tf.minimum(steps, 1)
    elapsed = potential = risen = None
    if moment.ELAPSED in columns:
        elapsed = is_behind * tf.maximum(columns[moment.ELAPSED], 0)
    if moment.POTENTIAL in columns:
        risen = is_behind * columns[moment.POTENTIAL]
        potential = tf.cast(now.mark(moment.POTENTIAL), dtype)
    return Gap(
        steps=steps,
        last_step=tf.cast(now.iterations, dtype),
        rate=tf.cast(now.rate, dtype),
        elapsed=elapsed,
        potential=potential,
        risen=risen,
        decay=decay,
    )


def relative_to_decay(
    factor: float, rate: tf.Tensor, decay: float | None
) -> float | tf.Tensor:
    """A factor between steps, in units of what weight decay leaves."""
    if not decay or not factor:
        return float(factor)
    return tf.constant(factor, rate.dtype) / (1 - decay * rate)
