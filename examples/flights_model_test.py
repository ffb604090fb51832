"""Tests of flights_model.py."""

import pathlib

import keras
import numpy as np
import numpy.typing as npt
import pytest
from flights_data import IDS
from flights_model import EMBEDDING_WIDTHS
from flights_model import build_model

_ROWS = 6
_WIDE_COLUMNS = 3
_NUMBERS = 4


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return build_model(
        dict.fromkeys(IDS, 10),
        wide_size=30,
        wide_columns=_WIDE_COLUMNS,
        numbers=_NUMBERS,
    )


def _features() -> dict[str, npt.NDArray[np.generic]]:
    random = np.random.default_rng(seed=1)
    return {
        **{name: random.integers(10, size=_ROWS) for name in IDS},
        "wide": random.integers(30, size=(_ROWS, _WIDE_COLUMNS)),
        "numbers": random.normal(size=(_ROWS, _NUMBERS)),
    }


def test_every_column_has_a_table() -> None:
    assert list(EMBEDDING_WIDTHS) == list(IDS)


def test_it_predicts_a_probability_for_each_flight(model: keras.Model) -> None:
    predicted = model.predict(_features(), verbose=0)
    assert predicted.shape == (_ROWS, 1)
    assert ((predicted > 0) & (predicted < 1)).all()


def test_the_wide_part_adds_a_weight_for_each_id(model: keras.Model) -> None:
    table = model.get_layer("wide_table").embeddings
    before = model.predict(_features(), verbose=0)
    table.assign(np.full(table.shape, 0.5))
    after = model.predict(_features(), verbose=0)
    table.assign(np.zeros(table.shape))
    odds = np.log(after / (1 - after)) - np.log(before / (1 - before))
    np.testing.assert_allclose(odds, 0.5 * _WIDE_COLUMNS, rtol=1e-4)


def test_a_saved_model_predicts_the_same(
    model: keras.Model, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "model.keras"
    model.save(path)
    reopened = keras.models.load_model(path)
    np.testing.assert_allclose(
        reopened.predict(_features(), verbose=0),
        model.predict(_features(), verbose=0),
        rtol=1e-6,
    )
