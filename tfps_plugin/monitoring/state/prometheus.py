"""State of a job as metrics of Prometheus.

`prometheus_client` writes them; it comes with `tfps_plugin[monitoring]`. Names
follow the conventions of Prometheus: base units, `_total` for counters.
"""

from collections.abc import Iterator
from typing import Any

from tfps_plugin.monitoring.state.cluster_state import HEALTHY
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.cluster_state import TaskState

# Name of the metric -> attribute, and what it says.
_OF_TASKS = {
    "uptime_seconds": ("uptime_seconds", "Time since the process began."),
    "processors": ("processors", "Processors that the process uses."),
    "memory_bytes": ("memory_bytes", "Resident memory of the process."),
    "memory_limit_bytes": ("memory_limit_bytes", "Memory that it may use."),
    "received_bytes_per_second": (
        "received_bytes_per_second",
        "Bytes that arrive in a second.",
    ),
    "sent_bytes_per_second": (
        "sent_bytes_per_second",
        "Bytes that leave in a second.",
    ),
}
_OF_WORKERS = {
    "steps_per_second": ("steps_per_second", "Steps in a second."),
    "step_seconds": ("seconds_per_step", "Time of a step."),
    "input_share": ("input_share", "Share of it that waits for input."),
    "compute_share": ("compute_share", "Share of it that computes."),
    "wait_share": ("wait_share", "Share of it that waits for others."),
    "closures_in_flight": ("closures_in_flight", "Functions that it runs."),
    "staleness_steps": ("staleness", "Staleness of its updates, in steps."),
}
_OF_PS = {
    "variable_bytes": ("num_bytes", "Bytes of variables and slots."),
    "table_rows": ("num_rows", "Rows of tables."),
    "updates_per_second": ("updates_per_second", "Updates in a second."),
}
_OF_JOB = {
    "running": ("is_running", "1 while fit, evaluate or predict runs."),
    "epoch": ("epoch", "Number of the epoch, from 1."),
    "epoch_step": ("step", "Steps of the epoch that are done."),
    "steps_per_second": ("steps_per_second", "Steps of all workers."),
    "examples_per_second": ("examples_per_second", "Examples of all workers."),
}


# As in TF_CONFIG. Prometheus has a label "job" of its own.
_OF_A_TASK = ("task_type", "task_index")


def exposition(state: ClusterState) -> tuple[str, str]:
    """Returns the metrics as text, and its content type.

    Args:
        state: The state.

    Raises:
        ImportError: If `prometheus_client` is not installed.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client import exposition as client

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(state))
    return client.generate_latest(registry).decode(), client.CONTENT_TYPE_LATEST


class _Collector:
    """Collector that `prometheus_client` asks for metrics."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def collect(self) -> Iterator[Any]:
        """Yields all metrics."""
        state = self._state
        yield from self._of_tasks()
        yield from _gauges("tfps_task_", _OF_TASKS, state.tasks)
        yield from _gauges("tfps_worker_", _OF_WORKERS, state.workers)
        yield from _gauges("tfps_ps_", _OF_PS, state.parameter_servers)
        yield from self._of_job()

    def _of_tasks(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily
        from prometheus_client.core import GaugeMetricFamily

        state = self._state
        info = GaugeMetricFamily(
            "tfps_job_info",
            "1; the labels describe the job.",
            labels=["version", "program", "consistency"],
        )
        info.add_metric([state.version, state.program, state.consistency], 1)
        yield info
        healthy = GaugeMetricFamily(
            "tfps_task_healthy",
            "1 if the task is healthy, else 0.",
            labels=_OF_A_TASK,
        )
        restarts = CounterMetricFamily(
            "tfps_task_restarts",
            "Times that the task was lost and came back.",
            labels=_OF_A_TASK,
        )
        for task in state.tasks:
            labels = [task.job, str(task.index)]
            healthy.add_metric(labels, task.health == HEALTHY)
            restarts.add_metric(labels, task.num_restarts)
        yield healthy
        yield restarts
        retries = CounterMetricFamily(
            "tfps_worker_retries",
            "Functions that did not complete on the worker and ran again.",
            labels=_OF_A_TASK,
        )
        for worker in state.workers:
            retries.add_metric(
                [worker.job, str(worker.index)], worker.num_retries
            )
        yield retries

    def _of_job(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily
        from prometheus_client.core import GaugeMetricFamily

        state = self._state
        yield CounterMetricFamily(
            "tfps_steps", "Steps of all workers.", value=state.job.total_steps
        )
        for name, (attribute, text) in _OF_JOB.items():
            value = getattr(state.job, attribute)
            if value is not None:
                yield GaugeMetricFamily(f"tfps_job_{name}", text, value=value)
        metric = GaugeMetricFamily(
            "tfps_metric", "Latest logs, such as the loss.", labels=["name"]
        )
        for name, value in sorted(state.job.metrics.items()):
            metric.add_metric([name], value)
        yield metric
        if state.last_checkpoint is not None:
            yield GaugeMetricFamily(
                "tfps_checkpoint_timestamp_seconds",
                "When the last checkpoint was written.",
                value=state.last_checkpoint.written_at,
            )
        counters = CounterMetricFamily(
            "tfps_events", "Counters of the coordinator.", labels=["name"]
        )
        for name, value in sorted(state.counters.items()):
            counters.add_metric([name], value)
        yield counters


def _gauges(
    prefix: str,
    described: dict[str, tuple[str, str]],
    tasks: tuple[TaskState, ...],
) -> Iterator[Any]:
    """Yields a gauge for each attribute that some task has."""
    from prometheus_client.core import GaugeMetricFamily

    for name, (attribute, text) in described.items():
        gauge = GaugeMetricFamily(prefix + name, text, labels=_OF_A_TASK)
        for task in tasks:
            value = getattr(task, attribute)
            if value is not None:
                gauge.add_metric([task.job, str(task.index)], value)
        yield gauge
