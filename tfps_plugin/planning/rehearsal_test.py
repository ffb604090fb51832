import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.planning import rehearsal


def test_the_first_batch_of_arrays_has_the_size_of_a_batch() -> None:
    x, y = rehearsal.first_batch(
        {"x": np.arange(50), "y": np.arange(50), "batch_size": 8}
    )
    assert x.numpy().tolist() == y.numpy().tolist() == [*range(8)]


def test_without_a_size_it_is_that_of_keras() -> None:
    (x,) = rehearsal.first_batch({"x": np.arange(50)})
    assert len(x) == 32


def test_datasets_are_batched_already() -> None:
    dataset = tf.data.Dataset.range(10).batch(4)
    for x in (dataset, tfps.DatasetCreator(lambda context: dataset)):
        assert rehearsal.first_batch({"x": x}).numpy().tolist() == [0, 1, 2, 3]


class _Batches(keras.utils.PyDataset):
    """Two batches."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(3, index)


def test_batches_of_python_code_are_taken_as_they_are() -> None:
    assert rehearsal.first_batch({"x": _Batches()}).tolist() == [0, 0, 0]
    made = (np.arange(each) for each in (2, 3))
    assert rehearsal.first_batch({"x": made}).tolist() == [0, 1]


def test_other_input_is_refused() -> None:
    with pytest.raises(errors.PlanError, match="set"):
        rehearsal.first_batch({"x": {1, 2, 3}})


class _Model:
    name = "mine"


def test_weights_are_not_used_before_fit() -> None:
    with pytest.raises(errors.PlanError, match="predict"):
        rehearsal.Rehearsal().begin(_Model(), "predict", {})


def test_nothing_else_of_the_script_runs_in_fit() -> None:
    given = {"x": 1, "callbacks": [print], "validation_split": 0.5}
    replaced = rehearsal.Rehearsal().begin(_Model(), "fit", given)
    assert replaced == {"callbacks": None, "validation_split": 0.0}
