import io
import types
from typing import Any

import pytest

from tfps_plugin.cluster.output import progress_line
from tfps_plugin.cluster.output.progress_line import ProgressLine
from tfps_plugin.cluster.spec import ClusterSpec


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_says_what_starts_and_how_far_that_is() -> None:
    cluster = ClusterSpec(("a:1", "a:2"), ("a:3",))
    assert progress_line.text(cluster, 2, 3, 1.4) == (
        "tfps: starting a cluster on this machine (2 workers, 1 ps): "
        "2 of 3 tasks serve after 1 s"
    )
    assert progress_line.loading_text(cluster) == (
        "tfps: starting a cluster on this machine (2 workers, 1 ps): loading "
        "TensorFlow"
    )
    assert "(1 worker, 1 ps): 1 of 2 tasks serves" in progress_line.text(
        ClusterSpec(("a:1",), ("a:2",)), 1, 2, 0.0
    )


def test_a_terminal_has_one_line_that_goes_away() -> None:
    terminal = _Terminal()
    with ProgressLine(terminal) as line:
        line.show("0 of 2")
        line.show("0 of 2")
        line.show("1 of 2")
    clear = "\r\x1b[K"
    assert terminal.getvalue() == f"{clear}0 of 2{clear}1 of 2{clear}"


def test_a_notebook_has_it_too() -> None:
    kernels = {"__module__": "ipykernel.iostream"}
    cell = type("OutStream", (io.StringIO,), kernels)()
    with ProgressLine(cell) as line:
        line.show("0 of 2")
        line.show("1 of 2")
    clear = "\r      \r"
    assert cell.getvalue() == f"0 of 2{clear}1 of 2{clear}"


def test_a_line_that_went_away_may_come_again() -> None:
    terminal = _Terminal()
    line = ProgressLine(terminal)
    line.show("0 of 2")
    line.close()
    line.show("0 of 2")
    assert terminal.getvalue().count("0 of 2") == 2


def test_json_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFPS_LOG_FORMAT", "json")
    terminal = _Terminal()
    with ProgressLine(terminal) as line:
        line.show("0 of 2")
    assert terminal.getvalue() == ""


def test_a_chief_says_what_it_waits_for() -> None:
    assert progress_line.waiting_text(1, 3, 4.6) == (
        "tfps: waiting for the tasks of the cluster: 1 of 3 answers after 5 s"
    )


def test_what_is_not_shown_is_not_taken_away() -> None:
    terminal = _Terminal()
    ProgressLine(terminal).close()
    assert terminal.getvalue() == ""


def test_what_can_only_be_written_to_gets_nothing() -> None:
    # No `isatty`: a program has put it in the place of standard error.
    written: list[str] = []
    only: Any = types.SimpleNamespace(write=written.append, flush=int)
    with ProgressLine(only) as line:
        line.show("1 of 2")
    assert not written


def test_a_file_gets_nothing() -> None:
    file = io.StringIO()
    with ProgressLine(file) as line:
        line.show("1 of 2")
    assert file.getvalue() == ""
