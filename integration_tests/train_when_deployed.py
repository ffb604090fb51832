"""A program for deployed_test.py: trains until a file tells it to end."""

import argparse
import json
import pathlib
from typing import Any

import keras
import numpy as np

import tfps_plugin as tfps

_WEIGHTS = (3.0, -2.0, 0.5, 1.0)


class _Watch(keras.callbacks.Callback):
    """Says where training begins; ends it when the file is there."""

    def __init__(self, stop: pathlib.Path) -> None:
        super().__init__()
        self._stop = stop

    def on_train_begin(self, logs: Any = None) -> None:
        print("begins at", int(self.model.optimizer.iterations))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 20:
            print("trains")
        if self._stop.exists():
            self.model.stop_training = True


def main() -> None:
    """Trains a linear model, and prints events and its weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backup-dir", type=pathlib.Path, required=True)
    parser.add_argument("--text", required=True)
    options = parser.parse_args()
    print("text", json.dumps(options.text))
    tfps.init()
    strategy = tfps.ParameterServerStrategy()
    coordinator = tfps.ClusterCoordinator(strategy)
    coordinator.events.subscribe(
        lambda event: print("seen", type(event).__name__, flush=True)
    )
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, use_bias=False)]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse")
    x = np.random.default_rng(1).normal(size=(4000, 4)).astype("float32")
    y = x @ np.array(_WEIGHTS, "float32")[:, np.newaxis]
    model.fit(
        x,
        y,
        batch_size=8,
        # Until the file is there.
        epochs=100_000,
        verbose=0,
        callbacks=[
            tfps.callbacks.BackupAndRestore(
                str(options.backup_dir), save_freq=50
            ),
            _Watch(options.backup_dir / "stop"),
        ],
    )
    names = ("workers_left", "workers_lost", "steps_again")
    counts = {name: coordinator.counters.value(name) for name in names}
    weights = model.get_weights()[0][:, 0].tolist()
    print("ends", json.dumps({"weights": weights, **counts}))


if __name__ == "__main__":
    main()
