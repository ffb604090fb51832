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


def test_input_that_cannot_be_read_twice_is_refused() -> None:
    with pytest.raises(errors.PlanError, match="generator"):
        rehearsal.first_batch({"x": (each for each in range(3))})


class _Model:
    name = "mine"


def test_weights_are_not_used_before_fit() -> None:
    with pytest.raises(errors.PlanError, match="predict"):
        rehearsal.Rehearsal().begin(_Model(), "predict", {})


def test_nothing_else_of_the_script_runs_in_fit() -> None:
    given = {"x": 1, "callbacks": [print], "validation_split": 0.5}
    replaced = rehearsal.Rehearsal().begin(_Model(), "fit", given)
    assert replaced == {"callbacks": None, "validation_split": 0.0}
