"""Tests of rows trained on where workers wait for each other, and one dies.

`faults_inputs_test` is about asynchronous training.
"""

import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_cluster
import shared_rows
from shared_training import STEPS_A_CALL
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin.monitoring import events

pytestmark = pytest.mark.sample(cases=2, group="consistency_rules")

_WORKERS = 3
_LOST = 1
# More rows than are read before the kill: the worker is in its first split.
_ROWS_OF_SPLIT = 320
_SPLITS = 6
_ROWS = _SPLITS * _ROWS_OF_SPLIT
_BATCHES = _ROWS // shared_rows.BATCH
# Batches of the progress bar after which it dies, and is started again.
_DIES, _BACK = 20, 120

_RULES: dict[str, Any] = {
    "sync": tfps.Sync(),
    "backup": tfps.Sync(backup_workers=1),
    "bounded": tfps.BoundedStaleness(2),
    "local": tfps.Async(local_steps=4),
}
_every_rule = pytest.mark.parametrize("rule", _RULES)


@pytest.fixture(scope="module")
def living_cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=_WORKERS, num_ps=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(
    living_cluster: tfps.LocalCluster,
) -> Iterator[tfps.LocalCluster]:
    """Yields the cluster of the module, with all its tasks."""
    yield shared_cluster.with_all_tasks(living_cluster)
    # Each test finds as many processes as it leaves.
    shared_cluster.with_all_tasks(living_cluster)


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster, rule: str
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=_RULES[rule],
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


class _Batches(keras.callbacks.Callback):
    """Counts the batches that the epoch had."""

    number = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.number += 1


def _fit(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    data: tfps.DatasetCreator,
    *,
    is_back: bool,
) -> tuple[np.ndarray, int, int]:
    """Trains for an epoch in which a worker dies.

    Args:
        cluster: The cluster.
        strategy: The strategy.
        data: The input.
        is_back: Whether the worker is back before the end.

    Returns:
        How often each row was trained on, the number of updates, and the
        number of batches of the progress bar.
    """
    coordinator = tfps.ClusterCoordinator(strategy)
    seen = Seen(coordinator)
    model, _ = shared_rows.model(strategy, _ROWS)

    def bring_back() -> None:
        cluster.start("worker", _LOST)
        seen.wait_for(events.WorkerReadmitted)
        seen.wait_for_all_workers()

    actions = {_DIES: lambda: cluster.kill("worker", _LOST)}
    if is_back:
        actions[_BACK] = bring_back
    batches = _Batches()
    model.fit(data, callbacks=[At(actions), batches], verbose=0)
    assert [e.worker_index for e in seen.of(events.WorkerLost)] == [_LOST]
    return (
        shared_rows.counts(model),
        int(model.optimizer.iterations),
        batches.number,
    )


def _splits_of(rows: np.ndarray) -> list[int]:
    return np.unique(np.flatnonzero(rows) // _ROWS_OF_SPLIT).tolist()


def _assert_steps(
    rule: str, counts: np.ndarray, num_updates: int, num_batches: int
) -> None:
    """Checks that updates and batches fit with the rows that have counted."""
    num_trained = counts.sum() / shared_rows.BATCH
    if rule in ("sync", "backup"):
        # Of up to three workers, without one of them after the loss.
        most = _WORKERS - (rule == "backup")
        assert num_trained / most <= num_updates <= num_trained
        assert num_batches == num_updates
    elif rule == "bounded":
        # A step that died may have counted, or only its rows have.
        assert abs(num_updates - num_trained) <= 2
        assert num_batches <= num_updates
    else:
        assert num_trained / 4 <= num_updates <= num_trained


@_every_rule
@pytest.mark.parametrize(
    ("reads", "is_back"),
    [("splits", False), ("splits", True), ("shares", False)],
)
def test_rows_of_a_worker_that_dies_are_read_again(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    rule: str,
    reads: str,
    is_back: bool,
) -> None:
    data = (
        shared_rows.of_splits(_SPLITS, _ROWS)
        if reads == "splits"
        else shared_rows.of_workers(_WORKERS, _ROWS)
    )
    counts, *numbers = _fit(cluster, strategy, data, is_back=is_back)
    assert {*counts} <= {0.0, 1.0, 2.0}
    again = _splits_of(counts == 2)
    # Local steps have two lanes, which may read two splits.
    most = 1 if reads == "splits" else _SPLITS // _WORKERS
    assert len(again) <= most + (rule == "local"), again
    counters = tfps.ClusterCoordinator(strategy).counters
    num_missing = np.count_nonzero(counts == 0) / shared_rows.BATCH
    if rule == "backup":
        # Those that came too late; what has died with the worker is not told.
        dropped = counters.value("gradients_dropped")
        assert num_missing <= dropped + STEPS_A_CALL
    else:
        assert not num_missing
    _assert_steps(rule, counts, *numbers)


@_every_rule
def test_rows_of_a_worker_that_dies_are_left_out_at_most_once(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    rule: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = shared_rows.of_splits(_SPLITS, _ROWS, "at_most_once")
    with caplog.at_level(logging.WARNING, "tfps_plugin"):
        counts, *numbers = _fit(cluster, strategy, data, is_back=False)
    assert {*counts} <= {0.0, 1.0}
    warned = {
        int(record.args[1].split(",")[0].removeprefix("split "))  # type: ignore[index,union-attr]
        for record in caplog.records
        if "left out" in record.getMessage()
    }
    assert 1 <= len(warned) <= 1 + (rule == "local")
    if rule != "backup":
        assert {*_splits_of(counts == 0)} <= warned
    _assert_steps(rule, counts, *numbers)
