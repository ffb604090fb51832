"""Tests of a program in the cells of a notebook, in a kernel of its own."""

import contextlib
import json
import os
import pathlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import nbclient
import nbformat
import pytest

_ROOT = pathlib.Path(__file__).parent.parent
_CELL_SECONDS = 120
# Time for a task to end after its chief.
_END_SECONDS = 5.0

_DATA = """
import os
import signal

import keras
import numpy as np

import tfps_plugin as tfps

x = np.random.default_rng(0).normal(size=(512, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
"""
_STRATEGY = """
strategy = tfps.ParameterServerStrategy()
"""
_TRAIN = """
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
model.fit(x, y, batch_size=32, epochs=3)
float(model.evaluate(x, y, verbose=0))
"""
_EXPLAIN = """
strategy.explain(model)
"""
_TABLE = """
print(strategy.explain(model, print_fn=None))
"""
# A front end does this for "interrupt the kernel".
_INTERRUPT = """
class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            os.kill(os.getpid(), signal.SIGINT)

model.fit(x, y, epochs=1_000_000, verbose=0, callbacks=[Interrupt()])
"""
_GO_ON = """
before = int(model.optimizer.iterations)
model.fit(x, y, batch_size=32, epochs=1, verbose=0)
earlier = model
int(model.optimizer.iterations) - before
"""
_EARLIER = """
earlier.fit(x, y, verbose=0)
float(earlier.evaluate(x, y, verbose=0))
"""
_TASKS = """
from tfps_plugin.cluster import local_cluster

cluster = local_cluster.embedded_cluster()
[
    cluster.process(task.job, task.index).pid
    for task in cluster.cluster_spec.serving_tasks
]
"""


class Notebook:
    """An open, running notebook."""

    def __init__(self, client: nbclient.NotebookClient) -> None:
        self._client = client

    def run(self, source: str) -> str:
        """Runs a new cell at the end.

        Args:
            source: Its code.

        Returns:
            The cell's standard output, and its value.

        Raises:
            CellExecutionError: If the cell raises.
        """
        cells = self._client.nb.cells
        cells.append(nbformat.v4.new_code_cell(source))
        cell = self._client.execute_cell(cells[-1], len(cells) - 1)
        shown = [
            output.text if "text" in output else output.data["text/plain"]
            for output in cell.outputs
            if output.get("name") != "stderr"
        ]
        return "".join(shown)


@contextlib.contextmanager
def _open_notebook() -> Iterator[Notebook]:
    """Yields an empty notebook; ends its kernel, as when it is closed."""
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(), timeout=_CELL_SECONDS
    )
    with client.setup_kernel(env={**os.environ, "PYTHONPATH": str(_ROOT)}):
        yield Notebook(client)


def _is_running(process_id: int) -> bool:
    try:
        status = pathlib.Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_cells_train_are_interrupted_and_run_again() -> None:
    with _open_notebook() as notebook:
        notebook.run(_DATA)
        notebook.run(_STRATEGY)
        trained = notebook.run(_TRAIN)
        assert "Epoch 3/3" in trained
        assert float(trained.splitlines()[-1]) < 0.1
        table = notebook.run(_TABLE)
        assert "values travel between tasks" in table
        assert notebook.run(_EXPLAIN) == table, "once"

        with pytest.raises(nbclient.exceptions.CellExecutionError) as caught:
            notebook.run(_INTERRUPT)
        assert caught.value.ename == "KeyboardInterrupt"
        assert int(notebook.run(_GO_ON)) == 512 // 32

        tasks = json.loads(notebook.run(_TASKS))
        # Both cells run once more: another strategy, on the same cluster.
        notebook.run(_STRATEGY)
        assert float(notebook.run(_TRAIN).splitlines()[-1]) < 0.1
        assert json.loads(notebook.run(_TASKS)) == tasks
        assert float(notebook.run(_EARLIER)) < 0.1
        assert len(tasks) == 3
        assert all(map(_is_running, tasks))
    deadline = time.monotonic() + _END_SECONDS
    while any(map(_is_running, tasks)):
        assert time.monotonic() < deadline, "it outlives its kernel"
        threading.Event().wait(0.02)


def test_the_quickstart_runs_from_top_to_bottom(tmp_path: pathlib.Path) -> None:
    read: Any = nbformat.read(_ROOT / "examples" / "quickstart.ipynb", 4)
    nbformat.validate(read)
    code = [cell for cell in read.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code), "leave outputs out"
    program = (_ROOT / "examples" / "quickstart.py").read_text()
    shown = "".join("".join(cell.source.split()) for cell in code)
    for line in program.splitlines():
        assert "".join(line.split()) in shown, "it is another program"
    client = nbclient.NotebookClient(
        read,
        timeout=_CELL_SECONDS,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    # The environment of the kernel that it starts.
    client.execute(env={**os.environ, "PYTHONPATH": str(_ROOT)})
    *_, loaded = code
    (result,) = (
        output.data["text/plain"]
        for output in loaded.outputs
        if output.output_type == "execute_result"
    )
    most_are_even, most_are_odd = map(float, re.findall(r"\d+\.\d*", result))
    assert most_are_even > 0.9 > 0.1 > most_are_odd
