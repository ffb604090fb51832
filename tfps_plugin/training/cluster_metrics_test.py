import logging
import pathlib
import threading
from typing import Any

import keras
import pytest

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.testing import example_state
from tfps_plugin.telemetry.monitor import Monitor
from tfps_plugin.training import cluster_metrics


def test_scalars_are_those_of_the_state() -> None:
    found = dict(cluster_metrics.scalars(example_state()))
    assert found["job/steps_per_second"] == 120.5
    assert found["job/healthy_tasks"] == 3
    assert found["worker_0/wait_share"] == 0.2
    assert found["ps_0/num_bytes"] == 9_600_000_000
    # It is lost, and nothing is known of it.
    assert not any(name.startswith("worker_1/") for name in found)


def test_an_interval_is_above_zero() -> None:
    with pytest.raises(ValueError, match="every_seconds=0"):
        tfps.callbacks.ClusterMetrics("logs", every_seconds=0)


def test_a_model_of_one_process_has_no_cluster() -> None:
    callback = tfps.callbacks.ClusterMetrics("logs")
    model = keras.Sequential([keras.layers.Dense(1)], name="local")
    callback.set_model(model)
    with pytest.raises(errors.UnsupportedError, match="'local'"):
        callback.on_train_begin()


class _Strategy:
    """A strategy whose monitor does what a test wants."""

    def __init__(self, look: Any) -> None:
        class Watched(Monitor):
            def state(self, *, age_seconds: float = 0.0) -> ClusterState:
                return look()

        self.monitor = Watched(self)


def _callback(
    strategy: _Strategy, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> tfps.callbacks.ClusterMetrics:
    monkeypatch.setattr(keras_compat, "strategy_of", lambda model: strategy)
    callback = tfps.callbacks.ClusterMetrics(folder, every_seconds=0.001)
    callback.set_model(keras.Sequential([keras.layers.Dense(1)]))
    return callback


@pytest.mark.parametrize(
    "error",
    [
        ReferenceError("it is gone"),
        errors.StrategySupersededError("a newer one"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_ends_with_the_strategy(
    error: Exception,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    looked = threading.Event()

    def look() -> ClusterState:
        looked.set()
        raise error

    callback = _callback(_Strategy(look), tmp_path, monkeypatch)
    with caplog.at_level(logging.INFO, "tfps_plugin.training"):
        callback.on_train_begin()
        assert looked.wait(30)
        callback.on_train_end()
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert str(error) in record.getMessage()


def test_a_thread_that_does_not_end_is_told_of(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    looked, may_end, ended = (threading.Event() for _ in range(3))

    def look() -> ClusterState:
        looked.set()
        assert may_end.wait(30)
        ended.set()
        raise ReferenceError

    callback = _callback(_Strategy(look), tmp_path, monkeypatch)
    monkeypatch.setattr(cluster_metrics, "_STOP_TIMEOUT_SECONDS", 0.01)
    callback.on_train_begin()
    (thread,) = (
        each
        for each in threading.enumerate()
        if each.name == "tfps-cluster-metrics"
    )
    assert looked.wait(30)
    callback.on_train_end()
    assert "within 0.01 s" in caplog.text
    assert str(tmp_path) in caplog.text
    may_end.set()
    thread.join(30)
    assert ended.is_set()
