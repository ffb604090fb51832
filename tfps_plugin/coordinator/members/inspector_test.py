"""Tests of the inspector."""

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.health import TaskStatus
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.members import inspector as inspector_module
from tfps_plugin.coordinator.members.inspector import Inspector
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.events import Event
from tfps_plugin.monitoring.events import Events


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "_PS_PROBE_INTERVAL_SECONDS", 0.0)


def _inspector(session: FakeSession, board: Events | None = None) -> Inspector:
    return Inspector(session, Counters(), board or Events())


def test_why_lost() -> None:
    session = FakeSession()
    inspector = _inspector(session)
    worker = session.cluster.workers[1]
    assert inspector.why_lost(worker) is None
    session.kill("worker", 1)
    assert inspector.why_lost(worker) == "refused"
    session.start("worker", 1)
    assert inspector.why_lost(worker) == inspector_module.RESTARTED
    session.readmit(worker)
    assert inspector.why_lost(worker) is None


def test_loss_of_a_ps_is_published_once_until_it_is_well() -> None:
    session = FakeSession()
    board = Events()
    seen: list[Event] = []
    board.subscribe(seen.append)
    inspector = _inspector(session, board)
    ps = session.cluster.parameter_servers[0]
    assert inspector.examine_ps(ps) is None

    session.kill("ps", 0)
    texts = [str(inspector.examine_ps(ps)) for _ in range(3)]
    assert "Parameter server 0 at ps-0:1 was lost at" in texts[0]
    assert texts == [texts[0]] * 3, "since when stays"
    assert len(seen) == 1

    session.start("ps", 0)
    session.readmit(ps)
    assert inspector.examine_ps(ps) is None
    session.kill("ps", 0)
    assert inspector.examine_ps(ps) is not None
    assert len(seen) == 2


def test_ps_that_answers_at_the_second_question_is_well() -> None:
    class Hesitant(FakeSession):
        num_questions = 0

        def probe(self, task: Task, timeout_seconds: float) -> TaskStatus:
            self.num_questions += 1
            if self.num_questions == 1:
                raise errors.TaskUnreachableError(
                    "slow", address=task.address, reason="no answer in time"
                )
            return super().probe(task, timeout_seconds)

    session = Hesitant()
    ps = session.cluster.parameter_servers[0]
    assert _inspector(session).examine_ps(ps) is None
    assert session.num_questions == 2


def test_a_task_that_is_readmitted_while_it_is_asked_is_well() -> None:
    class Changing(FakeSession):
        def probe(self, task: Task, timeout_seconds: float) -> TaskStatus:
            self.readmit(task)
            return super().probe(task, timeout_seconds)

    session = Changing()
    worker = session.cluster.workers[0]
    session.kill("worker", 0)
    session.start("worker", 0)
    assert _inspector(session).why_lost(worker) is None
