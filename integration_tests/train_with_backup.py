"""A chief that trains with backups, and dies or stops at a given batch.

    python integration_tests/train_with_backup.py FOLDER CLUSTER
        [--die-at EPOCH BATCH] [--stop-at EPOCH BATCH]
        [--kill-before-restoring PID]
        [--consistency {async,sync,backup,bounded,local}]

CLUSTER is a JSON object of the addresses of workers and ps. Backups are in
FOLDER; the start of training and its result go to FOLDER/result.json.
"""

import argparse
import json
import os
import pathlib
import signal
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.recovery.checkpoints import part_files

ROWS = 200
BATCH = 8
STEPS = 40
EPOCHS = 3
STEPS_BETWEEN_BACKUPS = 10
# Values of `--consistency`.
RULES: dict[str, Any] = {
    "async": tfps.Async(),
    "sync": tfps.Sync(),
    "backup": tfps.Sync(backup_workers=1),
    "bounded": tfps.BoundedStaleness(2),
    "local": tfps.Async(local_steps=4),
}


class _Chronicle(keras.callbacks.Callback):
    """Records where training begins; dies or stops at the given batches."""

    def __init__(
        self,
        backup: Any,
        die_at: tuple[int, int] | None,
        stop_at: tuple[int, int] | None,
    ) -> None:
        super().__init__()
        self._backup = backup
        self._die_at = die_at
        self._stop_at = stop_at
        self._epoch = 0
        self.began_at: tuple[int, int, int] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.began_at is None:
            done = int(self.model.optimizer.iterations)
            self.began_at = (self._epoch, batch, done)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) == self._die_at:
            # Another test covers a death during a write.
            self._backup._manager.sync()
            os.kill(os.getpid(), signal.SIGKILL)
        if (self._epoch, batch) == self._stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)


def _kill_before_restoring(pid: int) -> None:
    """Kills a process when the first values are about to be restored."""
    original = part_files.on_every_device
    pids = [pid]

    def restore(*arguments: Any) -> Any:
        if pids:
            os.kill(pids.pop(), signal.SIGKILL)
        return original(*arguments)

    part_files.on_every_device = restore  # type: ignore[assignment]


def _data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    ids = random.integers(0, ROWS, (STEPS * BATCH, 4)).astype("int32")
    targets = ids.mean(axis=1, keepdims=True) / ROWS
    return ids, targets.astype("float32")


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("cluster", type=json.loads)
    parser.add_argument("--die-at", type=int, nargs=2)
    parser.add_argument("--stop-at", type=int, nargs=2)
    parser.add_argument("--kill-before-restoring", type=int)
    parser.add_argument("--consistency", choices=RULES, default="async")
    arguments = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(arguments.cluster), task_type="chief", task_id=0
    )
    strategy = tfps.ParameterServerStrategy(
        resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=RULES[arguments.consistency],
    )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(ROWS, 8),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
    backup = tfps.callbacks.BackupAndRestore(
        arguments.folder / "backup", save_freq=STEPS_BETWEEN_BACKUPS
    )
    chronicle = _Chronicle(
        backup,
        arguments.die_at and tuple(arguments.die_at),
        arguments.stop_at and tuple(arguments.stop_at),
    )
    if arguments.kill_before_restoring is not None:
        _kill_before_restoring(arguments.kill_before_restoring)
    ids, targets = _data()
    history = model.fit(
        ids,
        targets,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[backup, chronicle],
    )
    result = {
        "began_at": chronicle.began_at,
        "iterations": int(model.optimizer.iterations),
        "weights": [
            keras.ops.convert_to_numpy(v).tolist() for v in model.weights
        ],
        "losses": history.history["loss"],
        "is_finite": all(
            bool(np.isfinite(keras.ops.convert_to_numpy(v)).all())
            for v in (*model.variables, *model.optimizer.variables)
        ),
    }
    (arguments.folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
