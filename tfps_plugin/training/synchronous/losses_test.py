"""Tests of losses that workers in step can and cannot have."""

from typing import Any

import keras
import pytest

from tfps_plugin import errors
from tfps_plugin.training.synchronous import losses


def _model(loss: Any) -> keras.Model:
    a = keras.Input((2,), name="a")
    outputs = {name: keras.layers.Dense(1, name=name)(a) for name in ("x", "y")}
    model = keras.Model(a, outputs)
    model.compile("sgd", loss)
    return model


def _squares(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.square(y_true - y_pred)


@pytest.mark.parametrize(
    "loss",
    [
        "mse",
        _squares,
        keras.losses.MeanSquaredError(),
        keras.losses.MeanAbsoluteError(reduction="mean"),
        {"x": keras.losses.Huber(), "y": "mse"},
        {"x": None, "y": _squares},
        None,
    ],
)
def test_means_over_a_batch_are_taken(loss: Any) -> None:
    losses.require_means(_model(loss))


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight", None])
def test_what_is_no_mean_over_a_batch_is_refused(reduction: str | None) -> None:
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    with pytest.raises(
        errors.UnsupportedError,
        match=f"mean_squared_error.*reduction={reduction!r}.*tfps.Async",
    ):
        losses.require_means(_model(loss))


@pytest.mark.parametrize("kind", [dict, list])
def test_one_of_several_losses_is_refused(kind: type) -> None:
    each = {"x": "mse", "y": keras.losses.Huber(reduction="sum")}
    with pytest.raises(errors.UnsupportedError, match=r"huber_loss.*'sum'"):
        losses.require_means(
            _model(each if kind is dict else list(each.values()))
        )


def test_a_model_of_its_own_loop_has_no_loss() -> None:
    losses.require_means(keras.Sequential([keras.layers.Dense(1)]))
