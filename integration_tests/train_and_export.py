"""A chief that trains dynamic tables with backups and exports, and may die.

    python integration_tests/train_and_export.py FOLDER CLUSTER {grows,evicts}
        [--stacked] [--die-after STEP] [--die-at-sync NUMBER]

CLUSTER is a JSON object of the addresses of workers and ps. There is one table,
or two that are stacked and meet the same ids. Backups, exports and the results
of each table are in FOLDER. It kills itself when so many steps have been made,
or when an export that begins later writes the file of this number.
"""

import argparse
import json
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

BATCH = 8
WIDTH = 4
LEARNING_RATE = 0.5
FIRST_SLOT = 0.1
STEPS_BETWEEN_BACKUPS = 10
# New ids come all the time. Of those that have room for few, each example has
# two, and one of its own.
HOT = (-1, -2)
STEPS = {"grows": 80, "evicts": 200}
CAPACITY = {"grows": 2000, "evicts": 200}
# Tables by the name that their exports have, and how much larger they are.
ALONE = {"ids": 1}
STACKED = {"embed/ids": 1, "embed/more": 2}


def ids_of(kind: str) -> np.ndarray:
    """Returns the ids of all examples, in their order."""
    number = np.arange(STEPS[kind] * BATCH)
    if kind == "evicts":
        return np.stack(
            [np.full_like(number, one) for one in HOT] + [number], 1
        )
    random = np.random.default_rng(3)
    pool = random.integers(-(2**63), 2**63 - 1, 1000)
    places = random.random((len(number), 3)) * (20 + number[:, None])
    return pool[places.astype(int)]


def _model(kind: str, *, stacked: bool) -> tuple[keras.Model, Any]:
    """Returns a model of one table or two, and their layer."""
    eviction = tfps.layers.Eviction("least_recent")
    options: dict[str, Any] = {
        "eviction": eviction if kind == "evicts" else None,
        "combiner": "sum",
    }
    ids = keras.Input((3,), dtype="int64")
    if not stacked:
        alone = tfps.layers.DynamicEmbedding(
            WIDTH, "zeros", capacity=CAPACITY[kind], name="ids", **options
        )
        return keras.Model(ids, alone(ids)), alone
    tables = [
        tfps.layers.TableConfig(
            name.removeprefix("embed/"),
            None,
            WIDTH,
            "zeros",
            capacity=factor * CAPACITY[kind],
            **options,
        )
        for name, factor in STACKED.items()
    ]
    layer = tfps.layers.DistributedEmbedding(
        [
            tfps.layers.FeatureConfig(
                table.name, table, (None, 3), (None, WIDTH)
            )
            for table in tables
        ],
        name="embed",
    )
    rows = layer([ids] * len(tables))
    return keras.Model(ids, keras.layers.Concatenate()(rows)), layer


class _Death(keras.callbacks.Callback):
    """Records where training begins, and kills the program."""

    def __init__(self, after: int | None, at_sync: int | None) -> None:
        super().__init__()
        self._after = after
        self._at_sync = at_sync
        self._num_synced = 0
        self._sync = os.fsync
        self.began_at = -1

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.began_at < 0:
            self.began_at = int(self.model.optimizer.iterations)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._after is None or batch + 1 < self._after:
            return
        if self._at_sync is None:
            os.kill(os.getpid(), signal.SIGKILL)
        os.fsync = self._fsync  # type: ignore[assignment]

    def _fsync(self, file: Any) -> None:
        self._num_synced += 1
        if self._num_synced == self._at_sync:
            os.kill(os.getpid(), signal.SIGKILL)
        self._sync(file)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("cluster", type=json.loads)
    parser.add_argument("kind", choices=STEPS)
    parser.add_argument("--stacked", action="store_true")
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--die-at-sync", type=int)
    arguments = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(arguments.cluster), task_type="chief", task_id=0
    )
    strategy = tfps.ParameterServerStrategy(
        resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=tfps.Sync(),
    )
    with strategy.scope():
        model, layer = _model(arguments.kind, stacked=arguments.stacked)
        model.compile(
            keras.optimizers.Adagrad(LEARNING_RATE, FIRST_SLOT),
            lambda _, rows: -keras.ops.sum(rows, axis=1),
        )
        model.optimizer.build(model.trainable_variables)
    death = _Death(arguments.die_after, arguments.die_at_sync)
    ids = ids_of(arguments.kind)
    model.fit(
        ids,
        np.zeros((len(ids), 1)),
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[
            tfps.callbacks.BackupAndRestore(
                arguments.folder / "backup", save_freq=STEPS_BETWEEN_BACKUPS
            ),
            tfps.callbacks.ExportChanges(
                arguments.folder / "exported", save_freq=3
            ),
            death,
        ],
    )
    done: dict[str, Any] = {
        "began_at": death.began_at,
        "iterations": int(model.optimizer.iterations),
    }
    for name, result in _results(layer, model.optimizer):
        np.savez(arguments.folder / f"{name}.npz", **result, **done)


def _results(
    layer: Any, optimizer: keras.optimizers.Optimizer
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields name, ids, rows and slots of each table."""
    if isinstance(layer, tfps.layers.DynamicEmbedding):
        stack = layer._stack
    else:
        (stack,) = layer._rows_by_id
    embeddings, records = (
        keras.ops.convert_to_numpy(stack.variables[each])
        for each in ("embeddings", "records")
    )
    (slots,) = [
        keras.ops.convert_to_numpy(each)
        for each in optimizer.variables
        if each.shape == embeddings.shape
    ]
    space = stack.table.space
    for table in stack.tables:
        cells = space.cells_of(table.number, range(space.num_rows))
        rows = np.concatenate([np.array(each) for each in cells])
        rows = rows[records[rows, 1] > 0]
        yield (
            table.name,
            {
                "ids": records[rows, 0],
                "rows": embeddings[rows],
                "slots": slots[rows],
                "evicted": table.statistics()["evicted"],
            },
        )


if __name__ == "__main__":
    main()
