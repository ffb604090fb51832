"""Shows the logs of tasks while they write them.

The logs are files, so a task never waits for its chief to read its output.
"""

import contextlib
import logging
import os
import pathlib
import sys
import threading
from collections.abc import Mapping

from tfps_plugin.cluster.output import json_lines
from tfps_plugin.cluster.output.console import STDERR
from tfps_plugin.cluster.output.console import Console
from tfps_plugin.cluster.output.task_lines import TaskLines
from tfps_plugin.cluster.output.terminal_line import TerminalLines

_logger = logging.getLogger("tfps_plugin.cluster")

# Too short for a person to notice.
_INTERVAL_SECONDS = 0.2
_CHUNK_BYTES = 64 * 1024
# Longest time for the last read of all logs.
_END_SECONDS = 5.0


class FollowedLog:
    """One task's log, read as it grows.

    Args:
        path: The file; it may be created later.

    Threading: for one thread.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._offset = 0
        self._lines = TerminalLines(keep_colours=False)

    def read(self) -> list[str]:
        """Returns the lines that have ended since the last call."""
        lines = []
        # It may not be there yet, or not be readable for a moment, such as
        # when the process has too many files open: the next call reads it.
        with (
            contextlib.suppress(OSError),
            self._path.open("rb") as file,
        ):
            file.seek(self._offset)
            while data := file.read(_CHUNK_BYTES):
                self._offset += len(data)
                lines += self._lines.feed(data)
        return lines

    def finish(self) -> list[str]:
        """Returns the rest, once nothing writes to the log anymore."""
        return [*self.read(), *self._lines.finish()]


class FollowedLogs:
    """Shows the logs of all tasks of a cluster, with labels.

    Lines that are of no use to the user go to the logger
    `tfps_plugin.cluster`, at DEBUG.

    Args:
        paths: The file of each task, by the task's name.
        log_level: The tasks' `TF_CPP_MIN_LOG_LEVEL`.

    Guarantees: `close` returns after everything written before it was shown.
    """

    def __init__(
        self, paths: Mapping[str, pathlib.Path], log_level: str
    ) -> None:
        self._log_level = log_level
        self._logs: dict[str, FollowedLog] = {}
        self._sorts: dict[str, TaskLines] = {}
        for name, path in paths.items():
            self.add(name, path)
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._follow, name="tfps-task-logs", daemon=True
        )
        self._thread.start()

    def add(self, name: str, path: pathlib.Path) -> None:
        """Shows the log of another task, too.

        Args:
            name: The task's name.
            path: The file.
        """
        self._sorts[name] = TaskLines(self._log_level)
        # Replaced as a whole, because the thread may be looking at it.
        self._logs = {**self._logs, name: FollowedLog(path)}

    def close(self) -> None:
        """Shows the rest, and ends; call it when the tasks have ended."""
        self._is_over.set()
        self._thread.join(_END_SECONDS)

    def _follow(self) -> None:
        while not self._is_over.wait(_INTERVAL_SECONDS):
            for name, log in self._logs.items():
                self._show(name, log.read())
        for name, log in self._logs.items():
            self._show(name, log.finish())

    def _show(self, name: str, lines: list[str]) -> None:
        found = self._sorts[name].sort(lines)
        for line in found.kept:
            _logger.debug("%s: %s", name, line)
        # Looked up each time: notebooks and tests replace it.
        errors = sys.stderr
        if not found.shown or errors is None:
            return
        # It may be closed, or not be read; training must go on.
        with contextlib.suppress(OSError, ValueError):
            console = Console(
                tuple(self._logs),
                os.environ,
                errors,
                errors,
                as_json=json_lines.is_json(os.environ),
            )
            console.show(name, STDERR, found.shown)
