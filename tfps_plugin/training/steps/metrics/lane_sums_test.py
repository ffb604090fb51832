"""Tests of metric states of lanes, fetched by the chief at once."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.steps.metrics import lane_sums
from tfps_plugin.training.steps.metrics.lane_sums import LaneSums
from tfps_plugin.variables import testing
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable


class _Metrics:
    """States of a model's metrics, and a step that adds to them."""

    def __init__(self) -> None:
        self.total = WorkerLocalVariable(tf.constant([1.5, 0.0]), "total")
        self.count = WorkerLocalVariable(tf.constant(7, tf.int64), "count")
        self.seen = WorkerLocalVariable(tf.constant([False, False]), "seen")
        self.mean = WorkerLocalVariable(
            tf.constant(4.0), "mean", aggregation=tf.VariableAggregation.MEAN
        )
        wrapped = [
            types.SimpleNamespace(value=variable)
            for variable in (self.total, self.count, self.mean, self.seen)
        ]
        self.sums = LaneSums(types.SimpleNamespace(metrics_variables=wrapped))

        @tf.function
        def step(x: tf.Tensor) -> None:
            self.total.assign_add([x, 2.0 * x])
            self.count.assign_add(1)
            self.seen.assign([x > 2.0, False])
            self.mean.assign(x)

        self.step = step

    def values(self) -> list[Any]:
        return [
            variable.numpy().tolist()
            for variable in (self.total, self.count, self.seen, self.mean)
        ]


def test_the_sums_are_what_single_reads_would_find() -> None:
    metrics = _Metrics()
    for lane_index, x in ((0, 1.0), (3, 3.0), (0, 2.0)):
        with testing.lane(lane_index):
            metrics.step(tf.constant(x))
    expected = [[7.5, 12.0], 10, [True, False], 2.5]
    assert metrics.values() == expected
    for _ in range(2):
        metrics.sums.collect()
        assert metrics.values() == expected
    # Lanes continue from zero.
    with testing.lane(3):
        metrics.step(tf.constant(0.5))
    expected = [[8.0, 13.0], 11, [True, False], 1.25]
    assert metrics.values() == expected
    metrics.sums.collect()
    assert metrics.values() == expected


def test_reset_by_the_chief_keeps_the_copies_and_clears_them() -> None:
    metrics = _Metrics()
    with testing.lane(0):
        metrics.step(tf.constant(1.0))
    metrics.sums.collect()
    before = metrics.count._resident.existing()
    metrics.count.assign(0)
    assert int(metrics.count.numpy()) == 0
    with testing.lane(0):
        metrics.step(tf.constant(1.0))
    assert metrics.count._resident.existing() == before
    assert int(metrics.count.numpy()) == 1
    # Drops values that were not fetched yet.
    metrics.count.assign(5)
    assert int(metrics.count.numpy()) == 5


def test_a_lane_that_does_not_answer_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = _Metrics()
    for lane_index in (0, 1):
        with testing.lane(lane_index):
            metrics.step(tf.constant(1.0))
    read = lane_sums._Functions.read
    lost = metrics.count.copies_by_lane()[0]

    def fail(self: Any, copies: Any) -> list[np.ndarray]:
        if any(copy is lost for copy in copies):
            raise tf.errors.UnavailableError(None, None, "gone\nat once")
        return read(self, copies)

    monkeypatch.setattr(lane_sums._Functions, "read", fail)
    metrics.sums.collect()
    assert metrics.values()[:2] == [[2.5, 2.0], 8]
    (record,) = caplog.records
    assert record.name == "tfps_plugin.training"
    assert record.getMessage().endswith("Received: gone")


def _failing(error: Exception) -> Callable[..., None]:
    def fail(self: Any, copies: Any) -> None:
        raise error

    return fail


def test_what_was_brought_and_not_cleared_is_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = _Metrics()
    with testing.lane(0):
        metrics.step(tf.constant(1.0))
    error = tf.errors.UnavailableError(None, None, "gone")
    monkeypatch.setattr(lane_sums._Functions, "clear", _failing(error))
    for _ in range(2):
        metrics.sums.collect()
        assert metrics.values()[:2] == [[2.5, 2.0], 8]


def test_errors_of_our_own_are_not_taken_for_a_lost_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = _Metrics()
    with testing.lane(0):
        metrics.step(tf.constant(1.0))
    error = tf.errors.InvalidArgumentError(None, None, "wrong")
    monkeypatch.setattr(lane_sums._Functions, "read", _failing(error))
    with pytest.raises(tf.errors.InvalidArgumentError):
        metrics.sums.collect()


def test_a_metric_that_is_listed_twice_is_counted_once() -> None:
    metrics = _Metrics()
    metrics.sums._model.metrics_variables *= 2
    with testing.lane(0):
        metrics.step(tf.constant(1.0))
    metrics.sums.collect()
    assert metrics.values()[:2] == [[2.5, 2.0], 8]
