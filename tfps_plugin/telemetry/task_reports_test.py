import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.spec import Task
from tfps_plugin.monitoring.processes.task_report import TaskReport
from tfps_plugin.telemetry import task_reports
from tfps_plugin.telemetry.task_reports import Answer
from tfps_plugin.telemetry.task_reports import TaskReports

_TASKS = [Task("worker", index, f"10.0.0.{index}:2222") for index in range(4)]
_REPORT = TaskReport(host="node", process_id=7, uptime_seconds=1.0)


class _Reader:
    """Answers by the index of the task."""

    def __init__(self, task: Task, timeout_seconds: float) -> None:
        self._index = task.index

    def read(self) -> str | None:
        if self._index == 1:
            return None
        if self._index == 2:
            raise errors.TaskUnreachableError(
                "it is away", address="10.0.0.2:2222", reason="refused"
            )
        if self._index == 3:
            raise RuntimeError("the session is closed")
        return _REPORT.encode()

    def close(self) -> None:
        pass


def test_one_task_takes_no_answer_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_reports, "ReportReader", _Reader)
    monkeypatch.setattr(task_reports, "_WAIT_SECONDS", 30.0)
    reports = TaskReports()
    for _ in range(2):
        answers = reports.of(_TASKS)
        assert [answers[task] for task in _TASKS] == [
            Answer(_REPORT),
            Answer(),
            Answer(reason="refused"),
            Answer(reason="RuntimeError: the session is closed"),
        ]
