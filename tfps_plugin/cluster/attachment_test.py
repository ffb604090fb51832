"""The chief's own port, before anybody is waited for."""

import socket

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster import attachment
from tfps_plugin.cluster import ports
from tfps_plugin.cluster.spec import ClusterSpec

_CLUSTER = ClusterSpec(("a:1",), ("b:1",))


def test_a_port_that_is_taken_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ports.REUSE_VARIABLE, raising=False)
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = _CLUSTER.with_chief(f"c:{port}")
        with pytest.raises(errors.TaskStartError) as caught:
            attachment.check_own_port(cluster)
        assert f"cluster.chief[0]='c:{port}'" in str(caught.value)
        assert f"sport = :{port}" in str(caught.value)
        # It is this process's own server that has it.
        monkeypatch.setattr(attachment, "_own_port", port)
        attachment.check_own_port(cluster)


def test_a_chief_without_a_prescribed_address_finds_a_port() -> None:
    attachment.check_own_port(_CLUSTER)
