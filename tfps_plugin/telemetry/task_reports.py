"""Reports of tasks about themselves, asked for in parallel."""

import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Callable
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
# Tasks that one thread asks one after another: each takes a millisecond,
# and the start of a thread takes half of one.
_TASKS_OF_A_THREAD = 16
# Reports are made anew every two seconds; so much later they may be asked for
# again, so that a silent task is seen within two seconds. More for many tasks:
# each takes the chief a millisecond.
_LEAST_AGE_SECONDS = 1.2
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

    def begin(self, now: float) -> Callable[[], None]:
        """Begins a question; returns what asks it, on any thread."""
        self._at = now
        pending = self._pending = concurrent.futures.Future[Answer]()

        def ask() -> None:
            try:
                pending.set_result(_answer(self._reader))
            except Exception as error:
                pending.set_exception(error)

        return ask

    @property
    def pending(self) -> concurrent.futures.Future[Answer] | None:
        """The answer that is to come; None: nobody asks."""
        return self._pending

    @property
    def is_quick(self) -> bool:
        """True if it has told of itself the last time."""
        return self._latest.report is not None

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
    quick = [each for each in due if each.is_quick]
    others = [each for each in due if not each.is_quick]
    # The others may keep a thread waiting.
    for asked, num_together in ((quick, _TASKS_OF_A_THREAD), (others, 1)):
        questions = [each.begin(now) for each in asked]
        num_threads = min(_NUM_THREADS, -(-len(asked) // num_together))
        for number in range(num_threads):
            threading.Thread(
                target=_ask_each,
                args=(questions[number::num_threads],),
                name="tfps-reports",
                daemon=True,
            ).start()
    concurrent.futures.wait(
        [each.pending for each in due if each.pending is not None],
        _WAIT_SECONDS,
    )


def _ask_each(questions: list[Callable[[], None]]) -> None:
    # The thread ends with what it has to do: nothing is left behind.
    for ask in questions:
        ask()


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
