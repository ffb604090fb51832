"""The steps that passed since rows were updated, and their sums.

Shape legend: U rows, M marks of a row. Tensors with one number for each row
have the shape `(U, 1, ...)` and the rank of the rows: values that depend only
on the row are computed once.
"""

import dataclasses
import math

import tensorflow as tf

from tfps_plugin.training.optimizers.catch_up import moment
from tfps_plugin.training.optimizers.catch_up.moment import Moment


@dataclasses.dataclass(frozen=True)
class Gap:
    """The steps that passed since each row was updated, as tensors.

    A row whose gap has no steps keeps its values bit for bit: all factors are
    1, and all sums 0.

    Attributes:
        steps: Number of steps; 0 for none.
        last_step: Number of the optimizer's newest step, a scalar.
        rate: Learning rate of the newest step, a scalar. Sums do not use it:
            `elapsed` has the rates of the steps that passed.
        elapsed: Sum of the learning rates; with weight decay, each is replaced
            by `-log(1 - wd * lr) / wd`. None: not needed.
        potential: Potential after the newest step, a scalar. None: not needed.
        risen: Increase of the potential since the step that updated the row.
            None: not needed.
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
        """Applies the weight decay of the gap to values."""
        if not self.decay or self.elapsed is None:
            return values
        return values * tf.exp(-self.decay * self.elapsed)

    def faded(self, factor: float) -> tf.Tensor:
        """Returns `factor**steps`, the decay of a moving average."""
        if not factor:
            return tf.cast(tf.equal(self.steps, 0), self.steps.dtype)
        return tf.exp(self.steps * math.log(factor))

    def faded_sum(self, factor: float) -> tf.Tensor:
        """Returns the sum of powers, each shrunk by the steps after it.

        The powers begin at 1. The sum uses the mean weight decay of the
        steps, so it is exact while the learning rate is constant. Steps may
        shrink weights by more than `factor`; then the last powers are largest.
        """
        if not factor:
            return tf.zeros_like(self.steps)
        # Factors out the largest of m**k * d**(n - k): this leaves powers of
        # a factor below 1, which cannot overflow.
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
        """Returns the sum of a series with a potential, shrunk likewise."""
        if not ratio:
            gone = 1 - self.faded(ratio)
        else:
            gone = -tf.math.expm1(self._log_left(ratio))
        return self.shrunk(gone * self.potential - self.risen)

    def mean_step(self, ratio: float) -> tf.Tensor:
        """Returns the mean number of a step, weighted by powers of `ratio`.

        The powers are those of `faded_sum`. Without steps, any number will
        do.
        """
        if not ratio:
            return tf.ones_like(self.steps)
        log_left = self._log_left(ratio)
        log_ratio = tf.math.divide_no_nan(log_left, self.steps)
        left, small = tf.abs(log_left), tf.abs(log_ratio)
        # If the powers hardly differ, both terms are large and almost equal:
        # then the mean is close to the middle.
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
        """Minus the logarithm of the factor of weight decay."""
        if not self.decay or self.elapsed is None:
            return None
        return self.decay * self.elapsed

    def _log_left(self, factor: float) -> tf.Tensor:
        """Returns the log of a power divided by the factor of weight decay."""
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
        marks_UM: The marks of the rows, float64.
        now: The newest step that the caller knows of. With several workers, a
            row may have been updated after it; its gap is then empty.
        decay: Weight decay of the table; None: it has none.
        dtype: Dtype of the result: it may be narrower than that of the marks,
            because differences are small.
        rank: Rank of the rows.
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
    # Without steps nothing changes, even if the other marks differ because
    # another worker did the same step.
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
