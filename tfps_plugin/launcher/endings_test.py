import signal

import pytest

from tfps_plugin.launcher import endings


@pytest.mark.parametrize(
    ("returncode", "expected"), [(0, 0), (3, 3), (-9, 137), (-2, 130)]
)
def test_exit_status_is_the_shells(returncode: int, expected: int) -> None:
    assert endings.exit_status(returncode) == expected


def test_describes_exit_codes() -> None:
    assert endings.describe(3) == "ended with exit code 3"


def test_describes_every_signal() -> None:
    for number in signal.Signals:
        assert endings.describe(-number).startswith(
            f"was killed by {number.name} (signal {number.value}"
        )


def test_kill_names_the_usual_reason() -> None:
    assert "memory ran out" in endings.describe(-signal.SIGKILL)


def test_describes_signals_without_a_name() -> None:
    number = signal.SIGRTMIN + 1
    assert endings.describe(-number) == f"was killed by signal {number}"


def test_a_report_says_who_how_when_and_what_next() -> None:
    assert endings.death_report(
        "worker 1",
        1,
        elapsed_seconds=12.34,
        last_lines=["Traceback", "ValueError: x"],
        consequence="Life goes on.",
    ) == [
        "worker 1 ended with exit code 1 after 12.3 s.",
        "Last lines of worker 1:",
        "  Traceback",
        "  ValueError: x",
        "Life goes on.",
    ]


@pytest.mark.parametrize(
    ("last_lines", "middle"),
    [([], ["Last lines of chief:", "  (none)"]), (None, [])],
)
def test_a_report_without_a_log(
    last_lines: list[str] | None, middle: list[str]
) -> None:
    report = endings.death_report(
        "chief",
        1,
        elapsed_seconds=1,
        last_lines=last_lines,
        consequence="The end.",
    )
    assert report[1:-1] == middle
