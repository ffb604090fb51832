"""A training script that `tfps plan` rehearses.

The first argument is the number of rows of its table; the second, if there is
one, the number of those that stay in memory. Tests make the same model on a
real cluster.
"""

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

WIDTH = 16
BATCH = 64


def options() -> dict[str, Any]:
    """Returns options of the strategy: the table is cut into two."""
    return {
        "variable_partitioner": tfps.partitioners.MinSizePartitioner(
            16 << 10, max_shards=2
        ),
        # "auto" asks how fast the machine is at the moment.
        "sparse_update": "lazy",
    }


def ids(num_rows: int) -> np.ndarray:
    """Returns the ids of all batches: half of the first one are repeated."""
    chosen = np.random.default_rng(5).integers(0, num_rows, 10 * BATCH)
    chosen[: BATCH // 2] = chosen[0]
    return chosen


def dataset(num_rows: int) -> tf.data.Dataset:
    """Returns batches of ids and targets."""
    chosen = ids(num_rows)
    targets = np.sin(chosen).astype(np.float32)[:, None]
    return tf.data.Dataset.from_tensor_slices((chosen, targets)).batch(BATCH)


def make(num_rows: int) -> keras.Model:
    """Returns the compiled model."""
    model = keras.Sequential(
        [
            keras.Input((), dtype="int64"),
            keras.layers.Embedding(num_rows, WIDTH),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


if __name__ == "__main__":
    rows = int(sys.argv[1])
    on_disk = {}
    if len(sys.argv) > 2:
        on_disk = {"embeddings": tfps.TieredStorage(int(sys.argv[2]))}
    strategy = tfps.ParameterServerStrategy(**options(), table_storage=on_disk)
    with strategy.scope():
        planned = make(rows)
    planned.fit(tfps.DatasetCreator(lambda context: dataset(rows)), epochs=2)
    print("It has trained, and must not have.")
