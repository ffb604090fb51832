"""Tests of networks that are cut, partly cut, slow and lossy.

Every task is in a network namespace of its own, behind a bridge. That needs
root and the `ip` command; where they are missing, the tests are skipped.
"""

import contextlib
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import pytest
import shared_network
import shared_training
import tensorflow as tf
from shared_network import CHIEF
from shared_network import TASKS
from shared_network import Network
from shared_training import STEPS_A_CALL
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin.cluster import health
from tfps_plugin.cluster.chief import this_process
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.coordinator.stragglers import windows
from tfps_plugin.monitoring import events

# Each test loses or delays tasks, and takes long.
pytestmark = pytest.mark.sample(cases=1, group="network")

_ROOT = pathlib.Path(__file__).parent.parent
_PORT = 4711
_STEPS = 200
_LOCAL_STEPS = 4
# Half a minute, and as long again if TensorFlow waits for the worker, too.
_MISSED_SECONDS = 90.0
_START_SECONDS = 120.0
_OUTAGE_SECONDS = 0.3


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := shared_network.why_not():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        yield Network(stack)


class _Tasks(NamedTuple):
    """Serving tasks and their logs."""

    addresses: dict[str, list[str]]
    logs: dict[subprocess.Popen[bytes], pathlib.Path]

    def assert_alive(self) -> None:
        for process, log in self.logs.items():
            assert process.poll() is None, f"{log.name}: {log.read_text()}"


@pytest.fixture(scope="module")
def tasks(
    network: Network, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Tasks]:
    """Yields tasks, each in its own namespace."""
    jobs: dict[str, list[str]] = {}
    for job, index in TASKS:
        jobs.setdefault(job, []).append(f"{network.host(job, index)}:{_PORT}")
    folder = tmp_path_factory.mktemp("tasks")
    logs: dict[subprocess.Popen[bytes], pathlib.Path] = {}
    with contextlib.ExitStack() as stack:
        for job, index in TASKS:
            config = {"cluster": jobs, "task": {"type": job, "index": index}}
            path = folder / f"{job}{index}"
            log = stack.enter_context(path.open("wb"))
            process = subprocess.Popen(
                [
                    *(shared_network.tool("ip") or "ip", "netns", "exec"),
                    network.namespace(job, index),
                    *(sys.executable, "-m", "tfps_plugin", "serve"),
                ],
                env={
                    **os.environ,
                    "TF_CONFIG": json.dumps(config),
                    "PYTHONPATH": str(_ROOT),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            logs[process] = path
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        cluster = ClusterSpec.from_dict(jobs)
        health.wait_until_ready(cluster.serving_tasks, _START_SECONDS)
        stack.callback(this_process.close_session, cluster)
        yield _Tasks(jobs, logs)


@pytest.fixture(
    params=[
        tfps.Async(),
        tfps.Async(local_steps=_LOCAL_STEPS),
        tfps.Sync(),
        tfps.Sync(backup_workers=1),
        tfps.BoundedStaleness(4),
    ],
    ids=["async", "local", "sync", "backup", "bounded"],
)
def strategy(
    tasks: _Tasks, request: pytest.FixtureRequest
) -> Iterator[tfps.ParameterServerStrategy]:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(tasks.addresses), task_type="chief", task_id=0
    )
    tasks.assert_alive()
    made = tfps.ParameterServerStrategy(
        resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=request.param,
    )
    yield made
    tasks.assert_alive()
    tfps.ClusterCoordinator(made).close()


def _model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(300, 8),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
        model.optimizer.build(model.trainable_variables)
    return model


class _At(keras.callbacks.Callback):
    def __init__(self, actions: dict[int, Callable[[], None]]) -> None:
        super().__init__()
        self._actions = actions

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch in self._actions:
            self._actions[batch]()


def _fit(model: keras.Model, *callbacks: Any) -> float:
    ids, targets = shared_training.ids_and_targets(300, _STEPS * 8)
    history = model.fit(
        ids, targets, batch_size=8, verbose=0, callbacks=list(callbacks)
    ).history
    for value in shared_training.state_of(model):
        assert np.isfinite(value).all()
    loss: float = history["loss"][-1]
    return loss


def _updates(
    strategy: tfps.ParameterServerStrategy, num_steps: int = _STEPS
) -> int:
    """Returns how many updates steps make, at least."""
    if isinstance(strategy.consistency, tfps.Async):
        return math.ceil(num_steps / strategy.consistency.local_steps)
    return num_steps


def _most_updates(strategy: tfps.ParameterServerStrategy) -> int:
    """Returns how many updates a call of `fit` makes, if it is undisturbed."""
    least = _updates(strategy)
    # The first batch may be a round of its own, so that the last is shorter.
    return least if least == _STEPS else least + 1


def _fit_until(
    model: keras.Model, cut: Callable[[], None], is_noticed: Callable[[], bool]
) -> float:
    """Cuts worker 0 off during an epoch; it may have no more work in it."""
    deadline = time.monotonic() + _MISSED_SECONDS
    loss = _fit(model, _At({50: cut}))
    while not is_noticed():
        assert time.monotonic() < deadline
        loss = _fit(model)
    return loss


def _fit_until_worker_0_is_missed(
    model: keras.Model,
    strategy: tfps.ParameterServerStrategy,
    cut: Callable[[], None],
) -> float:
    coordinator = tfps.ClusterCoordinator(strategy)
    return _fit_until(model, cut, lambda: coordinator.absent_workers == (0,))


def _seen(strategy: tfps.ParameterServerStrategy) -> Seen:
    return Seen(tfps.ClusterCoordinator(strategy))


def test_a_worker_that_is_cut_off(
    network: Network, strategy: tfps.ParameterServerStrategy
) -> None:
    model = _model(strategy)
    seen = _seen(strategy)
    try:
        loss = _fit_until_worker_0_is_missed(
            model, strategy, lambda: network.cut("worker", 0)
        )
    finally:
        network.mend("worker", 0)
    assert int(model.optimizer.iterations) >= _updates(strategy)
    seen.wait_for(events.WorkerReadmitted)
    assert _fit(model) < loss


def test_a_worker_that_does_not_reach_a_ps(
    network: Network,
    strategy: tfps.ParameterServerStrategy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _model(strategy)
    seen = _seen(strategy)
    pair = ("worker", 0), ("ps", 1)

    def who_noticed() -> set[int]:
        if isinstance(strategy.consistency, tfps.Async):
            return {e.worker_index for e in seen.of(events.ClosureRetried)}
        return set(map(int, re.findall(r"Worker (\d+) sits out", caplog.text)))

    try:
        loss = _fit_until(
            model,
            lambda: network.cut_between(*pair),
            lambda: bool(who_noticed()),
        )
    finally:
        network.mend_between(*pair)
    # Only this worker, and no task was lost.
    assert who_noticed() == {0}
    for kind in (events.WorkerLost, events.ParameterServerLost):
        assert not seen.of(kind)
    assert tfps.ClusterCoordinator(strategy).absent_workers == ()
    assert int(model.optimizer.iterations) >= _updates(strategy)
    assert _fit(model) < loss


def test_a_worker_that_the_chief_alone_does_not_reach(
    network: Network, strategy: tfps.ParameterServerStrategy
) -> None:
    model = _model(strategy)
    seen = _seen(strategy)
    pair = ("worker", 0), CHIEF
    try:
        # It is missed although it reaches the parameter servers.
        loss = _fit_until_worker_0_is_missed(
            model, strategy, lambda: network.cut_between(*pair)
        )
    finally:
        network.mend_between(*pair)
    assert not seen.of(events.ParameterServerLost)
    assert int(model.optimizer.iterations) >= _updates(strategy)
    seen.wait_for(events.WorkerReadmitted)
    assert _fit(model) < loss


def _assert_fit_goes_on_after_a_cut(
    strategy: tfps.ParameterServerStrategy,
    folder: pathlib.Path,
    cut: Callable[[], None],
    mend: Callable[[], None],
    lost: Sequence[int] = (1,),
) -> None:
    """Mends the cut when training waits for all ps that it loses.

    Checks that fit goes on.
    """
    model = _model(strategy)
    seen = _seen(strategy)
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), folder)
    manager.save()
    manager.sync()

    def mend_at(event: Any) -> None:
        awaited = seen.of(events.WaitingForParameterServer)
        if {each.ps_index for each in awaited} == {*lost}:
            mend()

    seen.on_event = mend_at
    try:
        loss = _fit(model, _At({50: cut}))
    finally:
        mend()
    assert sorted(seen.recovered()) == [*lost]
    made = int(model.optimizer.iterations)
    if isinstance(strategy.consistency, tfps.Sync):
        # All variables go back to the checkpoint, and with them the steps.
        assert _STEPS - 50 - STEPS_A_CALL <= made < _STEPS
    elif seen.of(events.WorkerLost):
        # Nobody knows of the last calls of workers.
        assert made >= _updates(strategy, _STEPS - 50 - STEPS_A_CALL)
    else:
        assert made >= _updates(strategy)
    assert _fit(model) < loss


def test_a_ps_that_is_cut_off(
    network: Network,
    strategy: tfps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
) -> None:
    _assert_fit_goes_on_after_a_cut(
        strategy,
        tmp_path,
        lambda: network.cut("ps", 1),
        lambda: network.mend("ps", 1),
    )


def test_a_ps_that_the_chief_alone_does_not_reach(
    network: Network,
    strategy: tfps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
) -> None:
    pair = ("ps", 1), CHIEF
    _assert_fit_goes_on_after_a_cut(
        strategy,
        tmp_path,
        lambda: network.cut_between(*pair),
        lambda: network.mend_between(*pair),
    )


def test_a_chief_that_is_cut_off(
    network: Network,
    strategy: tfps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
) -> None:
    """Tasks reach each other, but not the chief."""
    seen = _seen(strategy)

    def cut() -> None:
        for task in TASKS:
            network.cut_between(task, CHIEF)

    def mend() -> None:
        for task in TASKS:
            network.mend_between(task, CHIEF)

    _assert_fit_goes_on_after_a_cut(strategy, tmp_path, cut, mend, lost=(0, 1))
    # A worker is probed only when it is idle or overdue.
    seen.wait_for_all_workers()


def test_a_link_that_comes_and_goes(
    network: Network, strategy: tfps.ParameterServerStrategy
) -> None:
    model = _model(strategy)
    seen = _seen(strategy)
    timers: list[threading.Timer] = []

    def cut_shortly() -> None:
        # Packets in flight are lost, and TCP sends them again.
        network.cut("worker", 0)
        timers.append(
            threading.Timer(_OUTAGE_SECONDS, network.mend, ("worker", 0))
        )
        timers[-1].start()

    try:
        _fit(model, _At(dict.fromkeys(range(20, 180, 40), cut_shortly)))
    finally:
        for timer in timers:
            timer.join()
    assert len(timers) == 4
    # Each cut may cause retries of the calls of its lanes.
    calls = 4 * tfps.ClusterCoordinator(strategy).in_flight_limits.most
    least = _updates(strategy)
    most = _most_updates(strategy) + calls * _updates(strategy, STEPS_A_CALL)
    num_updates = int(model.optimizer.iterations)
    assert least <= num_updates <= most
    # TCP waits longer before each attempt. So the worker may be found lost or
    # not, as long as it comes back.
    if seen.of(events.WorkerLost):
        seen.wait_for(events.WorkerReadmitted)
    _fit(model)
    assert int(model.optimizer.iterations) >= num_updates + least


def test_slow_and_lossy_links(
    network: Network, strategy: tfps.ParameterServerStrategy
) -> None:
    model = _model(strategy)
    try:
        network.degrade("delay", "5ms", "2ms", "loss", "1%")
    except shared_network.NotPossibleError as error:
        pytest.skip(str(error))
    try:
        loss = _fit(model)
    finally:
        network.degrade()
    counters = tfps.ClusterCoordinator(strategy).counters
    assert counters.value("steps_done") == _STEPS
    num_updates = int(model.optimizer.iterations)
    assert _updates(strategy) <= num_updates <= _most_updates(strategy)
    assert loss < 1.0


@pytest.mark.parametrize(
    "strategy", [tfps.Async()], ids=["async"], indirect=True
)
def test_a_worker_with_a_narrow_link_is_reported(
    network: Network,
    strategy: tfps.ParameterServerStrategy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(windows, "_LEAST_SECONDS", 2.0)
    model = _model(strategy)
    _fit(model)
    seen = _seen(strategy)
    try:
        network.narrow(("worker", 1), "2mbit")
    except shared_network.NotPossibleError as error:
        pytest.skip(str(error))
    deadline = time.monotonic() + _MISSED_SECONDS
    try:
        while not seen.of(events.WorkerSlow):
            assert time.monotonic() < deadline
            _fit(model)
    finally:
        network.narrow(("worker", 1))
    event = seen.wait_for(events.WorkerSlow)
    assert event.worker_index == 1
    assert event.slow_at == "network"
    assert "each parameter server" in event.detail
