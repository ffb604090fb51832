"""Thread of a process that brings its report up to date."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from tfps_plugin.monitoring.processes import proc_readings
from tfps_plugin.monitoring.processes.busy_share import BusyShare
from tfps_plugin.monitoring.processes.task_report import TaskReport
from tfps_plugin.monitoring.state.rates import Rates

_logger = logging.getLogger("tfps_plugin.monitoring")

# A viewer shows a report that is two seconds old; a reading takes less than a
# thousandth of that.
INTERVAL_SECONDS = 2.0


class Readings:
    """Readings of this process, as reports.

    Threading: one thread uses it.
    """

    def __init__(self) -> None:
        """Begins with the process as it is now."""
        self._began_at = time.monotonic()
        self._rates = Rates()
        self._traffic = proc_readings.Traffic()

    def report(self, busy_share: float | None = None) -> TaskReport:
        """Returns a report of this moment.

        Args:
            busy_share: Goes into the report as it is.
        """
        now = time.monotonic()
        try:
            self._traffic.read()
        except OSError:
            received = sent = None
        else:
            received = self._rates.of(
                "received", self._traffic.received_bytes, now
            )
            sent = self._rates.of("sent", self._traffic.sent_bytes, now)
        return TaskReport(
            host=socket.gethostname(),
            process_id=os.getpid(),
            uptime_seconds=now - self._began_at,
            processors=self._rates.of("processors", time.process_time(), now),
            busy_share=busy_share,
            memory_bytes=proc_readings.memory_bytes(),
            memory_limit_bytes=proc_readings.memory_limit_bytes(),
            received_bytes_per_second=received,
            sent_bytes_per_second=sent,
        )


class Reporter:
    """Background thread of a task that publishes its reports.

    Threading: `start` and `stop` are called once each, by one thread.
    """

    def __init__(
        self, publish: Callable[[str], None], *, measures_busy_share: bool
    ) -> None:
        """Prepares; starts no thread yet.

        Args:
            publish: Called with each report as text, on the thread. If it
                raises an exception, the thread ends.
            measures_busy_share: Whether to measure the share of time in which
                the process computes.
        """
        self._publish = publish
        self._busy = BusyShare() if measures_busy_share else None
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="tfps-reporter", daemon=True
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Ends the thread, and waits for its end for so long at most."""
        self._stopped.set()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        readings = Readings()
        try:
            while True:
                share = None
                if self._busy is not None:
                    share = self._busy.measure(self._stopped)
                self._publish(readings.report(share).encode())
                if self._stopped.wait(INTERVAL_SECONDS):
                    return
        # The task serves without its reports, too.
        except Exception:
            _logger.debug("This task reports no more.", exc_info=True)
