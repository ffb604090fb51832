"""Measures the memory of the chief and each ps for saving and loading a table.

    python -m integration_tests.benchmarks.saving_memory [--mebibytes 2048]

Trains a model with an Embedding of that size on one worker and two ps for some
steps, saves it and loads it again, in each form in a run of its own: a `.keras`
file, a `.weights.h5` file, a checkpoint of TensorFlow's, and a SavedModel.
After each load it compares rows, some of which were changed before. A
SavedModel is not loaded into the model, but called by another process, without
a cluster. Prints the resident memory of the chief, each ps and that process
before, and the increase at the peak, in MiB.

Needs twice the table's size in memory, and once or twice on the disk.
"""

import argparse
import dataclasses
import multiprocessing
import os
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

_WIDTH = 64
_MEBIBYTE = 1 << 20
_BATCH = 256
_FIELDS = 4
_FORMS = ("keras", "weights.h5", "checkpoint", "export")


@dataclasses.dataclass(frozen=True)
class _Line:
    """One line of the table that is printed."""

    form: str
    phase: str
    seconds: float
    before: list[float]
    growth: list[float]


def main() -> None:
    """Runs all forms and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--forms", nargs="*", default=_FORMS, choices=_FORMS)
    options = parser.parse_args()
    rows = options.mebibytes * _MEBIBYTE // (4 * _WIDTH)
    print(
        f"table of {rows:,} x {_WIDTH} float32 ({options.mebibytes} MiB) on "
        f"2 ps; load {os.getloadavg()[0]:.1f}\n"
    )
    columns = "".join(
        f" |{who:>6}:{'before':>7}{'growth':>7}"
        for who in ("chief", "ps 0", "ps 1")
    )
    print(f"{'':12}{'':6}{'s':>7}{columns}")
    for form in options.forms:
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder, f"model.{form}"))
            lines = _in_own_process(_measure, form, path, rows)
            if form == "export":
                lines += _in_own_process(_call, path)
        for line in lines:
            columns = "".join(
                f" |{before:14,.0f}{growth:+7,.0f}"
                for before, growth in zip(line.before, line.growth, strict=True)
            )
            print(
                f"{line.form:12}{line.phase:6}{line.seconds:7.1f}{columns}",
                flush=True,
            )


def _in_own_process(
    function: Callable[..., list[_Line]], *arguments: Any
) -> list[_Line]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


class _Meter:
    """Resident memory of some processes."""

    def __init__(self, form: str, pids: list[int]) -> None:
        self._form = form
        self._folders = [pathlib.Path(f"/proc/{pid}") for pid in pids]

    def measure(self, phase: str, run: Callable[[], object]) -> _Line:
        """Runs a phase and returns the memory that it took."""
        before = [self._mebibytes(folder, "VmRSS") for folder in self._folders]
        for folder in self._folders:
            # This makes the kernel count the peak from now on.
            (folder / "clear_refs").write_text("5")
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        peaks = [self._mebibytes(folder, "VmHWM") for folder in self._folders]
        growth = [peak - now for peak, now in zip(peaks, before, strict=True)]
        return _Line(self._form, phase, seconds, before, growth)

    def _mebibytes(self, folder: pathlib.Path, name: str) -> float:
        for line in (folder / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"{folder}/status has no line {name}")


def _measure(form: str, path: str, rows: int) -> list[_Line]:
    import tfps_plugin as tfps

    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        # Modules that load at first use are not part of the table's memory.
        with strategy.scope():
            small = _trained_model(1000)
        save, load = _calls(form, small, f"{path}.small.{form}")
        save()
        load()
        with strategy.scope():
            model = _trained_model(rows)
        servers = [cluster.process("ps", i).pid for i in range(2)]
        meter = _Meter(form, [os.getpid(), *servers])
        save, load = _calls(form, model, path)
        lines = [meter.measure("save", save)]
        if form != "export":
            truth = _change_rows(model)
            lines.append(meter.measure("load", load))
            _require_rows(model, truth)
        tfps.ClusterCoordinator(strategy).close()
    return lines


def _calls(
    form: str, model: Any, path: str
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns functions that save and load a model in a form."""
    import tensorflow as tf

    if form == "keras":
        return lambda: model.save(path), lambda: model.load_weights(path)
    if form == "weights.h5":
        return (
            lambda: model.save_weights(path),
            lambda: model.load_weights(path),
        )
    if form == "checkpoint":
        checkpoint = tf.train.Checkpoint(model=model)
        return (
            lambda: checkpoint.write(path),
            lambda: checkpoint.read(path).assert_consumed(),
        )
    return lambda: model.export(path, verbose=False), lambda: None


def _call(path: str) -> list[_Line]:
    """Loads a SavedModel without a cluster, and calls it."""
    import tensorflow as tf

    def load() -> None:
        model = tf.saved_model.load(path)
        model.serve(tf.zeros([1, _FIELDS], tf.int32))

    return [_Meter("export", [os.getpid()]).measure("plain", load)]


def _trained_model(rows: int) -> Any:
    import keras
    import numpy as np
    import tensorflow as tf

    import tfps_plugin as tfps

    model = keras.Sequential(
        [
            keras.Input((_FIELDS,), dtype="int32"),
            keras.layers.Embedding(rows, _WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("sgd", "binary_crossentropy")

    def dataset(context: Any = None) -> tf.data.Dataset:
        random = np.random.default_rng(3)
        ids = random.integers(0, rows, (_BATCH, _FIELDS), np.int32)
        targets = np.ones((_BATCH, 1), "float32")
        examples = tf.data.Dataset.from_tensor_slices((ids, targets))
        return examples.batch(_BATCH).repeat()

    model.fit(tfps.DatasetCreator(dataset), steps_per_epoch=5, verbose=0)
    return model


def _change_rows(model: Any) -> Any:
    """Changes some rows of the table; returns their earlier values."""
    import tensorflow as tf

    rows, width = model.layers[0].embeddings.shape
    ids = tf.range(0, rows, rows // 100)
    table = model.layers[0].embeddings.value
    truth = tf.gather(table, ids).numpy()
    table.scatter_update(tf.IndexedSlices(tf.ones([len(ids), width]), ids))
    return truth


def _require_rows(model: Any, truth: Any) -> None:
    import numpy as np
    import tensorflow as tf

    rows = model.layers[0].embeddings.shape[0]
    ids = tf.range(0, rows, rows // 100)
    found = tf.gather(model.layers[0].embeddings.value, ids).numpy()
    np.testing.assert_array_equal(found, truth)


if __name__ == "__main__":
    main()
