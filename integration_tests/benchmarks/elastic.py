"""Measures training while workers and parameter servers come and go.

    python -m integration_tests.benchmarks.elastic [--mebibytes 2048]

Trains an Embedding of that size on two workers and two ps, inside fit(). Then
another thread adds a ps, removes one, adds a worker, removes one. Prints, for
each of these, its time, the steps a second meanwhile as a part of those before,
the longest time without a finished step, and the memory of the ps before and
afterwards, at its highest in between.
"""

import argparse
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

from .steps_watch import StepsWatch

_WIDTH = 32
_CONSISTENCIES: dict[str, tfps.Async | tfps.Sync | tfps.BoundedStaleness] = {
    "async": tfps.Async(),
    "sync": tfps.Sync(),
    "bounded": tfps.BoundedStaleness(8),
}
_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.001),
    "adagrad": lambda: keras.optimizers.Adagrad(0.001),
}
_QUIET_SECONDS = 10.0


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument(
        "--consistency", choices=[*_CONSISTENCIES], default="async"
    )
    parser.add_argument("--optimizer", choices=[*_OPTIMIZERS], default="sgd")
    options = parser.parse_args()
    rows = options.mebibytes * (1 << 20) // (4 * _WIDTH)

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        random = np.random.default_rng(context.input_pipeline_id)
        ids = random.integers(0, rows, (1 << 16, 4)).astype("int32")
        pairs = tf.data.Dataset.from_tensor_slices((ids, ids[:, :1] % 2))
        return pairs.repeat().batch(64)

    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            consistency=_CONSISTENCIES[options.consistency],
        )
        coordinator = tfps.ClusterCoordinator(strategy)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((4,), dtype="int32"),
                    keras.layers.Embedding(rows, _WIDTH),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile(_OPTIMIZERS[options.optimizer](), "mse")
        watch = StepsWatch(model.optimizer.iterations)
        changes = _Changes(cluster, coordinator, watch)
        watch.start()
        model.fit(
            tfps.DatasetCreator(dataset),
            steps_per_epoch=4000,
            epochs=1 << 20,
            verbose=0,
            callbacks=[changes],
        )
        watch.stop()
        print(changes.table())
        coordinator.close()


class _Changes(keras.callbacks.Callback):
    """Makes the changes on a thread, and then ends the training."""

    def __init__(
        self,
        cluster: tfps.LocalCluster,
        coordinator: tfps.ClusterCoordinator,
        watch: StepsWatch,
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._coordinator = coordinator
        self._watch = watch
        self._thread = threading.Thread(target=self._run)
        self._made: list[tuple[str, float, float, str, str]] = []
        self._events: list[Any] = []
        coordinator.events.subscribe(self._events.append)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 100 and self._thread.ident is None:
            self._thread.start()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = not self._thread.is_alive()

    def _run(self) -> None:
        pause = threading.Event()
        cluster, coordinator = self._cluster, self._coordinator
        address = cluster.add_ps()
        worker = cluster.add_worker()
        for name, change in (
            ("ps added", lambda: coordinator.add_ps(address)),
            ("ps removed", lambda: coordinator.remove_ps(0)),
            ("worker added", lambda: coordinator.add_worker(worker)),
            ("worker removed", lambda: coordinator.remove_worker(0)),
        ):
            pause.wait(_QUIET_SECONDS)
            before = self._memory()
            began_at = time.perf_counter()
            change()
            ended_at = time.perf_counter()
            pause.wait(_QUIET_SECONDS)
            self._made.append(
                (name, began_at, ended_at, before, self._memory())
            )

    def _memory(self) -> str:
        """Returns the memory of each ps now, and at its highest, in MB."""
        found = []
        for index in self._coordinator.ps_indices:
            pid = self._cluster.process("ps", index).pid
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            fields = dict(
                line.split(":", 1)
                for line in status.splitlines()
                if ":" in line
            )
            now, most = (
                int(fields[name].split()[0]) / 1e3
                for name in ("VmRSS", "VmHWM")
            )
            found.append(f"{index}: {now:.0f} ({most:.0f})")
        return ", ".join(found)

    def table(self) -> str:
        """Returns the figures."""
        lines = [
            f"{'':16}{'seconds':>9}{'speed':>8}{'longest gap':>13}"
            "  memory of each ps in MB (highest)"
        ]
        for name, began_at, ended_at, before, after in self._made:
            usual = self._watch.rate(began_at - _QUIET_SECONDS, began_at)
            end = ended_at + _QUIET_SECONDS / 2
            speed = self._watch.rate(began_at, end) / usual
            gap = self._watch.longest_gap(began_at - 1, end)
            lines.append(
                f"{name:16}{ended_at - began_at:9.1f}{speed:8.2f}{gap:13.2f}"
                f"  {before} -> {after}"
            )
        lines += [
            str(each)
            for each in self._events
            if isinstance(each, tfps.events.ParameterServersChanged)
        ]
        return "\n".join(lines)


if __name__ == "__main__":
    main()
