"""Tests that files of weights and models have the same content."""

import contextlib
import pathlib
from typing import Any

import keras
import numpy as np
import pytest

import tfps_plugin as tfps

from . import comparison
from . import model_table
from . import placements
from .model_table import CASES

pytestmark = [
    pytest.mark.compat,
    pytest.mark.cluster(num_workers=1, num_ps=2),
]


def _filled(feature: str, seed: int, strategy: Any = None) -> keras.Model:
    """Returns a built model with numbers in all weights and slots."""
    model = model_table.build(CASES[feature], strategy)
    x = CASES[feature].x
    if isinstance(model, model_table.Task):
        x = model.preprocessed(x)
    model(keras.tree.map_structure(lambda array: array[:2], x))
    with strategy.scope() if strategy else contextlib.nullcontext():
        model.optimizer.build(model.trainable_variables)
    random = np.random.default_rng(seed)
    for variable in [*model.weights, *model.optimizer.variables]:
        if "float" in variable.dtype and variable.shape:
            variable.assign(random.uniform(0.1, 1.0, variable.shape))
    return model


@pytest.mark.sample(cases=14)
@pytest.mark.parametrize("placement", placements.NAMES)
@pytest.mark.parametrize("feature", CASES)
def test_saved(
    strategy: tfps.ParameterServerStrategy,
    feature: str,
    placement: str,
    tmp_path: pathlib.Path,
) -> None:
    files = ["model.weights.h5"]
    if CASES[feature].is_saved_whole:
        files.append("model.keras")
    alone = _filled(feature, 1)
    ours = _filled(feature, 1, strategy)
    other = _filled(feature, 2, strategy)
    for file in files:
        for name, model in (("alone", alone), ("ours", ours)):
            (tmp_path / name).mkdir(exist_ok=True)
            save = model.save if file.endswith(".keras") else model.save_weights
            save(tmp_path / name / file)
        comparison.assert_same(
            comparison.contents(tmp_path / "ours" / file),
            comparison.contents(tmp_path / "alone" / file),
        )
    # The way back: from one process into shards, and from shards into one
    # process.
    expected = _numbers(alone)
    other.load_weights(tmp_path / "alone" / "model.weights.h5")
    comparison.assert_same(_numbers(other), expected)
    alone = _filled(feature, 3)
    alone.load_weights(tmp_path / "ours" / "model.weights.h5")
    comparison.assert_same(_numbers(alone), expected)
    if CASES[feature].is_saved_whole:
        loaded = keras.models.load_model(tmp_path / "ours" / "model.keras")
        comparison.assert_same(_numbers(loaded), expected)
        with strategy.scope():
            loaded = keras.models.load_model(tmp_path / "alone" / "model.keras")
        comparison.assert_same(_numbers(loaded), expected)


def _numbers(model: keras.Model) -> Any:
    variables = [*model.weights, *model.optimizer.variables]
    return [np.asarray(variable) for variable in variables]
