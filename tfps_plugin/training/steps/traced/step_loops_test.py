"""Tests that loops tell how long their steps wait for input."""

import time
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.training.steps.traced.step_loops import StepLoops

_NUM_STEPS = 8
_SECONDS = 0.03


class _NoSums:
    """Metric states of a model that has none."""

    def begin(self) -> None:
        """Begins nothing."""

    def pack(self) -> dict[str, list[tf.Tensor]]:
        return {}


def _busy(value: tf.Tensor) -> tf.Tensor:
    """Returns the value after some time, however busy the machine is."""
    until = tf.timestamp() + _SECONDS
    rounds = tf.while_loop(
        lambda _: tf.timestamp() < until, lambda n: [n + 1], [tf.constant(0)]
    )
    return value + 0.0 * tf.cast(rounds[0], tf.float32)


def _share_of_waits(
    dataset: tf.data.Dataset, step: Any, steps_of_a_round: int = 1
) -> float:
    # As weights do, it lets steps follow one another.
    weight = tf.Variable(0.0)

    def one_step(batch: tf.Tensor) -> tf.Tensor:
        result = step(batch + weight)
        weight.assign(0.0 * result)
        return result

    sums: Any = _NoSums()
    loops = StepLoops(tf.function(one_step), sums)
    iterator = iter(dataset)

    @tf.function
    def run() -> Any:
        number = tf.constant(_NUM_STEPS)
        if steps_of_a_round > 1:
            return loops.rounds_over_iterator(
                steps_of_a_round, iterator, number
            )
        return loops.steps_over_iterator(iterator, number)

    run()
    begun_at = time.monotonic()
    num_steps, waited = run().fetch_progress()
    assert num_steps == _NUM_STEPS
    return waited / (time.monotonic() - begun_at)


@pytest.mark.parametrize("steps_of_a_round", [1, 4])
def test_steps_wait_for_slow_input(steps_of_a_round: int) -> None:
    dataset = tf.data.Dataset.from_tensors(1.0).repeat().map(_busy)
    share = _share_of_waits(dataset, tf.identity, steps_of_a_round)
    assert 0.6 < share <= 1.0


@pytest.mark.parametrize("steps_of_a_round", [1, 4])
def test_slow_steps_do_not_wait(steps_of_a_round: int) -> None:
    dataset = tf.data.Dataset.from_tensors(1.0).repeat()
    share = _share_of_waits(dataset, _busy, steps_of_a_round)
    assert 0.0 <= share < 0.2


def test_input_that_keeps_pace_is_not_waited_for() -> None:
    dataset = tf.data.Dataset.from_tensors(1.0).repeat().map(_busy)
    # As long as a batch takes, and a little longer.
    share = _share_of_waits(dataset, lambda x: _busy(x) + 1.0)
    assert 0.0 <= share < 0.4
