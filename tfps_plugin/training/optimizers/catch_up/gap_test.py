"""Tests of gaps between the marks of rows and the newest step."""

import numpy as np
import tensorflow as tf

from tfps_plugin.training.optimizers.catch_up import gap as gaps
from tfps_plugin.training.optimizers.catch_up import moment
from tfps_plugin.training.optimizers.catch_up.gap import Gap
from tfps_plugin.training.optimizers.catch_up.moment import Moment

_NAMES = (moment.STEP, moment.ELAPSED, moment.POTENTIAL)


def _between(
    marks: list[list[float]], now: list[float], decay: float | None = None
) -> Gap:
    numbers = tf.constant([*now, 0.01, now[0]], tf.float64)
    return gaps.between(
        tf.constant(marks, tf.float64),
        Moment(numbers, _NAMES),
        decay,
        tf.float32,
        rank=2,
    )


def test_late_steps_are_counted_one_by_one() -> None:
    """Single precision cannot distinguish such numbers, nor sums."""
    late = float(2**30)
    gap = _between(
        [[late, late, 1.0], [late - 1, late - 0.01, 1.0], [1.0, 0.0, 0.0]],
        [late + 1, late + 0.01, 1.0],
    )
    np.testing.assert_array_equal(gap.steps[:, 0], [1.0, 2.0, late])
    elapsed = np.asarray(gap.elapsed)[:2, 0]
    np.testing.assert_allclose(elapsed, np.array([0.01, 0.02]), rtol=1e-4)


def test_rows_that_no_step_has_passed_keep_their_values_bit_for_bit() -> None:
    """Another worker may be ahead of what this one knows."""
    gap = _between(
        [[7.0, 0.9, 3.0], [9.0, 1.2, 3.5]], [7.0, 1.0, 2.5], decay=0.3
    )
    np.testing.assert_array_equal(gap.steps[:, 0], [0.0, 0.0])
    values = tf.random.normal([2, 3])
    np.testing.assert_array_equal(gap.shrunk(values), values)
    for factor in (0.0, 0.5, 0.999):
        np.testing.assert_array_equal(gap.faded(factor), [[1.0], [1.0]])
        np.testing.assert_array_equal(gap.faded_sum(factor), [[0.0], [0.0]])
        np.testing.assert_array_equal(gap.moved(factor), [[0.0], [0.0]])
        assert np.isfinite(gap.mean_step(factor)).all()


def test_sums_are_those_of_single_steps() -> None:
    decay, factor, rate = 0.3, 0.9, 0.01
    shrink = 1 - decay * rate
    elapsed = -np.log1p(-decay * rate) / decay
    gap = _between([[2.0, 0.0, 0.0]], [7.0, 5 * elapsed, 0.0], decay)
    np.testing.assert_allclose(gap.shrunk(tf.ones([1, 1])), [[shrink**5]], 1e-6)
    np.testing.assert_allclose(gap.faded(factor), [[factor**5]], rtol=1e-6)
    steps = np.arange(1, 6)
    terms = factor**steps * shrink ** (5 - steps)
    np.testing.assert_allclose(
        gap.faded_sum(factor), [[terms.sum()]], rtol=1e-5
    )
    np.testing.assert_allclose(
        gap.mean_step(factor),
        [[(terms * steps).sum() / terms.sum()]],
        rtol=1e-5,
    )
