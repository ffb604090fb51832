"""Tests of variables that are placed by the traffic of the first steps."""

import math
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_ROWS = 1000
_TABLES = 4
_STEPS = 400


class _Waits(keras.callbacks.Callback):
    """Ends training no earlier than variables have moved."""

    def __init__(self, coordinator: tfps.ClusterCoordinator) -> None:
        super().__init__()
        self._has_moved = threading.Event()
        self.event: Any = None
        self._coordinator = coordinator
        coordinator.events.subscribe(self._note)

    def _note(self, event: tfps.events.Event) -> None:
        if isinstance(event, tfps.events.VariablesMoved):
            self.event = event
            self._has_moved.set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch > 300 and not self._coordinator.safe_points.is_wanted:
            # The thread copies: give it the time of a step.
            self._has_moved.wait(0.01)


def _hot(context: Any) -> tf.data.Dataset:
    """Returns batches that look up the first rows of each table."""
    random = np.random.default_rng(context.input_pipeline_id)
    hot = random.integers(0, _ROWS // 2, (512, _TABLES))
    cold = random.integers(_ROWS // 2, _ROWS, (512, _TABLES))
    ids = np.where(random.random(hot.shape) < 0.9, hot, cold)
    pairs = tf.data.Dataset.from_tensor_slices((ids, ids[:, :1] % 2))
    return pairs.repeat().batch(32)


@pytest.mark.parametrize(
    "consistency",
    [
        tfps.Async(),
        tfps.Async(local_steps=4),
        tfps.BoundedStaleness(max_staleness=2),
        tfps.Sync(),
    ],
    ids=str,
)
def test_hot_shards_are_spread_over_parameter_servers(
    cluster: tfps.LocalCluster,
    request: pytest.FixtureRequest,
    consistency: Any,
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        placement="traffic",
        consistency=consistency,
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    request.addfinalizer(coordinator.close)
    with strategy.scope():
        ids = keras.Input((_TABLES,), dtype="int64")
        rows = [
            keras.layers.Embedding(_ROWS, 16)(ids[:, table])
            for table in range(_TABLES)
        ]
        model = keras.Model(ids, keras.layers.Add()(rows))
        model.compile("adam", lambda y, x: tf.reduce_mean(x, -1))
    tables = [
        layer.embeddings.value
        for layer in model.layers
        if isinstance(layer, keras.layers.Embedding)
    ]
    first = strategy.ps_devices[0]
    assert [table.shards[0].device for table in tables] == [first] * _TABLES
    waits = _Waits(coordinator)
    for _ in range(10):
        model.fit(
            tfps.DatasetCreator(_hot),
            steps_per_epoch=_STEPS,
            verbose=0,
            callbacks=[waits],
        )
        if waits.event is not None:
            break
    assert waits.event.hottest_before > 0.8
    assert waits.event.hottest_after < 0.55
    assert all(isinstance(table, ShardedVariable) for table in tables)
    hot = [table.shards[0].device for table in tables]
    assert hot.count(first) == _TABLES // 2
    # Steps go on, and count no more.
    before = int(model.optimizer.iterations)
    model.fit(tfps.DatasetCreator(_hot), steps_per_epoch=10, verbose=0)
    # An update has up to as many steps as a round.
    a_round = getattr(consistency, "local_steps", 1)
    updates = int(model.optimizer.iterations) - before
    assert math.ceil(10 / a_round) <= updates <= 10
    assert all(table.row_counts is None for table in tables)


def test_an_unknown_placement_is_refused() -> None:
    with pytest.raises(ValueError, match="placement must be one of"):
        tfps.ParameterServerStrategy(placement="fast")  # type: ignore[arg-type]
