import os
import select
import termios
from collections.abc import Iterator

import pytest

from tfps_plugin.launcher.terminal_relay import TerminalRelay

_NOISE = b"WARNING: All log messages before absl::InitializeLog() is called "
_END_OF_NOISE = b"are written to STDERR\n"

_DEADLINE_SECONDS = 20.0


@pytest.fixture
def terminal() -> Iterator[int]:
    """A stand-in for the real terminal, of 30 lines and 100 columns."""
    descriptors = os.openpty()
    termios.tcsetwinsize(descriptors[1], (30, 100))
    yield descriptors[1]
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def relay(terminal: int) -> Iterator[TerminalRelay]:
    relay = TerminalRelay(terminal)
    yield relay
    relay.close()


def _read(relay: TerminalRelay) -> bytes:
    assert select.select([relay], [], [], _DEADLINE_SECONDS)[0]
    return relay.read()


def test_the_program_finds_a_terminal_of_the_same_size(
    relay: TerminalRelay, terminal: int
) -> None:
    assert os.isatty(relay.programs_end)
    assert os.get_terminal_size(relay.programs_end) == (100, 30)
    termios.tcsetwinsize(terminal, (40, 200))
    relay.resize()
    assert os.get_terminal_size(relay.programs_end) == (200, 40)


def test_bytes_arrive_at_once_and_as_they_are(relay: TerminalRelay) -> None:
    for written in (b"\r 10%", b"\r\x1b[32m 20%", b"\nName? ", b"\xff\n\n"):
        os.write(relay.programs_end, written)
        assert _read(relay) == written


def test_noise_does_not_arrive(relay: TerminalRelay) -> None:
    os.write(relay.programs_end, _NOISE + _END_OF_NOISE + b"ready\n")
    assert _read(relay) == b"ready\n"


def test_what_only_looks_like_noise_is_late(relay: TerminalRelay) -> None:
    assert relay.deadline == float("inf")
    os.write(relay.programs_end, b"WARNING: ")
    assert _read(relay) == b""
    assert relay.deadline < float("inf")
    relay.deadline = 0.0  # Long ago.
    assert relay.read() == b"WARNING: "
    assert relay.deadline == float("inf")


def test_time_is_not_prolonged_by_more_of_the_same(
    relay: TerminalRelay,
) -> None:
    os.write(relay.programs_end, b"WARN")
    _read(relay)
    deadline = relay.deadline
    os.write(relay.programs_end, b"ING: ")
    _read(relay)
    assert relay.deadline == deadline


def test_ends_with_the_program(relay: TerminalRelay) -> None:
    os.write(relay.programs_end, b"last words\nWARN")
    relay.release_programs_end()
    assert relay.drain() == b"last words\nWARN"
    assert not relay.is_open
    relay.resize()


def test_reads_the_end(relay: TerminalRelay) -> None:
    relay.release_programs_end()
    assert _read(relay) == b""
    assert not relay.is_open


def test_does_not_wait_for_who_holds_it_open(relay: TerminalRelay) -> None:
    os.write(relay.programs_end, b"bye")
    assert relay.drain() == b"bye"
    assert not relay.is_open


def test_has_nothing_to_read_yet(relay: TerminalRelay) -> None:
    assert relay.read() == b""
    assert relay.is_open
