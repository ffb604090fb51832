import os
import queue

from tfps_plugin.monitoring.processes.reporter import Reporter
from tfps_plugin.monitoring.processes.task_report import TaskReport

_TIMEOUT_SECONDS = 30.0


def test_a_task_reports_itself_again_and_again() -> None:
    texts: queue.SimpleQueue[str] = queue.SimpleQueue()
    reporter = Reporter(texts.put, measures_busy_share=True)
    reporter.start()
    try:
        first = TaskReport.decode(texts.get(timeout=_TIMEOUT_SECONDS))
        second = TaskReport.decode(texts.get(timeout=_TIMEOUT_SECONDS))
    finally:
        reporter.stop(_TIMEOUT_SECONDS)
    assert first.process_id == os.getpid()
    assert first.busy_share is not None
    # Rates need two readings.
    assert first.processors is None
    assert second.processors is not None
    assert second.received_bytes_per_second is not None
    assert second.uptime_seconds > first.uptime_seconds


def test_a_task_that_cannot_publish_goes_on_without_its_reports() -> None:
    tried: queue.SimpleQueue[str] = queue.SimpleQueue()

    def publish(text: str) -> None:
        tried.put(text)
        raise RuntimeError("the server is gone")

    reporter = Reporter(publish, measures_busy_share=False)
    reporter.start()
    tried.get(timeout=_TIMEOUT_SECONDS)
    reporter.stop(_TIMEOUT_SECONDS)
    assert tried.empty()
