import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.output import json_lines
from tfps_plugin.cluster.output.json_lines import JsonFormatter
from tfps_plugin.monitoring import events

_LOST = events.WorkerLost(1, "host:1", 'he said "no"\nand left')
_WORKER = '{"cluster": {}, "task": {"type": "worker", "index": 3}}'


def _record(message: str = "%d rows", **more: Any) -> logging.LogRecord:
    record = logging.LogRecord(
        "tfps_plugin.recovery", logging.WARNING, "x.py", 1, message, (7,), None
    )
    record.created = 0.25
    for name, value in more.items():
        setattr(record, name, value)
    return record


@pytest.fixture
def loggers() -> Iterator[logging.Logger]:
    """Yields the package's logger; restores what `apply` changes."""
    package, resort = logging.getLogger("tfps_plugin"), logging.lastResort
    handlers, propagates = package.handlers[:], package.propagate
    yield package
    package.handlers[:], package.propagate = handlers, propagates
    assert resort is not None
    resort.setFormatter(None)


def test_a_record_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", _WORKER)
    assert json.loads(JsonFormatter().format(_record())) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "WARNING",
        "logger": "tfps_plugin.recovery",
        "task": "worker 3",
        "message": "7 rows",
    }


def test_an_event_has_its_type_and_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    line = JsonFormatter().format(_record("%s lines", event=_LOST))
    assert "\n" not in line
    found = json.loads(line)
    assert found["task"] == "chief"
    assert found["event"] == "WorkerLost"
    assert found["fields"] == {
        "worker_index": 1,
        "address": "host:1",
        "reason": 'he said "no"\nand left',
    }


def test_an_exception_is_a_member() -> None:
    record = _record()
    try:
        raise ValueError("oh")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: oh")


def test_infinity_is_no_json() -> None:
    event = events.WaitingForParameterServer(0, "a:1", 1.0, float("inf"))
    line = JsonFormatter().format(_record(event=event))
    found = json.loads(line, parse_constant=pytest.fail)
    assert found["fields"]["deadline_seconds"] == "inf"


@pytest.mark.parametrize(
    ("line", "level", "logger"),
    [
        ("loss 1", "INFO", "stdout"),
        ("{loss}", "INFO", "stdout"),
        ('["loss"]', "INFO", "stdout"),
        ("", "INFO", "stdout"),
        ("epoch ━━━ \x1b[1m", "INFO", "stdout"),
        (
            "E0000 00:00:1795658268.596476   10966 context.cc:690] Failed to",
            "ERROR",
            "tensorflow",
        ),
        (
            "2025-01-06 12:46:04.065693: F path/to/port.cc:153] over",
            "CRITICAL",
            "tensorflow",
        ),
    ],
)
def test_any_line_becomes_one_object(
    line: str, level: str, logger: str
) -> None:
    found = json.loads(json_lines.of_line(line, "worker 1", "stdout"))
    assert (found["level"], found["logger"]) == (level, logger)
    assert (found["task"], found["message"]) == ("worker 1", line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]{6}Z", found["time"])


def test_an_object_stays_as_it_is() -> None:
    line = '{"loss":  0.5}'
    assert json_lines.of_line(line, "chief", "stdout") == line


@pytest.mark.parametrize(
    ("level", "logger", "expected"),
    [
        ("INFO", "tfps_plugin.cluster", True),
        ("WARNING", "tfps_plugin.cluster", False),
        ("INFO", "stdout", False),
    ],
)
def test_routine_messages_are_known(
    level: str, logger: str, expected: bool
) -> None:
    line = json_lines.entry(level, logger, "ps 0", "serves")
    assert json_lines.is_own_news(line) == expected
    assert not json_lines.is_own_news("ps 0 serves")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", "chief"),
        ("{broken", "chief"),
        ('{"cluster": {}}', "chief"),
        ('{"task": {"type": "evaluator"}}', "evaluator"),
        ('{"task": {"type": "ps", "index": 2}}', "ps 2"),
    ],
)
def test_a_task_knows_its_name(config: str, expected: str) -> None:
    assert json_lines.task_name({"TF_CONFIG": config}) == expected


def test_only_who_asks_gets_json(
    loggers: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    before = loggers.handlers[:]
    json_lines.apply({})
    assert loggers.handlers == before
    for _ in range(2):
        json_lines.apply({"TFPS_LOG_FORMAT": "json"})
    logging.getLogger("tfps_plugin.cluster").warning("%s serves", "ps 0")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "ps 0 serves"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(
        errors.ClusterConfigurationError, match="TFPS_LOG_FORMAT='jsn'"
    ):
        json_lines.is_json({"TFPS_LOG_FORMAT": "jsn"})
