"""Lines of a log as JSON: one object a line.

    {"time": "2026-01-31T10:11:12.345Z", "level": "WARNING",
     "logger": "tfps_plugin.monitoring", "task": "chief",
     "message": "Worker 1 at 10.0.0.3:2222 is lost: ...",
     "event": "WorkerLost", "fields": {"worker_index": 1, ...}}

Records of `logging` become such objects, and so does whatever else a task
writes. Nothing here needs more than Python has.
"""

import dataclasses
import datetime
import functools
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

from tfps_plugin import errors
from tfps_plugin.monitoring.events import Event

VARIABLE = "TFPS_LOG_FORMAT"
"""The environment variable from which every task learns the format."""

TEXT = "text"
JSON = "json"
FORMATS = (TEXT, JSON)

_PACKAGE = "tfps_plugin"
_TENSORFLOW = "tensorflow"
_LOGGED_BY_TENSORFLOW = re.compile(
    r"([IWEF])\d{4} \d\d:\d\d:\d+\.\d+ +\d+ [\w./-]+\.(?:cc|h):\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: ([IWEF]) "
)
_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_ROUTINE = frozenset({"DEBUG", "INFO"})


def is_json(environ: Mapping[str, str]) -> bool:
    """Returns whether an environment asks for JSON.

    Raises:
        ClusterConfigurationError: If it asks for a format that there is not.
    """
    wanted = environ.get(VARIABLE) or TEXT
    if wanted not in FORMATS:
        raise errors.ClusterConfigurationError(
            f"The environment variable {VARIABLE} names no format of a log. "
            f"Expected {TEXT} or {JSON}. Received: {VARIABLE}={wanted!r}"
        )
    return wanted == JSON


def entry(
    level: str,
    logger: str,
    task: str,
    message: str,
    *,
    seconds: float | None = None,
    more: Mapping[str, Any] | None = None,
) -> str:
    """Returns a line.

    Args:
        level: Name of the level, as in `logging`.
        logger: Name of the logger.
        task: Name of the task: "chief", "worker 0".
        message: The message; it may have several lines.
        seconds: The time, in seconds of `time.time`; None: now.
        more: Further members of the object.
    """
    when = datetime.datetime.fromtimestamp(
        time.time() if seconds is None else seconds, datetime.UTC
    )
    return json.dumps(
        {
            "time": when.isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": level,
            "logger": logger,
            "task": task,
            "message": message,
            **(more or {}),
        },
        default=str,
    )


def of_line(line: str, task: str, stream: str) -> str:
    """Returns the JSON of a line that a task has written, in whatever form.

    Args:
        line: The line. A JSON object is returned as it is: it comes from this
            module, or from a program that logs JSON itself.
        task: Name of the task.
        stream: "stdout" or "stderr": the logger of lines that say of none.
    """
    if _parsed(line) is not None:
        return line
    logged = _LOGGED_BY_TENSORFLOW.match(line)
    if logged is not None:
        level = _LEVELS[logged[1] or logged[2]]
        return entry(level, _TENSORFLOW, task, line)
    return entry("INFO", stream, task, line)


def is_own_news(line: str) -> bool:
    """Returns whether a line is a routine message of ours, as JSON."""
    parsed = _parsed(line)
    return (
        parsed is not None
        and parsed.get("level") in _ROUTINE
        and str(parsed.get("logger")).partition(".")[0] == _PACKAGE
    )


def task_name(environ: Mapping[str, str]) -> str:
    """Returns the name of the task that an environment makes a process."""
    return _task_name(environ.get("TF_CONFIG", ""))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line.

        Args:
            record: Any record; that of an event has the event as `event`.
        """
        more: dict[str, Any] = {}
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            more["event"] = type(event).__name__
            more["fields"] = {
                each.name: _plain(getattr(event, each.name))
                for each in dataclasses.fields(event)
            }
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            more["stack"] = self.formatStack(record.stack_info)
        return entry(
            record.levelname,
            record.name,
            task_name(os.environ),
            record.getMessage(),
            seconds=record.created,
            more=more,
        )


class JsonHandler(logging.Handler):
    """Writes JSON to the present standard error: notebooks replace it."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record; a program may have no standard error at all.

        Args:
            record: The record.
        """
        try:
            if sys.stderr is not None:
                sys.stderr.write(self.format(record) + "\n")
                sys.stderr.flush()
        except Exception:
            self.handleError(record)


def apply(environ: Mapping[str, str]) -> None:
    """Lets this process log JSON if its environment asks for it.

    The lines of this package become JSON in any case, and are not passed on to
    the handlers of the program. Warnings of others become JSON unless the
    program configures `logging`.

    Args:
        environ: The environment.

    Raises:
        ClusterConfigurationError: If it asks for a format that there is not.
    """
    if not is_json(environ):
        return
    package = logging.getLogger(_PACKAGE)
    if any(isinstance(each, JsonHandler) for each in package.handlers):
        return
    package.addHandler(JsonHandler())
    package.propagate = False
    # What `logging` writes with, as long as the program configures nothing.
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(JsonFormatter())


@functools.lru_cache(maxsize=8)
def _task_name(config: str) -> str:
    # A mistake in it is reported elsewhere, and before anything runs.
    task = (_parsed(config) or {}).get("task")
    if not isinstance(task, dict) or not isinstance(task.get("type"), str):
        return "chief"
    job: str = task["type"]
    if job in ("worker", "ps"):
        return f"{job} {task.get('index', 0)}"
    return job


def _parsed(line: str) -> dict[str, Any] | None:
    """Returns the object that a line is in JSON; None if it is none."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _plain(value: Any) -> Any:
    """Returns a value that JSON has: it lacks infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
