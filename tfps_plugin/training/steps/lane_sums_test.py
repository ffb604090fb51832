"""Tests of what lanes have counted, brought to the chief at once."""

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.cluster import dispatch_context
from tfps_plugin.cluster.dispatch_context import DispatchContext
from tfps_plugin.training.steps import lane_sums
from tfps_plugin.training.steps.lane_sums import LaneSums
from tfps_plugin.variables import testing
from tfps_plugin.variables.worker_local import WorkerLocalVariable


def _lane(index: int) -> Any:
    return dispatch_context.dispatching(
        DispatchContext(
            worker_index=index,
            lane_index=index,
            generation=1,
            device=testing.LOCAL_DEVICE,
        )
    )


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
        with _lane(lane_index):
            metrics.step(tf.constant(x))
    expected = [[7.5, 12.0], 10, [True, False], 2.5]
    assert metrics.values() == expected
    for _ in range(2):
        metrics.sums.collect()
        assert metrics.values() == expected
    # Lanes go on from zero.
    with _lane(3):
        metrics.step(tf.constant(0.5))
    expected = [[8.0, 13.0], 11, [True, False], 1.25]
    assert metrics.values() == expected
    metrics.sums.collect()
    assert metrics.values() == expected


def test_reset_by_the_chief_keeps_the_copies_and_clears_them() -> None:
    metrics = _Metrics()
    with _lane(0):
        metrics.step(tf.constant(1.0))
    metrics.sums.collect()
    before = metrics.count._resident.existing()
    metrics.count.assign(0)
    assert int(metrics.count.numpy()) == 0
    with _lane(0):
        metrics.step(tf.constant(1.0))
    assert metrics.count._resident.existing() == before
    assert int(metrics.count.numpy()) == 1
    # What was not brought yet is dropped.
    metrics.count.assign(5)
    assert int(metrics.count.numpy()) == 5


def test_a_lane_that_does_not_answer_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = _Metrics()
    for lane_index in (0, 1):
        with _lane(lane_index):
            metrics.step(tf.constant(1.0))
    take = LaneSums._take
    lost = metrics.count.copies_by_lane()[0]

    def fail(self: LaneSums, copies: Any) -> list[np.ndarray]:
        if any(copy is lost for copy in copies):
            raise tf.errors.UnavailableError(None, None, "gone\nat once")
        return take(self, copies)

    monkeypatch.setattr(LaneSums, "_take", fail)
    metrics.sums.collect()
    assert metrics.values()[:2] == [[2.5, 2.0], 8]
    (record,) = caplog.records
    assert record.name == lane_sums.__name__
    assert record.getMessage().endswith("Received: gone")
