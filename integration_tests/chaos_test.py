"""Anything dies at any moment, and training comes to its end by itself.

    pytest integration_tests/chaos_test.py
    TFPS_CHAOS_KILLS=20 TFPS_CHAOS_SEED=7 pytest -s \\
        integration_tests/chaos_test.py

Who is killed is drawn from the seed, which is printed. The next kill comes when
the one before was survived: when the task is back and training has moved on.
"""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import textwrap

import pytest

_KILLS = int(os.environ.get("TFPS_CHAOS_KILLS", "4"))
_SEED = int(os.environ.get("TFPS_CHAOS_SEED", "1"))
_WORKERS, _PS = 3, 2
# How many lines of progress follow a kill before the next.
_LINES_BETWEEN = 2
_SECONDS_PER_KILL = 60

_SCRIPT = textwrap.dedent(
    """
    import os
    import sys

    import keras
    import numpy as np
    import tensorflow as tf

    import tfps_plugin as tfps

    folder, epochs, until = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    random = np.random.default_rng(0)
    IDS = random.integers(0, 300, (4096, 4)).astype("int32")
    TARGETS = (IDS[:, :1] % 2).astype("float32")

    def dataset_fn(context):
        rows = tf.data.Dataset.from_tensor_slices((IDS, TARGETS))
        return rows.shuffle(4096).repeat().batch(32)

    class Progress(keras.callbacks.Callback):
        seen = 0

        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1
            if self.seen % 25 == 0:
                print("progress", self.seen, flush=True)

        def on_epoch_end(self, epoch, logs=None):
            # The test says when it has killed enough.
            if os.path.exists(until):
                self.model.stop_training = True

    strategy = tfps.ParameterServerStrategy(
        variable_partitioner=tfps.partitioners.FixedShardsPartitioner(2)
    )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(300, 8),
            keras.layers.Flatten(),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ])
        model.compile(
            keras.optimizers.Adam(0.01),
            "binary_crossentropy",
            metrics=[keras.metrics.AUC(name="auc")],
        )
    model.fit(
        tfps.DatasetCreator(dataset_fn),
        epochs=epochs,
        steps_per_epoch=50,
        verbose=0,
        callbacks=[
            tfps.callbacks.BackupAndRestore(folder, save_freq=20),
            Progress(),
        ],
    )
    result = model.evaluate(IDS, TARGETS, batch_size=256, verbose=0,
                            return_dict=True)
    print("auc", result["auc"], "iterations",
          int(model.optimizer.iterations), flush=True)
    """
)


class _Run:
    """A job under `tfps run`, read line by line."""

    def __init__(self, tmp_path: pathlib.Path, epochs: int) -> None:
        script = tmp_path / "train.py"
        script.write_text(_SCRIPT)
        self.enough = tmp_path / "enough"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tfps_plugin", "run"),
                *("--workers", str(_WORKERS), "--ps", str(_PS)),
                *("--max-restarts", "1000"),
                str(script),
                *(str(tmp_path / "backup"), str(epochs), str(self.enough)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pids: dict[str, int] = {}
        self.lines: list[str] = []

    def read_until(self, pattern: str) -> re.Match[str]:
        """Reads up to the line that has `pattern` in it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            for name, pid in re.findall(
                r"((?:worker|ps) \d+|chief)(?: again)? \(pid (\d+)\)", line
            ):
                self.pids[name] = int(pid)
            if match := re.search(pattern, line):
                return match
        raise AssertionError(
            f"{pattern!r} never came:\n{''.join(self.lines[-200:])}"
        )

    def kill(self, name: str) -> None:
        """Kills a task, and waits until it is started again."""
        os.killpg(self.pids[name], signal.SIGKILL)
        self.read_until(rf"started {name} again")


@pytest.mark.timeout(120 + _SECONDS_PER_KILL * _KILLS)
def test_training_survives_every_kill(tmp_path: pathlib.Path) -> None:
    drawn = random.Random(_SEED)
    tasks = [f"worker {i}" for i in range(_WORKERS)]
    tasks += [f"ps {i}" for i in range(_PS)] + ["chief"]
    # Each at least once, if there are as many kills.
    victims = drawn.sample(tasks, min(_KILLS, len(tasks)))
    victims += drawn.choices(tasks, k=_KILLS - len(victims))
    print(f"\nseed {_SEED}: {', '.join(victims)}")
    run = _Run(tmp_path, epochs=100_000)
    try:
        run.read_until("progress")
        for victim in victims:
            run.kill(victim)
            for _ in range(_LINES_BETWEEN):
                run.read_until("progress")
            print(f"survived the loss of {victim}", flush=True)
        run.enough.touch()
        match = run.read_until(r"auc ([\d.]+) iterations (\d+)")
        assert run.process.wait(60) == 0
    finally:
        run.process.kill()
        run.process.communicate()
    auc, iterations = float(match[1]), int(match[2])
    print(f"auc {auc:.4f}, {iterations} iterations")
    assert auc > 0.99
    # What was lost is at most what was trained since the last backup.
    assert iterations >= 25
