"""Tests of losses derived from the reports of steps."""

import math
import random
import types
from typing import Any

import keras
import pytest
import tensorflow as tf

from tfps_plugin.training.steps.tuning.loss_course import LossCourse
from tfps_plugin.training.steps.tuning.loss_reports import LossReports
from tfps_plugin.variables import testing
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable


class _Metric(keras.metrics.Mean):
    """A mean whose states have copies of lanes."""

    def __init__(self, name: str = "loss") -> None:
        super().__init__(name=name)
        self.total, self.count = (
            types.SimpleNamespace(
                value=WorkerLocalVariable(
                    tf.constant(0.0), state, rule_is_given=True
                )
            )
            for state in ("total", "count")
        )

    def add(self, losses: list[float]) -> float:
        """Adds losses on the lane of this thread; returns its report."""
        total, count = self.total.value, self.count.value
        total.assign_add(sum(losses))
        count.assign_add(float(len(losses)))
        return float(total.read_value() / count.read_value())

    def begin_anew(self) -> None:
        for state in (self.total, self.count):
            state.value.assign(0.0)


def _reports(*metrics: Any) -> LossReports:
    model: Any = types.SimpleNamespace(metrics=[*metrics])
    return LossReports(model)


def test_of_a_running_mean_what_was_added_since() -> None:
    metric = _Metric()
    reports = _reports(keras.metrics.AUC(), _Metric("other"), metric)
    for lane_index in (0, 3):
        with testing.lane(lane_index):
            for losses in ([4.0], [2.0, 1.0], [9.0]):
                since = reports.since_last(lane_index, metric.add(losses))
                assert since == pytest.approx(sum(losses) / len(losses))
            # A call without a report is part of the next one.
            metric.add([1.0])
            since = reports.since_last(lane_index, metric.add([2.0]))
            assert since == pytest.approx(1.5)


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("num_before", [1, 100])
def test_a_reset_in_the_midst_of_an_epoch_gives_no_wrong_number(
    tells: bool, num_before: int
) -> None:
    metric = _Metric()
    reports = _reports(metric)
    with testing.lane(0):
        for _ in range(num_before):
            reports.since_last(0, metric.add([2.0]))
    if tells:
        reports.begin_epoch()
    metric.begin_anew()
    with testing.lane(0):
        # The count since then is as large as before, or larger.
        assert reports.since_last(0, metric.add([3.0] * 100)) == 3.0
        assert reports.since_last(0, metric.add([5.0])) == pytest.approx(5.0)


def test_a_reset_of_the_same_copies_is_seen_by_their_count() -> None:
    metric = _Metric()
    reports = _reports(metric)
    with testing.lane(0):
        reports.since_last(0, metric.add([2.0, 2.0]))
        for state in (metric.total, metric.count):
            state.value.assign(0.0)
        assert reports.since_last(0, metric.add([3.0])) == 3.0


def test_the_loss_of_a_batch_is_what_it_is() -> None:
    asked = []

    def read(metric: Any, lane_index: int) -> None:
        asked.append(metric)

    model: Any = types.SimpleNamespace(metrics=[_Metric()])
    reports = LossReports(model, read)
    for number in range(100):
        assert reports.since_last(0, float(number)) == float(number)
    # After some reports it is clear that they match no metric.
    assert 1 <= len(asked) <= 10


def test_another_loss_than_that_of_the_metric_is_what_it_is() -> None:
    metric = _Metric()
    reports = _reports(metric)
    with testing.lane(0):
        metric.add([4.0])
        # By chance both are equal at first.
        assert reports.since_last(0, 4.0) == 4.0
        for loss in (0.7, -1.0, math.inf):
            metric.add([8.0])
            assert reports.since_last(0, loss) == loss


def test_metrics_that_lanes_do_not_count_tell_nothing() -> None:
    metric = keras.metrics.Mean(name="loss")
    metric.update_state(0.5)
    without_states = _Metric()
    del without_states.total
    of_columns = _Metric()
    of_columns.total.value = WorkerLocalVariable(
        tf.zeros([2]), "total", rule_is_given=True
    )
    assert _reports(metric, without_states, of_columns).since_last(0, 0.5) == (
        0.5
    )


@pytest.mark.parametrize("steps_of_a_reset", [300, 7_000, 10**9])
def test_resets_do_not_unsettle_a_training(steps_of_a_reset: int) -> None:
    metric, source, course = _Metric(), random.Random(2), LossCourse()
    reports = _reports(metric)
    jumps, settled = 0, 0
    for step in range(0, 30_000, 20):
        if step % steps_of_a_reset < 20:
            metric.begin_anew()
        losses = [source.gauss(1.0, 0.5) for _ in range(20)]
        with testing.lane(0):
            since = reports.since_last(0, metric.add(losses))
        course.observe(0, 20, since)
        jumps += course.has_jumped
        settled += not course.falls_fast
    assert not jumps
    assert settled >= 500
