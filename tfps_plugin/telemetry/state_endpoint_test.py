import tempfile
import types
from typing import Any

import pytest

import tfps_plugin as tfps
from tfps_plugin.monitoring.serving.state_client import StateClient
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.testing import example_state
from tfps_plugin.telemetry.state_endpoint import StateEndpoint


class _Strategy:
    """Parts of a strategy that an endpoint needs, and its monitor at once."""

    def __init__(self) -> None:
        self.monitoring = tfps.MonitoringOptions(address="127.0.0.1:0")
        self.ends: list[Any] = []
        connection = types.SimpleNamespace(on_end=self.ends.append)
        self.session = types.SimpleNamespace(connection=connection)

    def state(self) -> ClusterState:
        return example_state()


def _state(endpoint: StateEndpoint) -> ClusterState:
    assert endpoint.port is not None
    return StateClient(("127.0.0.1", endpoint.port)).state()


def test_the_next_strategy_is_shown_though_a_server_is_about_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    endpoint = StateEndpoint()
    strategy = _Strategy()
    endpoint.show(strategy, strategy.state)
    assert _state(endpoint) == example_state()
    before = endpoint.port
    # The same server tells of the next one while the first one lives.
    second = _Strategy()
    endpoint.show(second, second.state)
    assert endpoint.port == before
    del strategy, second
    # What a thread of the server asks, and then ends.
    assert not endpoint._is_wanted()
    third = _Strategy()
    endpoint.show(third, third.state)
    try:
        assert _state(endpoint) == example_state()
        assert endpoint.port != before
    finally:
        for end in third.ends:
            assert end(None)
