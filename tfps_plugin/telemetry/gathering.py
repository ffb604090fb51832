"""The parts of a job's state, from the objects that know them."""

import dataclasses
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import tfps_plugin
from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.members.presence import Presence
from tfps_plugin.monitoring import counters
from tfps_plugin.monitoring.processes.reporter import Readings
from tfps_plugin.monitoring.processes.task_report import TaskReport
from tfps_plugin.monitoring.state import cluster_state
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.cluster_state import JobState
from tfps_plugin.monitoring.state.cluster_state import ParameterServerState
from tfps_plugin.monitoring.state.cluster_state import TaskState
from tfps_plugin.monitoring.state.cluster_state import WorkerState
from tfps_plugin.monitoring.state.event_log import EventLog
from tfps_plugin.monitoring.state.rates import Rates
from tfps_plugin.strategy.consistency import local_steps_of
from tfps_plugin.telemetry import held_tables
from tfps_plugin.telemetry.held_tables import Held
from tfps_plugin.telemetry.slow_question import SlowQuestion
from tfps_plugin.telemetry.task_reports import Answer
from tfps_plugin.telemetry.task_reports import TaskReports

# Counts of rows are on workers: more often would be seen there.
_COUNT_ROWS_SECONDS = 5.0
# What the chief reads of itself, and what parameter servers hold, changes
# slowly, and takes milliseconds.
_READ_SECONDS = 2.0
_HELD_SECONDS = 2.5
# Names of counters; those of rows are pairs of a table and a shard.
_STEPS = "steps"
_EXAMPLES = "examples"


class Gathering:
    """Gathers states of one strategy, and keeps what rates are computed from.

    Threading: safe from any thread. Guarded by `_lock`: everything, and that
    one state is gathered at a time. It is held for a second at most if tasks do
    not answer: three questions wait for them, each for a quarter of it.
    """

    def __init__(self, event_log: EventLog) -> None:
        """Begins.

        Args:
            event_log: The events of the job.
        """
        self._event_log = event_log
        self._lock = threading.Lock()
        # Finding it takes milliseconds.
        self._version = tfps_plugin.__version__
        self._readings = Readings()
        self._own_report = self._readings.report()
        self._read_at = float("-inf")
        # By the index of the parameter server: when, for which variables, what.
        self._held: dict[int, tuple[float, Any, Held]] = {}
        self._rates = Rates()
        self._reports = TaskReports()
        self._row_rates: dict[tuple[int, int], float | None] = {}
        self._rows_counted_at = float("-inf")
        self._num_examples = SlowQuestion[float | None]("example-counts")
        self._row_counts = SlowQuestion[dict[int, list[int]]]("row-counts")

    def gather(self, strategy: Any, coordinator: Any) -> ClusterState:
        """Returns the state of this moment.

        Args:
            strategy: A `ParameterServerStrategy`.
            coordinator: Its coordinator; None if it has none yet.
        """
        with self._lock:
            return self._gather(strategy, coordinator)

    def _gather(self, strategy: Any, coordinator: Any) -> ClusterState:
        began_at = time.monotonic()
        session = strategy.session
        present = session.addresses_now()
        workers = [_now(task, present) for task in session.workers]
        ps = [_now(task, present) for task in session.parameter_servers]
        answers = self._reports.of([*workers, *ps])
        job = self._job(strategy, coordinator)
        state = ClusterState(
            time=time.time(),
            version=self._version,
            program=os.path.basename(sys.argv[0]) or "python",
            consistency=_spelling(strategy.consistency),
            chief=TaskState(
                job=CHIEF,
                index=0,
                address=present.chief_address or "",
                health=cluster_state.HEALTHY,
                **_reported(self._report_of_chief()),
            ),
            workers=tuple(
                _workers(workers, answers, session, coordinator, job)
            ),
            parameter_servers=tuple(
                self._ps(each, answers[each], strategy, coordinator, job)
                for each in ps
            ),
            job=job,
            last_checkpoint=self._event_log.last_checkpoint,
            events=self._event_log.latest,
            counters={}
            if coordinator is None
            else coordinator.counters.snapshot(),
            gathered_in_seconds=time.monotonic() - began_at,
        )
        self._count_rows(strategy)
        return state

    def _report_of_chief(self) -> TaskReport:
        now = time.monotonic()
        if now - self._read_at >= _READ_SECONDS:
            self._own_report = self._readings.report()
            self._read_at = now
        return self._own_report

    def _held_by(self, strategy: Any, ps_index: int) -> Held:
        now = time.monotonic()
        # Another one for each new variable, and for each new place.
        layout = (strategy.layout_version, strategy.bytes_per_ps)
        known = self._held.get(ps_index)
        if (
            known is not None
            and now - known[0] < _HELD_SECONDS
            and known[1] == layout
        ):
            return known[2]
        held = Held(
            strategy.inventory,
            strategy.ps_by_index.get(ps_index, ""),
            lambda table, shard: self._row_rates.get((id(table), shard)),
        )
        self._held[ps_index] = now, layout, held
        return held

    def _job(self, strategy: Any, coordinator: Any) -> JobState:
        now = time.monotonic()
        progress = strategy.progress.now()
        total_steps = 0
        if coordinator is not None:
            total_steps = counters.num_steps(coordinator.counters)
        examples = None
        if progress.is_running:
            examples = self._num_examples.ask(strategy.progress.num_examples)
        return JobState(
            work=progress.work,
            is_running=progress.is_running
            or (coordinator is not None and coordinator.has_work),
            epoch=progress.epoch,
            num_epochs=progress.num_epochs,
            step=progress.step,
            steps_per_epoch=progress.steps_per_epoch,
            total_steps=total_steps,
            metrics=progress.metrics,
            steps_per_second=self._rates.of(_STEPS, total_steps, now),
            examples_per_second=None
            if examples is None or examples.value is None
            else self._rates.of(_EXAMPLES, examples.value, examples.at),
            running_seconds=progress.running_seconds,
        )

    def _ps(
        self,
        task: Task,
        answer: Answer,
        strategy: Any,
        coordinator: Any,
        job: JobState,
    ) -> ParameterServerState:
        held = self._held_by(strategy, task.index)
        health, detail = cluster_state.HEALTHY, ""
        if answer.reason:
            health, detail = cluster_state.SILENT, answer.reason
        if coordinator is not None and task.index in coordinator.lost_ps():
            health = cluster_state.RECOVERING
        updates = None
        if (
            held.has_updates
            and _trains(job)
            and job.steps_per_second is not None
        ):
            updates = job.steps_per_second / local_steps_of(
                strategy.consistency
            )
        return ParameterServerState(
            job=PARAMETER_SERVER,
            index=task.index,
            address=task.address,
            health=health,
            detail=detail,
            num_restarts=self._event_log.num_recoveries(task.index),
            num_bytes=held.num_bytes,
            num_rows=held.num_rows,
            num_variables=held.num_variables,
            updates_per_second=updates,
            tables=held.tables,
            **_reported(answer.report),
        )

    def _count_rows(self, strategy: Any) -> None:
        """Reads the counts of looked-up rows, for the next state."""
        now = time.monotonic()
        if now - self._rows_counted_at < _COUNT_ROWS_SECONDS:
            return
        self._rows_counted_at = now
        inventory, devices = strategy.inventory, list(strategy.ps_devices)
        counts = self._row_counts.ask(
            lambda: held_tables.row_counts(inventory, devices)
        )
        if counts is None:
            self._row_rates = {}
            return
        self._row_rates = {
            (table, shard): self._rates.of((table, shard), count, counts.at)
            for table, of_shards in counts.value.items()
            for shard, count in enumerate(of_shards)
        }
        # A later table may have the `id` of one that is gone.
        self._rates.keep({_STEPS, _EXAMPLES, *self._row_rates})


def _spelling(consistency: Any) -> str:
    """Returns a consistency as a program spells it, without defaults."""
    given = [
        f"{field.name}={value!r}"
        for field in dataclasses.fields(consistency)
        if (value := getattr(consistency, field.name)) != field.default
    ]
    return f"{type(consistency).__name__}({', '.join(given)})"


def _now(task: Task, present: Any) -> Task:
    """Returns a task with its present address."""
    addresses = (
        present.worker_addresses if task.job == WORKER else present.ps_addresses
    )
    if task.index < len(addresses):
        return Task(task.job, task.index, addresses[task.index])
    return task


def _workers(
    tasks: list[Task],
    answers: Mapping[Task, Answer],
    session: Any,
    coordinator: Any,
    job: JobState,
) -> list[WorkerState]:
    presences: dict[int, Presence] = {}
    rates = {}
    if coordinator is not None:
        presences = {each.index: each for each in coordinator.presences()}
        # While a parameter server is waited for, workers make no steps, and
        # their rates are those from before.
        if job.is_running and not coordinator.lost_ps():
            rates = {
                each.worker_index: each for each in coordinator.worker_rates()
            }
    states = []
    for task in tasks:
        answer = answers[task]
        presence = presences.get(task.index)
        if presence is None:
            is_listed = any(
                (each.job, each.index) == (task.job, task.index)
                for each in session.listed
            )
            presence = Presence(task.index, is_present=is_listed)
        health, detail = _health(presence, answer)
        rate = rates.get(task.index)
        measured = {}
        if rate is not None and presence.is_present:
            measured = _shares(rate, answer.report)
        states.append(
            WorkerState(
                job=WORKER,
                index=task.index,
                address=task.address,
                health=health,
                detail=detail,
                num_restarts=presence.generation,
                closures_in_flight=presence.closures_in_flight,
                num_retries=presence.num_retries,
                **measured,
                **_reported(answer.report),
            )
        )
    return states


def _health(presence: Presence, answer: Answer) -> tuple[str, str]:
    """Returns the health of a worker, and its reason."""
    if not presence.is_present:
        if presence.is_late:
            return cluster_state.MISSING, presence.reason
        return cluster_state.LOST, presence.reason
    if answer.reason:
        return cluster_state.SILENT, answer.reason
    return cluster_state.HEALTHY, ""


def _shares(rate: Any, report: TaskReport | None) -> dict[str, Any]:
    """Returns what is known of the steps of a worker."""
    shares = {
        "work": rate.work,
        "steps_per_second": rate.steps_per_second,
        "seconds_per_step": rate.seconds_per_step,
        "input_share": rate.input_share,
        "staleness": rate.expected_staleness,
    }
    busy = None if report is None else report.busy_share
    if busy is not None and rate.input_share is not None:
        # The worker also computes while steps wait: it prepares their batches.
        compute = min(busy, 1 - rate.input_share)
        shares["compute_share"] = compute
        shares["wait_share"] = max(0.0, 1 - rate.input_share - compute)
    return shares


def _trains(job: JobState) -> bool:
    return not job.work or job.work.startswith("fit")


def _reported(report: TaskReport | None) -> dict[str, Any]:
    """Returns the fields of a `TaskState` that a report has."""
    if report is None:
        return {}
    return {
        "host": report.host,
        "process_id": report.process_id,
        "uptime_seconds": report.uptime_seconds,
        "processors": report.processors,
        "memory_bytes": report.memory_bytes,
        "memory_limit_bytes": report.memory_limit_bytes,
        "received_bytes_per_second": report.received_bytes_per_second,
        "sent_bytes_per_second": report.sent_bytes_per_second,
    }
