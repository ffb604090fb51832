"""Tests of models that are not on a (fake) cluster."""

import types
import warnings
from typing import Any

import keras
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.training.patches.scope_check import LocalModels

_CLUSTER = ClusterSpec(("w0:1", "w1:1"), ("p0:1",))
_SESSION: Any = types.SimpleNamespace(
    cluster=_CLUSTER, workers=_CLUSTER.workers
)
_CREATOR = tfps.DatasetCreator(lambda context: tf.data.Dataset.range(1))


def _model() -> keras.Model:
    layers = [keras.Input((1,)), *(keras.layers.Dense(1) for _ in range(3))]
    return keras.Sequential(layers, name="mine")


@pytest.fixture
def local_models() -> LocalModels:
    return LocalModels(lambda: _SESSION)


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_input_for_workers_is_refused(
    local_models: LocalModels, method: str
) -> None:
    with pytest.raises(errors.InputError) as raised:
        local_models.check(_model(), method, [_CREATOR, None])
    assert isinstance(raised.value, ValueError)
    for part in ("'mine'", "with strategy.scope():", f"{method}()", "kernel"):
        assert part in str(raised.value)


def test_validation_input_for_workers_is_refused(
    local_models: LocalModels,
) -> None:
    with pytest.raises(errors.InputError, match="DatasetCreator"):
        local_models.check(_model(), "fit", [None, _CREATOR])


def test_a_model_is_warned_of_once_by_name(local_models: LocalModels) -> None:
    model = _model()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for method in ("fit", "evaluate", "fit"):
            local_models.check(model, method, [None])
    assert len(caught) == 1
    text = str(caught[0].message)
    for part in (
        "The model 'mine' is not on the cluster",
        "fit() runs in this process alone",
        "2 workers wait",
        *(variable.path for variable in model.variables[:5]),
        "and 1 more",
        "    with strategy.scope():\n",
        "    model.fit(...)",
    ):
        assert part in text
    with pytest.warns(UserWarning, match="is not on the cluster"):
        local_models.check(_model(), "evaluate", [None])


def test_a_model_that_is_not_built_has_no_names_yet(
    local_models: LocalModels,
) -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.warns(UserWarning, match="no variables yet"):
        local_models.check(model, "fit", [None])


def test_predict_reads_a_creator_on_the_chief(
    local_models: LocalModels,
) -> None:
    with pytest.warns(UserWarning, match=r"predict\(\) runs in this process"):
        local_models.check(_model(), "predict", [_CREATOR])


def test_without_a_cluster_nothing_is_said() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LocalModels(lambda: None).check(_model(), "fit", [_CREATOR])


def test_a_model_of_another_strategy_is_not_warned_of(
    local_models: LocalModels,
) -> None:
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = _model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local_models.check(model, "fit", [None])
