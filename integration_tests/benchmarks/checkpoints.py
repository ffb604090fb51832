"""Measures the speed of checkpoints, and how long training waits for them.

    python -m integration_tests.benchmarks.checkpoints [--mebibytes 2048]

One table of that size on one worker and two ps, trained with SGD. In rounds:

- the same bytes are written to the same disk and read from it by plain NumPy;
- `tfps.Checkpoint` writes and restores them;
- during `fit`, a `tfps.CheckpointManager` saves a full checkpoint, and then an
  increment after training on 1 % of the rows. How long `save` holds up the
  program, the longest time without a step from then until all is written, and
  the longest without a checkpoint before; and the bytes of both.

Needs twice the table's size in memory, and two to three times on the disk.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

from .steps_watch import StepsWatch

_WIDTH = 32
_MEBIBYTE = 1 << 20
_BATCH = 512
_FIELDS = 8
_STEPS = 150


def main() -> None:
    """Runs it and prints medians and ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to write (default: temporary)")
    options = parser.parse_args()
    print(
        f"{options.mebibytes} MiB on 2 ps, {options.rounds} rounds; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        tfps.LocalCluster(num_workers=1, num_ps=2) as cluster,
    ):
        bench = _Bench(cluster, pathlib.Path(folder), options.mebibytes)
        for _ in range(options.rounds):
            bench.compare_speed()
            bench.save_in_fit()
        bench.close()
    bench.report()


class _Bench:
    """The model, and what was measured."""

    def __init__(
        self,
        cluster: tfps.LocalCluster,
        folder: pathlib.Path,
        mebibytes: int,
    ) -> None:
        self._folder = folder
        self._mebibytes = mebibytes
        self._rows = mebibytes * _MEBIBYTE // (4 * _WIDTH)
        self._strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        with self._strategy.scope():
            self._model = keras.Sequential(
                [
                    keras.Input((_FIELDS,), dtype="int32"),
                    keras.layers.Embedding(self._rows, _WIDTH),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            self._model.compile(keras.optimizers.SGD(0.001), "mse")
        self._measured: dict[str, list[float]] = {}
        # Loading and tracing at first use are not part of a checkpoint.
        self._fit()

    def compare_speed(self) -> None:
        """Writes and reads, plainly and as a checkpoint."""
        plain = self._folder / "plain"
        values = np.random.default_rng(0).random(
            self._mebibytes * _MEBIBYTE // 4, np.float32
        )
        write = self._time(lambda: values.tofile(plain))
        read = self._time(lambda: np.fromfile(plain, np.float32))
        plain.unlink()
        checkpoint = tfps.Checkpoint(model=self._model)
        prefix = self._folder / "one" / "ckpt"
        ours = self._time(lambda: checkpoint.write(prefix))
        restored = self._time(lambda: checkpoint.restore(prefix))
        shutil.rmtree(prefix.parent)
        for name, seconds in (
            ("plain write, MiB/s", write),
            ("checkpoint write, MiB/s", ours),
            ("plain read, MiB/s", read),
            ("checkpoint restore, MiB/s", restored),
        ):
            self._note(name, self._mebibytes / seconds)
        self._note("write: speed / plain", write / ours)
        self._note("restore: speed / plain", read / restored)

    def save_in_fit(self) -> None:
        """Saves a full checkpoint and an increment while training goes on."""
        folder = self._folder / "many"
        manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=self._model), folder, full_every=3
        )
        watch = StepsWatch(self._model.optimizer.iterations)
        watch.start()
        begin = time.perf_counter()
        self._fit()
        quiet = watch.longest_gap(begin, time.perf_counter())
        self._note("longest gap without a save, ms", 1000 * quiet)
        for name in ("full", "increment"):
            stride = 1
            if name == "increment":
                # The first increment has all changes since the full one.
                manager.save()
                manager.sync()
                stride = 100
                self._touch_every(stride)
            moments: dict[str, float] = {}
            prefix: list[str] = []

            def save(
                moments: dict[str, float] = moments,
                prefix: list[str] = prefix,
            ) -> None:
                moments["begin"] = time.perf_counter()
                prefix.append(manager.save())
                moments["returned"] = time.perf_counter()

            self._fit(save, stride)
            manager.sync()
            end = time.perf_counter()
            size = sum(
                path.stat().st_size
                for path in folder.rglob(f"{pathlib.Path(prefix[0]).name}.*")
            )
            self._note(
                f"{name}: save() returns after, ms",
                1000 * (moments["returned"] - moments["begin"]),
            )
            self._note(
                f"{name}: longest gap between steps, ms",
                1000 * watch.longest_gap(moments["begin"] - 1, end),
            )
            self._note(f"{name}: MiB on disk", size / _MEBIBYTE)
        watch.stop()
        manager.delete_all()

    def _touch_every(self, stride: int) -> None:
        """Changes every `stride`-th row."""
        table: Any = self._model.layers[0].embeddings.value
        rows = tf.range(0, self._rows, stride, dtype=tf.int64)
        table.scatter_add(tf.IndexedSlices(tf.ones([len(rows), _WIDTH]), rows))

    def _fit(
        self, action: Callable[[], None] | None = None, stride: int = 1
    ) -> None:
        """Trains on every `stride`-th row; acts after a third of the steps."""
        rows = self._rows // stride

        def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
            random = np.random.default_rng(1)
            ids = random.integers(0, rows, (_BATCH * 16, _FIELDS), np.int32)
            ids *= stride
            pairs = tf.data.Dataset.from_tensor_slices((ids, ids[:, :1] % 2))
            return pairs.repeat().batch(_BATCH)

        class At(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == _STEPS // 3 and action is not None:
                    action()

        self._model.fit(
            tfps.DatasetCreator(dataset),
            steps_per_epoch=_STEPS,
            verbose=0,
            callbacks=[At()],
        )

    def _time(self, run: Callable[[], object]) -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    def _note(self, name: str, value: float) -> None:
        self._measured.setdefault(name, []).append(value)

    def report(self) -> None:
        """Prints the table."""
        print(f"{'':44}{'median':>9}{'range':>20}")
        for name, values in self._measured.items():
            spread = f"{min(values):,.2f} to {max(values):,.2f}"
            print(f"{name:44}{statistics.median(values):9,.2f}{spread:>20}")

    def close(self) -> None:
        """Ends the coordinator."""
        tfps.ClusterCoordinator(self._strategy).close()


if __name__ == "__main__":
    main()
