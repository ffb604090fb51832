"""Measures the stall of training when a parameter server dies inside fit().

    python -m integration_tests.benchmarks.ps_loss [--mebibytes 256]

Trains an Embedding of that size on two workers and two ps, with a checkpoint.
Kills ps 1 with SIGKILL and starts it again at once, five times, and prints how
long it took until it was found lost, until its server answered again (most of
which is the import of TensorFlow), until its variables were restored, and until
the first step after that.
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.monitoring import events

from .steps_watch import StepsWatch

_WIDTH = 32
_KILLS = 5
_STEPS_BETWEEN = 400


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=256)
    rows = parser.parse_args().mebibytes * (1 << 20) // (4 * _WIDTH)
    moments: list[dict[str, float]] = []

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        random = np.random.default_rng(context.input_pipeline_id)
        ids = random.integers(0, rows, (4096, 4)).astype("int32")
        pairs = tf.data.Dataset.from_tensor_slices((ids, ids[:, :1] % 2))
        return pairs.repeat().batch(64)

    with (
        tfps.LocalCluster(num_workers=2, num_ps=2) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        coordinator = tfps.ClusterCoordinator(strategy)

        def note(event: events.Event) -> None:
            if moments:
                name = type(event).__name__
                moments[-1].setdefault(name, time.perf_counter())

        coordinator.events.subscribe(note)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((4,), dtype="int32"),
                    keras.layers.Embedding(rows, _WIDTH),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile(keras.optimizers.SGD(0.001), "mse")
        manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), folder)
        manager.save()
        manager.sync()

        class Kill(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch % _STEPS_BETWEEN == _STEPS_BETWEEN // 2:
                    moments.append({"killed": time.perf_counter()})
                    cluster.kill("ps", 1)
                    cluster.start("ps", 1)
                    cluster.wait_until_ready()
                    moments[-1]["answers"] = time.perf_counter()

        watch = StepsWatch(model.optimizer.iterations)
        watch.start()
        model.fit(
            tfps.DatasetCreator(dataset),
            steps_per_epoch=_KILLS * _STEPS_BETWEEN,
            verbose=0,
            callbacks=[Kill()],
        )
        watch.stop()
        coordinator.close()
    print(f"{'seconds after the kill':30}{'median':>8}{'range':>16}")
    for name, label in (
        ("ParameterServerLost", "found lost"),
        ("answers", "its server answers again"),
        ("ParameterServerRecovered", "its variables are restored"),
    ):
        _print(label, [m[name] - m["killed"] for m in moments])
    _print(
        "the first step",
        [
            watch.first_after(m["ParameterServerRecovered"]) - m["killed"]
            for m in moments
        ],
    )


def _print(label: str, seconds: list[float]) -> None:
    spread = f"{min(seconds):.1f} to {max(seconds):.1f}"
    print(f"{label:30}{statistics.median(seconds):8.1f}{spread:>16}")


if __name__ == "__main__":
    main()
