import json

import pytest

from tfps_plugin.monitoring.processes.task_report import TaskReport

_REPORT = TaskReport("node-1", 12, 3.5, processors=1.5, memory_bytes=1000)


def test_a_report_survives() -> None:
    assert TaskReport.decode(_REPORT.encode()) == _REPORT


def test_a_newer_task_may_report_more() -> None:
    fields = {**json.loads(_REPORT.encode()), "temperature": 40}
    assert TaskReport.decode(json.dumps(fields)) == _REPORT


@pytest.mark.parametrize("text", ["", "[1]", "{}", "null"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"report|JSON|value"):
        TaskReport.decode(text)
