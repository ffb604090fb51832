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

    Threading: safe from any thread. Guarded by `_lock`: everything; it is held
    while tasks are asked, for a second or so at most.
    """

    def __init__(self) -> None:
        """Begins without reports."""
        self._lock = threading.Lock()
        self._readers: dict[Task, ReportReader] = {}
        self._answers: dict[Task, Answer] = {}
        self._asked_at: dict[Task, float] = {}

    def of(self, tasks: Iterable[Task]) -> dict[Task, Answer]:
        """Returns the reports of some tasks, with their present addresses.

        Args:
            tasks: The tasks. What is kept of others is dropped.

        Returns:
            An answer for each.
        """
        tasks = list(tasks)
        with self._lock:
            for gone in self._readers.keys() - set(tasks):
                self._readers.pop(gone).close()
                self._answers.pop(gone, None)
                self._asked_at.pop(gone, None)
            now = time.monotonic()
            age = max(_LEAST_AGE_SECONDS, _AGE_SECONDS_OF_A_TASK * len(tasks))
            due = [
                task
                for task in tasks
                if now - self._asked_at.get(task, float("-inf"))
                >= (_PAUSE_SECONDS if self._is_silent(task) else age)
            ]
            if due:
                self._ask(due)
            return {task: self._answers[task] for task in tasks}

    def close(self) -> None:
        """Ends the connections to all tasks."""
        self.of([])

    def _is_silent(self, task: Task) -> bool:
        answer = self._answers.get(task)
        return answer is not None and bool(answer.reason)

    def _ask(self, tasks: list[Task]) -> None:
        for task in tasks:
            if task not in self._readers:
                self._readers[task] = ReportReader(task, _TIMEOUT_SECONDS)
        # Its threads end with the block: nothing is left behind.
        with concurrent.futures.ThreadPoolExecutor(
            min(_NUM_THREADS, len(tasks)), "tfps-reports"
        ) as pool:
            answers = pool.map(_answer, [self._readers[t] for t in tasks])
            self._answers.update(zip(tasks, answers, strict=True))
        now = time.monotonic()
        self._asked_at.update((task, now) for task in tasks)


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
