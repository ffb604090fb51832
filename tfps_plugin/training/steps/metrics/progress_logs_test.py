"""Tests that logs average reports of lanes, and are fetched only if shown."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs


class Fetched:
    """A result that counts how often it was fetched."""

    shape = ()

    def __init__(self, value: float) -> None:
        self.value = value
        self.times = 0

    def numpy(self) -> np.float64:
        self.times += 1
        return np.float64(self.value)


def test_the_last_results_of_lanes_are_averaged() -> None:
    progress = ProgressLogs(num_lanes=2, show_all=True)
    kept = progress.logs
    for loss in (100.0, 2.0, 4.0):
        progress.report({"loss": tf.constant(loss)})
    assert kept == {}
    progress.update()
    assert kept == {"loss": 3.0}


def test_results_that_nobody_sees_stay_where_they_are() -> None:
    progress = ProgressLogs(num_lanes=2)
    results = [Fetched(float(number)) for number in range(50)]
    for result in results:
        progress.report({"loss": result})
    progress.update()
    assert results[0].times == 1
    assert sum(result.times for result in results) < 10
    progress.finish()
    assert results[-1].times >= 1
    assert progress.logs == {"loss": 48.5}


def test_a_result_of_a_lost_worker_is_left_out() -> None:
    class Lost:
        def numpy(self) -> Any:
            raise tf.errors.UnavailableError(
                None, None, "worker 0: connection refused"
            )

    progress = ProgressLogs(num_lanes=2, show_all=True)
    progress.report({"loss": Lost()})
    progress.report({"loss": tf.constant(2.0)})
    progress.finish()
    assert progress.logs == {"loss": 2.0}


def test_steps_may_return_anything() -> None:
    progress = ProgressLogs(num_lanes=1, show_all=True)
    progress.report([tf.constant(1.0)])
    progress.update()
    progress.finish()
    assert progress.logs == {}
