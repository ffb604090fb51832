"""Tests of the arguments of a DatasetCreator."""

from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.inputs.dataset_creator import DatasetCreator


def _dataset(_: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(3).batch(2)


@pytest.mark.parametrize("fetches_to_device", [True, False])
def test_options_that_change_nothing(fetches_to_device: bool) -> None:
    options = tf.distribute.InputOptions(
        experimental_fetch_to_device=fetches_to_device
    )
    assert DatasetCreator(_dataset, options).input_options is options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (
            "experimental_replication_mode",
            tf.distribute.InputReplicationMode.PER_REPLICA,
        ),
        ("experimental_place_dataset_on_device", True),
        ("experimental_per_replica_buffer_size", 4),
    ],
)
def test_options_that_workers_cannot_honour(name: str, value: Any) -> None:
    with pytest.raises(errors.InputError, match=f"no {name} other than"):
        DatasetCreator(_dataset, tf.distribute.InputOptions(**{name: value}))


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(errors.InputError, match="takes a function"):
        DatasetCreator(tf.data.Dataset.range(3))


def test_what_returns_no_dataset_is_refused() -> None:
    creator = DatasetCreator(lambda context: [1, 2])
    with pytest.raises(errors.InputError, match=r"must return a tf\.data"):
        creator.build(None)
