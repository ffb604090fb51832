"""The register of open sessions."""

from tfps_plugin.cluster.chief import open_sessions
from tfps_plugin.cluster.spec import ClusterSpec

_ONE = ClusterSpec(("a:1",), ("b:1",))
_OTHER = ClusterSpec(("a:2",), ("b:2",))


def test_a_session_is_closed_once_and_only_if_it_is_of_that_cluster() -> None:
    closed: list[str] = []
    open_sessions.add(_ONE, lambda: closed.append("one"))
    open_sessions.close(_OTHER)
    assert closed == []
    open_sessions.close(_ONE)
    open_sessions.close(_ONE)
    assert closed == ["one"]


def test_a_session_that_has_closed_itself_is_not_closed_again() -> None:
    closed: list[str] = []
    open_sessions.add(_ONE, lambda: closed.append("one"))
    open_sessions.remove(_ONE)
    open_sessions.close(_ONE)
    assert closed == []
