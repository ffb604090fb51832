"""Measures the stall of synchronous training when a task is lost.

    python -m integration_tests.benchmarks.sync_losses [--rounds 5]

Three workers and two ps make small steps together. In turns, a worker is killed
with SIGKILL, a worker is stopped with SIGSTOP, and a ps is killed, which goes
back to a checkpoint; each is back before the next one is lost. Prints the
longest time without a step after each: median and range. Steps are seen by
reading the optimizer's counter on the ps, about a hundred times a second.
"""

import argparse
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.monitoring import events

from .steps_watch import StepsWatch

_WORKERS = 3
_LOST_WORKER, _LOST_PS = 2, 1
# How long a worker may be silent before it is probed, and then given up.
_PATIENCE_SECONDS = 3.0
_STEPS_OF_AN_EPOCH = 2_000
_MOST_EPOCHS = 1_000
# Steps that are seen before a task is lost, and after it is back.
_STEADY_STEPS = 200
_WAIT_SECONDS = 300.0


def _dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    random = np.random.default_rng(context.input_pipeline_id)
    x = random.normal(size=(512, 32)).astype("float32")
    pairs = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1)))
    return pairs.repeat().batch(32)


class _Counter:
    """The optimizer's counter, read without waiting for steps in flight."""

    def __init__(self, iterations: Any) -> None:
        self._variable = iterations.value

    def numpy(self) -> np.ndarray:
        return tf.raw_ops.ReadVariableOp(
            resource=self._variable.own_handle, dtype=self._variable.dtype
        ).numpy()


class _Trial(threading.Thread):
    """Loses tasks, one after the other, while `fit` runs elsewhere."""

    def __init__(
        self,
        cluster: tfps.LocalCluster,
        coordinator: tfps.ClusterCoordinator,
        watch: StepsWatch,
        num_rounds: int,
    ) -> None:
        super().__init__(daemon=True)
        self.is_over = False
        self.error: BaseException | None = None
        self.stalls: dict[str, list[float]] = {}
        self._cluster = cluster
        self._coordinator = coordinator
        self._watch = watch
        self._num_rounds = num_rounds
        self._never = threading.Event()
        self._num_recovered = 0
        coordinator.events.subscribe(self._note)

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.ParameterServerRecovered):
            self._num_recovered += 1

    def run(self) -> None:
        try:
            for _ in range(self._num_rounds):
                self._lose("a worker is killed", self._kill_worker)
                self._lose("a worker is stopped", self._stop_worker)
                self._lose("a ps is killed", self._kill_ps)
        except BaseException as error:
            self.error = error
        finally:
            self.is_over = True

    def _lose(self, name: str, lose: Callable[[], None]) -> None:
        self._wait_for_steps()
        begun = time.perf_counter()
        lose()
        ended = time.perf_counter()
        stall = self._watch.longest_gap(begun - 0.5, ended)
        self.stalls.setdefault(name, []).append(stall)

    def _kill_worker(self) -> None:
        self._cluster.kill("worker", _LOST_WORKER)
        self._wait_until(lambda: self._coordinator.absent_workers)
        self._wait_for_steps()
        self._cluster.start("worker", _LOST_WORKER)
        self._wait_until(lambda: not self._coordinator.absent_workers)

    def _stop_worker(self) -> None:
        process = self._cluster.process("worker", _LOST_WORKER)
        process.send_signal(signal.SIGSTOP)
        try:
            self._wait_until(lambda: self._coordinator.absent_workers)
            self._wait_for_steps()
        finally:
            process.send_signal(signal.SIGCONT)
        self._wait_until(lambda: not self._coordinator.absent_workers)

    def _kill_ps(self) -> None:
        before = self._num_recovered
        self._cluster.kill("ps", _LOST_PS)
        self._cluster.start("ps", _LOST_PS)
        self._wait_until(lambda: self._num_recovered > before)
        self._wait_for_steps()

    def _wait_for_steps(self) -> None:
        """Waits until many more steps were seen."""
        seen = self._watch.seen
        made = [n for _, n in seen[-1:]]
        self._wait_until(
            lambda: seen and seen[-1][1] >= sum(made) + _STEADY_STEPS
        )

    def _wait_until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("Training does not go on.")
            self._never.wait(0.01)


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    num_rounds = parser.parse_args().rounds
    with (
        tfps.LocalCluster(num_workers=_WORKERS, num_ps=2) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver, consistency=tfps.Sync()
        )
        coordinator = tfps.ClusterCoordinator(
            strategy, patience_seconds=_PATIENCE_SECONDS
        )
        with strategy.scope():
            model = keras.Sequential(
                [keras.layers.Dense(64, activation="relu") for _ in range(2)]
                + [keras.layers.Dense(1)]
            )
            model.compile(keras.optimizers.SGD(0.001), "mse")
        data = tfps.DatasetCreator(_dataset)
        model.fit(data, steps_per_epoch=_STEADY_STEPS, verbose=0)
        manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), folder)
        manager.save()
        manager.sync()
        watch = StepsWatch(_Counter(model.optimizer.iterations))
        trial = _Trial(cluster, coordinator, watch, num_rounds)
        watch.start()
        trial.start()

        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.model.stop_training = trial.is_over

        model.fit(
            data,
            epochs=_MOST_EPOCHS,
            steps_per_epoch=_STEPS_OF_AN_EPOCH,
            verbose=0,
            callbacks=[Stop()],
        )
        watch.stop()
        coordinator.close()
    if trial.error is not None:
        raise trial.error
    print(f"patience_seconds={_PATIENCE_SECONDS:g}, {_WORKERS} workers, 2 ps")
    print(f"{'longest time without a step':30}{'median':>8}{'range':>16}")
    for name, stalls in trial.stalls.items():
        spread = f"{min(stalls):.2f} to {max(stalls):.2f}"
        print(f"{name:30}{statistics.median(stalls):6.2f} s{spread:>16}")


if __name__ == "__main__":
    main()
