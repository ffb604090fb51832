import os
import pathlib
import resource
import socket
import tempfile

import pytest

from tfps_plugin.monitoring.processes import proc_readings
from tfps_plugin.monitoring.processes.proc_readings import Traffic

_MEGABYTE = 1_000_000


def test_memory_grows_with_what_the_process_takes() -> None:
    before = proc_readings.memory_bytes()
    assert before is not None
    block = bytearray(50 * _MEGABYTE)
    for at in range(0, len(block), 4096):
        block[at] = 1
    after = proc_readings.memory_bytes()
    assert after is not None
    assert 45 * _MEGABYTE < after - before < 60 * _MEGABYTE
    most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after <= most + _MEGABYTE


def test_the_limit_is_at_most_the_memory_of_the_machine() -> None:
    limit = proc_readings.memory_limit_bytes()
    assert limit is not None
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            assert 0 < limit <= 1024 * int(line.split()[1])


def _machine(folder: pathlib.Path, groups: str) -> pathlib.Path:
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(groups)
    (proc / "meminfo").write_text("MemTotal:       16000000 kB\n")
    return proc


def test_version_2_of_control_groups_limits(tmp_path: pathlib.Path) -> None:
    proc = _machine(tmp_path, "0::/pod/container\n")
    place = tmp_path / "groups/pod/container"
    place.mkdir(parents=True)
    (place / "memory.max").write_text("max\n")
    (place.parent / "memory.max").write_text("4000000000\n")
    assert (
        proc_readings.memory_limit_bytes(proc, tmp_path / "groups")
        == 4_000_000_000
    )


def test_version_1_of_control_groups_limits(tmp_path: pathlib.Path) -> None:
    proc = _machine(tmp_path, "5:cpu:/x\n4:memory:/job\n0::/\n")
    place = tmp_path / "groups/memory/job"
    place.mkdir(parents=True)
    (place / "memory.limit_in_bytes").write_text("2000000000\n")
    (place.parent / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert (
        proc_readings.memory_limit_bytes(proc, tmp_path / "groups")
        == 2_000_000_000
    )


def test_a_container_sees_its_own_limit(tmp_path: pathlib.Path) -> None:
    # The path is that of the machine outside, and is not there inside.
    proc = _machine(tmp_path, "0::/kubepods/burstable/pod1/abc\n")
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups/memory.max").write_text("3000000000\n")
    assert (
        proc_readings.memory_limit_bytes(proc, tmp_path / "groups")
        == 3_000_000_000
    )


def test_without_limits_it_is_the_memory_of_the_machine(
    tmp_path: pathlib.Path,
) -> None:
    proc = _machine(tmp_path, "0::/\n")
    assert (
        proc_readings.memory_limit_bytes(proc, tmp_path / "groups")
        == 16_000_000 * 1024
    )


def test_traffic_is_what_connections_carry() -> None:
    traffic = Traffic()
    traffic.read()
    received, sent = traffic.received_bytes, traffic.sent_bytes
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        one.sendall(b"x" * _MEGABYTE)
        left = _MEGABYTE
        while left:
            left -= len(other.recv(left))
        # Its acknowledgement brings that of all bytes before.
        other.sendall(b"y")
        assert one.recv(1) == b"y"
        traffic.read()
    assert traffic.received_bytes - received == _MEGABYTE + 1
    # The last byte may not be acknowledged yet. The kernel counts the beginning
    # of a connection as a byte.
    assert _MEGABYTE <= traffic.sent_bytes - sent <= _MEGABYTE + 3


def test_a_number_that_another_connection_has_by_now_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traffic = Traffic()
    duplicate = os.dup
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
        tempfile.TemporaryFile() as file,
    ):
        one.sendall(b"x" * 1000)
        assert other.recv(1000, socket.MSG_WAITALL)
        # What has been closed after a look at its name, and opened again.
        for instead in (server, file):
            number = instead.fileno()
            monkeypatch.setattr(os, "dup", lambda _, n=number: duplicate(n))
            opened = len(os.listdir("/proc/self/fd"))
            traffic.read()
            assert len(os.listdir("/proc/self/fd")) == opened
    assert traffic.received_bytes == 0


def test_a_closed_connection_is_not_counted_again() -> None:
    traffic = Traffic()
    traffic.read()
    before = traffic.received_bytes
    traffic.read()
    assert traffic.received_bytes >= before
