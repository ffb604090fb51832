import keras
import pytest

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring.state.testing import example_state
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
