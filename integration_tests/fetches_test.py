"""Tests of what calls leave behind on workers."""

import os
import pathlib
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=1)

_WARM_UP_CALLS = 200
_CALLS = 200
_ROUNDS = 5
# An operation of its own for each fetch would leave some 3,000 bytes.
_MOST_BYTES = 1500


@pytest.fixture(scope="module")
def strategy(
    cluster: tfps.LocalCluster,
) -> tfps.ParameterServerStrategy:
    return tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        scheduling=tfps.SchedulingOptions(steps_per_closure=1),
    )


@pytest.fixture(scope="module", autouse=True)
def coordinator(
    strategy: tfps.ParameterServerStrategy,
) -> Iterator[tfps.ClusterCoordinator]:
    made = tfps.ClusterCoordinator(strategy)
    yield made
    made.close()


def _resident(cluster: tfps.LocalCluster) -> int:
    """Returns the memory that the worker has now, in bytes."""
    pid = cluster.process("worker", 0).pid
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _assert_no_growth(sizes: list[int]) -> None:
    """Checks the median of rounds: malloc takes some memory at a time."""
    grown = np.diff(sizes) / _CALLS
    assert np.median(grown) < _MOST_BYTES, grown


def _batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    del context
    return tf.data.Dataset.from_tensors(
        (tf.ones([2, 1]), tf.ones([2, 1]))
    ).repeat()


def test_steps_leave_nothing_on_a_worker(
    cluster: tfps.LocalCluster, strategy: tfps.ParameterServerStrategy
) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tfps.DatasetCreator(_batches)
    model.fit(data, steps_per_epoch=_WARM_UP_CALLS, verbose=0)
    sizes: list[int] = []
    model.fit(
        data,
        steps_per_epoch=_CALLS,
        epochs=1 + _ROUNDS,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda *_: sizes.append(_resident(cluster))
            )
        ],
    )
    _assert_no_growth(sizes)


def test_fetched_results_leave_nothing_on_a_worker(
    cluster: tfps.LocalCluster, coordinator: tfps.ClusterCoordinator
) -> None:
    step = tf.function(lambda: tf.random.uniform([3]))

    def run(num_calls: int) -> None:
        for _ in range(num_calls):
            assert coordinator.schedule(step).fetch().shape == (3,)

    run(_WARM_UP_CALLS)
    sizes = [_resident(cluster)]
    for _ in range(_ROUNDS):
        run(_CALLS)
        sizes.append(_resident(cluster))
    _assert_no_growth(sizes)
