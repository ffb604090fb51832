"""Measures the stall of training when a worker is killed inside fit().

    python -m integration_tests.benchmarks.worker_loss

Trains a small model on two workers and a ps, kills worker 0 with SIGKILL,
starts it again, and prints the longest time without a step around each, beside
the longest while nothing happened. Steps are seen by reading the optimizer's
counter on the ps, about a hundred times a second.
"""

import argparse
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.monitoring import events

from .steps_watch import StepsWatch


def _dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    x = np.random.default_rng(context.input_pipeline_id).normal(size=(512, 32))
    x = x.astype("float32")
    return (
        tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1)))
        .repeat()
        .batch(32)
    )


class _At(keras.callbacks.Callback):
    def __init__(self, actions: dict[int, Any]) -> None:
        super().__init__()
        self._actions = actions

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch in self._actions:
            self._actions.pop(batch)()


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12_000)
    steps = parser.parse_args().steps
    moments: dict[str, float] = {}
    with tfps.LocalCluster(num_workers=2, num_ps=1) as cluster:
        strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
        coordinator = tfps.ClusterCoordinator(strategy)

        def note(event: events.Event) -> None:
            moments[type(event).__name__] = time.perf_counter()

        coordinator.events.subscribe(note)
        with strategy.scope():
            model = keras.Sequential(
                [keras.layers.Dense(64, activation="relu") for _ in range(2)]
                + [keras.layers.Dense(1)]
            )
            model.compile(keras.optimizers.SGD(0.001), "mse")
        data = tfps.DatasetCreator(_dataset)
        model.fit(data, steps_per_epoch=200, verbose=0)

        def kill() -> None:
            moments["kill"] = time.perf_counter()
            cluster.kill("worker", 0)

        def start() -> None:
            moments["start"] = time.perf_counter()
            cluster.start("worker", 0)

        watch = StepsWatch(model.optimizer.iterations)
        watch.start()
        begin = time.perf_counter()
        before = int(model.optimizer.iterations.numpy())
        model.fit(
            data,
            steps_per_epoch=steps,
            verbose=0,
            callbacks=[_At({steps // 3: kill, steps // 2: start})],
        )
        end = time.perf_counter()
        watch.stop()
        done = int(model.optimizer.iterations.numpy()) - before
        coordinator.close()
    killed = moments["kill"]
    print(f"asked for {steps} steps; the counter says {done}")
    print(
        f"worker 0 was found lost after "
        f"{1000 * (moments['WorkerLost'] - killed):.0f} ms"
    )
    back = moments.get("WorkerReadmitted")
    if back is not None:
        print(f"it was back {back - moments['start']:.1f} s after its start")
    print(f"{'':34}{'longest gap':>14}{'steps/s':>10}")
    for name, a, b in (
        ("two workers, before the kill", begin + 0.5, killed),
        ("the second after the kill", killed, killed + 1.0),
        ("one worker, until the start", killed, moments["start"]),
        ("from the start to the end", moments["start"], end),
    ):
        gap, rate = watch.longest_gap(a, b), watch.rate(a, b)
        print(f"{name:34}{1000 * gap:11.0f} ms{rate:10.0f}")


if __name__ == "__main__":
    main()
