"""Tests of the optimizers that local steps refuse."""

import types
from typing import Any

import keras
import pytest

from tfps_plugin import errors
from tfps_plugin.strategy.consistency import Async
from tfps_plugin.strategy.consistency import Consistency
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.training.optimizers import local_support


def _under(consistency: Consistency, optimizer: Any) -> Any:
    optimizer._distribution_strategy = types.SimpleNamespace(
        consistency=consistency
    )
    return optimizer


def _accumulating() -> Any:
    return keras.optimizers.SGD(gradient_accumulation_steps=3)


def _scaling() -> Any:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_accumulating, "gradient_accumulation_steps=3"),
        (_scaling, "it decides in each step"),
    ],
)
def test_optimizers_that_skip_updates_are_refused(
    make: Any, reason: str
) -> None:
    with pytest.raises(errors.UnsupportedError, match=reason):
        local_support.require_supported(_under(Async(local_steps=2), make()))
    for consistency in (Async(), Async(staleness_scaling=True), Sync()):
        local_support.require_supported(_under(consistency, make()))


def test_several_optimizers_in_one_are_refused() -> None:
    kind = getattr(keras.optimizers, "MultiOptimizer", None)
    if kind is None:
        pytest.skip("This Keras has none.")
    several = kind(lambda variable: keras.optimizers.SGD())
    with pytest.raises(errors.UnsupportedError, match="it counts steps"):
        local_support.require_supported(_under(Async(local_steps=2), several))


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adam(global_clipnorm=1.0, use_ema=True),
        keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
        keras.optimizers.Ftrl(),
    ],
)
def test_others_are_supported(optimizer: Any) -> None:
    local_support.require_supported(_under(Async(local_steps=2), optimizer))
