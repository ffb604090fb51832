"""Reports of tasks about themselves, asked for in parallel."""

import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Iterable

from tfps_plugin import errors
from tfps_plugin.cluster.serving.report_board import ReportReader
from tfps_plugin.cluster.spec import Task
from tfps_plugin.monitoring.processes.task_report import TaskReport

_TIMEOUT_SECONDS = 1.0
# Longest time that a viewer waits for the answers. Healthy tasks take
# milliseconds.
_WAIT_SECONDS = 0.25
_NUM_THREADS = 8
# Reports are made anew every two seconds; so much later they may be asked for
# again. More for many tasks: each takes the chief a third of a millisecond.
_LEAST_AGE_SECONDS = 0.8
_AGE_SECONDS_OF_A_TASK = 0.01
# A task that has not answered is asked again after that time.
_PAUSE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """Answer of a task.

    Attributes:
        report: Its report; None: it has none.
        reason: Error of the connection; empty if it has answered.
    """

    report: TaskReport | None = None
    reason: str = ""


class TaskReports:
    """Reports of the tasks of a cluster, a second old at most.

    A task that does not answer at once delays nobody: its answer counts the
    next time.

    Threading: safe from any thread. Guarded by `_lock`: everything; it is held
    while tasks are asked, for a fraction of a second.
    """

    def __init__(self) -> None:
        """Begins without reports."""
        self._lock = threading.Lock()
        self._asked: dict[Task, _Asked] = {}

    def of(self, tasks: Iterable[Task]) -> dict[Task, Answer]:
        """Returns the reports of some tasks, with their present addresses.

        Args:
            tasks: The tasks. What is kept of others is dropped.

        Returns:
            An answer for each; an empty one while its first one is to come.
        """
        tasks = list(tasks)
        with self._lock:
            for gone in self._asked.keys() - set(tasks):
                self._asked.pop(gone).close()
            for task in tasks:
                if task not in self._asked:
                    self._asked[task] = _Asked(task)
            age = max(_LEAST_AGE_SECONDS, _AGE_SECONDS_OF_A_TASK * len(tasks))
            now = time.monotonic()
            due = [e for e in self._asked.values() if e.is_due(now, age)]
            if due:
                _ask(due, now)
            return {task: self._asked[task].answer() for task in tasks}


class _Asked:
    """A task, and what it has answered last; not thread-safe."""

    def __init__(self, task: Task) -> None:
        self._reader = ReportReader(task, _TIMEOUT_SECONDS)
        self._latest = Answer()
        self._pending: concurrent.futures.Future[Answer] | None = None
        self._at = float("-inf")

    def is_due(self, now: float, age_seconds: float) -> bool:
        """Returns whether to ask it again."""
        self.answer()
        pause = _PAUSE_SECONDS if self._latest.reason else age_seconds
        return self._pending is None and now - self._at >= pause

    def ask(
        self, pool: concurrent.futures.Executor, now: float
    ) -> concurrent.futures.Future[Answer]:
        """Asks it, on a thread of a pool."""
        self._at = now
        self._pending = pool.submit(_answer, self._reader)
        return self._pending

    def answer(self) -> Answer:
        """Returns its latest answer."""
        if self._pending is not None and self._pending.done():
            pending, self._pending = self._pending, None
            error = pending.exception()
            # Whatever happens there, the state of the others is shown.
            self._latest = (
                pending.result()
                if error is None
                else Answer(reason=f"{type(error).__name__}: {error}")
            )
        return self._latest

    def close(self) -> None:
        """Ends the connection, unless a thread still uses it."""
        if self._pending is None or self._pending.done():
            self._reader.close()


def _ask(due: list[_Asked], now: float) -> None:
    """Asks tasks, and waits a moment for their answers."""
    pool = concurrent.futures.ThreadPoolExecutor(
        min(_NUM_THREADS, len(due)), "tfps-reports"
    )
    try:
        futures = [each.ask(pool, now) for each in due]
    finally:
        # Its threads end with what they have to do: nothing is left behind.
        pool.shutdown(wait=False)
    concurrent.futures.wait(futures, _WAIT_SECONDS)


def _answer(reader: ReportReader) -> Answer:
    try:
        text = reader.read()
    except errors.TaskUnreachableError as error:
        return Answer(reason=error.reason)
    if text is None:
        return Answer()
    try:
        return Answer(TaskReport.decode(text))
    except ValueError:
        return Answer()  # another release of this package serves there
