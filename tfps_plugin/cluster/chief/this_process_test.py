"""Tests of the state that a process has only once."""

import pytest

from tfps_plugin.cluster.chief import this_process
from tfps_plugin.cluster.chief.this_process import ThisProcess
from tfps_plugin.cluster.spec import ClusterSpec

_ONE = ClusterSpec(("a:1",), ("b:1",))
_OTHER = ClusterSpec(("a:2",), ("b:2",))


class _Session:
    def __init__(self) -> None:
        self.requested = _ONE
        self.num_closed = 0

    def close(self) -> None:
        self.num_closed += 1


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> ThisProcess:
    """Replaces the state by that of a process that was never a chief."""
    made = ThisProcess()
    monkeypatch.setattr(this_process, "state", made)
    return made


def test_only_the_session_of_that_cluster_is_closed(state: ThisProcess) -> None:
    session = _Session()
    state.session = session
    this_process.close_session(_OTHER)
    assert session.num_closed == 0
    this_process.close_session(_ONE)
    assert session.num_closed == 1


def test_without_a_session_nothing_is_closed(state: ThisProcess) -> None:
    this_process.close_session(_ONE)
    assert state.session is None
