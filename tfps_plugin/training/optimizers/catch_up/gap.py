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
        rate: Learning rate of the newest step, a scalar. Sums do not look at
            it: `elapsed` has the rates of the steps that passed.
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
        """Sum of the powers from 1 on, each shrunk by the steps after it.

        Weight decay counts with its mean in these steps: the sum is exact
        while the learning rate is constant. Steps may shrink weights by more
        than `factor`: then the last powers are the large ones.
        """
        if not factor:
            return tf.zeros_like(self.steps)
        # Of m**k * d**(n - k), the largest is taken out: what is left are
        # powers of a factor below 1, which cannot overflow.
        log_left = self._log_left(factor)
        log_ratio = tf.math.divide_no_nan(log_left, self.steps)
        log_decayed = 0.0 if self._decayed is None else -self._decayed
        largest = tf.exp(
            tf.maximum(log_decayed, self.steps * math.log(factor))
            + tf.minimum(log_ratio, 0)
        )
        num_largest = tf.where(
            tf.equal(log_ratio, 0),
            self.steps,
            tf.math.divide_no_nan(
                tf.math.expm1(-tf.abs(log_left)),
                tf.math.expm1(-tf.abs(log_ratio)),
            ),
        )
        return largest * num_largest

    def moved(self, ratio: float) -> tf.Tensor:
        """Sum of a series that has a potential, shrunk likewise."""
        if not ratio:
            gone = 1 - self.faded(ratio)
        else:
            gone = -tf.math.expm1(self._log_left(ratio))
        return self.shrunk(gone * self.potential - self.risen)

    def mean_step(self, ratio: float) -> tf.Tensor:
        """Mean number of a step, each weighted by a power of `ratio`.

        The powers are those of `faded_sum`. For no step, any number is as
        good.
        """
        if not ratio:
            return tf.ones_like(self.steps)
        log_left = self._log_left(ratio)
        log_ratio = tf.math.divide_no_nan(log_left, self.steps)
        left, small = tf.abs(log_left), tf.abs(log_ratio)
        # Both terms are large, and almost the same, for powers that hardly
        # differ: then the mean is next to the middle.
        middle = (self.steps + 1) / 2 - self.steps * left / 12
        mean = tf.where(
            left < 1e-3,
            middle,
            tf.math.divide_no_nan(tf.ones_like(small), -tf.math.expm1(-small))
            - tf.math.divide_no_nan(self.steps, tf.math.expm1(left)),
        )
        return tf.where(log_left > 0, self.steps + 1 - mean, mean)

    @property
    def _decayed(self) -> tf.Tensor | None:
        """Minus the logarithm of what weight decay leaves."""
        if not self.decay or self.elapsed is None:
            return None
        return self.decay * self.elapsed

    def _log_left(self, factor: float) -> tf.Tensor:
        """Logarithm of a power, in units of what weight decay leaves."""
        log_power = self.steps * math.log(factor)
        if self._decayed is None:
            return log_power
        return log_power + self._decayed


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
