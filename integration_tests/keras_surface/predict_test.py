"""Tests that workers predict, and results keep the order of the input."""

import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

from . import bench
from . import comparison
from . import placements
from .bench import BATCH

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

in_every_placement = pytest.mark.parametrize("placement", placements.NAMES)


class Shapes(keras.Model):
    """Model that predicts tensors of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(bench.NUM_IDS, 2)

    def call(self, ids: Any) -> Any:
        rows = self.table(ids)
        counts = tf.cast(ids[:, 0] % 3, tf.int64)
        return {
            "rows": rows,
            "pair": [rows[:, 0], tf.as_string(ids)],
            "ragged": tf.RaggedTensor.from_row_lengths(
                tf.repeat(ids[:, 0], counts), counts
            ),
        }


@in_every_placement
@pytest.mark.parametrize("feature", ["predict, ragged and nested"])
def test_predictions_of_many_kinds_are_in_order(
    strategies: dict[str, tfps.ParameterServerStrategy],
    feature: str,
    placement: str,
) -> None:
    outcomes = []
    keras.utils.set_random_seed(2)
    alone = Shapes()
    with strategies[placement].scope():
        keras.utils.set_random_seed(2)
        ours = Shapes()
    for model in (alone, ours):
        predicted = model.predict(bench.IDS, batch_size=BATCH, verbose=0)
        ragged = predicted.pop("ragged")
        predicted["pair"][1] = repr(predicted["pair"][1].tolist())
        outcomes.append([predicted, repr(ragged.to_list())])
    comparison.assert_same(outcomes[1], outcomes[0])


class Where(keras.Model):
    """Model that predicts, for each row, the process that computes it."""

    def call(self, ids: Any) -> Any:
        # The file is read at run time, where the model runs.
        status = tf.io.read_file("/proc/self/stat")
        number = tf.strings.to_number(tf.strings.split(status)[0], tf.int64)
        return tf.repeat(number, tf.shape(ids)[0])


_ROWS = np.tile(bench.IDS, (10, 1))


def _rows(context: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_ROWS).batch(BATCH)


_INPUT_KINDS: dict[str, dict[str, Any]] = {
    "NumPy": {"x": _ROWS, "batch_size": BATCH},
    "DatasetCreator": {"x": tfps.DatasetCreator(_rows)},
}


@in_every_placement
@pytest.mark.parametrize("input_kind", _INPUT_KINDS)
@pytest.mark.parametrize("feature", ["predict, where"])
def test_all_workers_predict_and_nobody_else(
    cluster: tfps.LocalCluster,
    strategies: dict[str, tfps.ParameterServerStrategy],
    feature: str,
    input_kind: str,
    placement: str,
) -> None:
    with strategies[placement].scope():
        model = Where()
    workers = {cluster.process("worker", index).pid for index in range(2)}
    seen: set[int] = set()
    # One worker may be so fast that nothing is left for the other.
    deadline = time.monotonic() + 60
    while seen != workers and time.monotonic() < deadline:
        predicted = model.predict(**_INPUT_KINDS[input_kind], verbose=0)
        seen |= set(predicted.tolist())
        assert seen <= workers
    assert seen == workers
