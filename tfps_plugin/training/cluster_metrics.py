"""`tfps.callbacks.ClusterMetrics`: the state of a job in TensorBoard."""

import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.telemetry.monitor import Monitor

_logger = logging.getLogger("tfps_plugin.training")

_STOP_TIMEOUT_SECONDS = 30.0

_OF_WORKERS = (
    "steps_per_second",
    "input_share",
    "compute_share",
    "wait_share",
    "staleness",
    "memory_bytes",
)
_OF_PS = (
    "num_bytes",
    "memory_bytes",
    "received_bytes_per_second",
    "sent_bytes_per_second",
    "updates_per_second",
)


class ClusterMetrics(keras.callbacks.Callback):
    """Writes the state of the job as scalars for TensorBoard.

    ```python
    model.fit(..., callbacks=[tfps.callbacks.ClusterMetrics("logs")])
    ```

    The scalars are those of `tfps.cluster_state`: speed of the job and of each
    worker, time shares, memory and traffic of each parameter server. Their step
    is the number of training steps that the cluster has completed.

    Args:
        log_dir: Folder of the logs. They go into its subfolder "cluster", so
            that it can be that of `keras.callbacks.TensorBoard`.
        every_seconds: Seconds between two looks at the job.

    Raises:
        ValueError: If `every_seconds` is not above zero.
        UnsupportedError: When training begins, if the model was not made under
            a `tfps.ParameterServerStrategy`.

    Threading: as any callback. It looks at the job on a thread of its own,
    which ends with `fit`, also if that raises an exception, and with the
    strategy.
    """

    def __init__(self, log_dir: Any, every_seconds: float = 10.0) -> None:
        """Creates the callback."""
        super().__init__()
        if not every_seconds > 0:
            raise ValueError(
                "every_seconds must be above zero. Received: "
                f"every_seconds={every_seconds!r}"
            )
        self._log_dir = os.path.join(os.fspath(log_dir), "cluster")
        self._every_seconds = every_seconds
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to look at the job."""
        self._stop()
        monitor = getattr(keras_compat.strategy_of(self.model), "monitor", None)
        if not isinstance(monitor, Monitor):
            raise errors.UnsupportedError(
                "ClusterMetrics shows a cluster. Expected a model that was "
                "made under the scope of a tfps.ParameterServerStrategy. "
                f"Received: model {self.model.name!r}, which was not. Leave "
                "the callback out."
            )
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(monitor, self._stopped),
            name="tfps-cluster-metrics",
            daemon=True,
        )
        self._thread.start()

    def on_train_end(self, logs: Any = None) -> None:
        """Writes the last state."""
        self._stop()

    def _stop(self) -> None:
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(_STOP_TIMEOUT_SECONDS)
        if thread.is_alive():
            _logger.warning(
                "ClusterMetrics has not written its last scalars. Expected it "
                "to end within %g s. Received: a thread that still looks at "
                "the job, or writes to %s. It ends with that.",
                _STOP_TIMEOUT_SECONDS,
                self._log_dir,
            )

    def _run(self, monitor: Monitor, stopped: threading.Event) -> None:
        with tf.device("/device:CPU:0"):
            writer = tf.summary.create_file_writer(self._log_dir)
        try:
            is_over = False
            while not is_over:
                is_over = stopped.wait(self._every_seconds)
                state = monitor.state()
                # `fit` has ended by an exception: nobody stops the callback.
                is_over = is_over or not state.job.is_running
                _write(writer, state)
        except (ReferenceError, errors.StrategySupersededError) as error:
            # `fit` learns of it by itself.
            _logger.info("ClusterMetrics ends, with its strategy: %s", error)
        finally:
            writer.close()


def _write(writer: Any, state: ClusterState) -> None:
    with writer.as_default(step=state.job.total_steps):
        for name, value in scalars(state):
            tf.summary.scalar(name, value)
    writer.flush()


def scalars(state: ClusterState) -> Iterator[tuple[str, float]]:
    """Yields names and values of what is known of a job. Pure.

    Args:
        state: The state of the job.
    """
    job = state.job
    found: list[tuple[str, float | None]] = [
        ("job/steps_per_second", job.steps_per_second),
        ("job/examples_per_second", job.examples_per_second),
        (
            "job/healthy_tasks",
            sum(task.health == "healthy" for task in state.tasks),
        ),
    ]
    for tasks, attributes in (
        (state.workers, _OF_WORKERS),
        (state.parameter_servers, _OF_PS),
    ):
        found += [
            (f"{task.job}_{task.index}/{name}", getattr(task, name))
            for task in tasks
            for name in attributes
        ]
    for name, value in found:
        if value is not None:
            yield name, float(value)
