"""Tests that a ps that cannot keep up slows its workers; nothing piles up."""

import pathlib
import re
import signal
import threading
import time
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from shared_training import At

import tfps_plugin as tfps

_WIDTH = 1024
# Size of a step's gradient, which would pile up with each step.
_STEP_MIB = _WIDTH * _WIDTH * 4 / 2**20
_STEPS = 200
_PAUSE_SECONDS = 8.0
_NUM_WORKERS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=_NUM_WORKERS, num_ps=1) as cluster:
        yield cluster


def _dataset(_: object) -> tf.data.Dataset:
    x = np.ones((4, _WIDTH), np.float32)
    return tf.data.Dataset.from_tensors((x, x)).repeat()


def test_a_ps_that_stands_still_makes_workers_wait(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((_WIDTH,)),
                keras.layers.Dense(_WIDTH, use_bias=False),
            ]
        )
        model.compile(keras.optimizers.SGD(1e-4), "mse")
    processes = [cluster.process("ps", 0)]
    processes += [cluster.process("worker", i) for i in range(_NUM_WORKERS)]
    data = tfps.DatasetCreator(_dataset)
    timers = []

    def stand_still() -> None:
        timer = threading.Timer(
            _PAUSE_SECONDS, processes[0].send_signal, (signal.SIGCONT,)
        )
        timers.append(timer)
        processes[0].send_signal(signal.SIGSTOP)
        timer.start()

    def fit(at: At) -> None:
        model.fit(data, steps_per_epoch=_STEPS, verbose=0, callbacks=[at])

    try:
        # This measures the baseline memory and the speed.
        fit(At({}))
        start = time.monotonic()
        fit(At({}))
        steps_per_second = _STEPS / (time.monotonic() - start)
        before = [_peak_mib(process.pid) for process in processes]
        fit(At({_STEPS // 4: stand_still}))
        after = [_peak_mib(process.pid) for process in processes]
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
        processes[0].send_signal(signal.SIGCONT)
    assert timers
    assert int(model.optimizer.iterations) == 3 * _STEPS
    # No task was given up because of it.
    coordinator = tfps.ClusterCoordinator(strategy)
    assert coordinator.counters.value("closures_retried") == 0
    coordinator.close()
    # If workers had gone on, all their gradients would have waited.
    without_waiting = _PAUSE_SECONDS * steps_per_second * _STEP_MIB
    grown = [late - early for early, late in zip(before, after, strict=True)]
    assert sum(grown) < 0.2 * without_waiting, (grown, without_waiting)


def _peak_mib(pid: int) -> float:
    """Returns the peak memory of a process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024
