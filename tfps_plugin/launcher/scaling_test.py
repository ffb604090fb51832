"""Tests of a job whose numbers of tasks change, without its processes."""

import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.launcher import control_socket
from tfps_plugin.launcher import process_plan
from tfps_plugin.launcher.scaling import Scaling
from tfps_plugin.launcher.task_range import TaskRange

_TIMEOUT_SECONDS = 10.0
_FIRST = ["chief", "worker 0", "worker 1", "ps 0"]


@pytest.fixture
def scaling() -> Iterator[Scaling]:
    largest = process_plan.plan_cluster(
        range(4000, 4006), num_workers=3, num_ps=2
    )
    ranges = [TaskRange(WORKER, 2, 3), TaskRange(PARAMETER_SERVER, 1, 2)]
    with control_socket.listening() as control:
        yield Scaling(control, ranges, largest, process_plan.plan_task)


def _ask(scaling: Scaling, request: Any) -> tuple[dict[str, str], str | None]:
    """Returns the answer to a request, and the sentence for the console."""
    answers: list[dict[str, str]] = []
    path = scaling.control.folder / "control"
    other = threading.Thread(
        target=lambda: answers.append(control_socket.ask(path, request))
    )
    other.start()
    text = scaling.take_request()
    other.join(_TIMEOUT_SECONDS)
    return answers[0], text


def _described(scaling: Scaling) -> tuple[int, int]:
    """Returns the numbers of workers and ps that the chief reads."""
    jobs = json.loads(pathlib.Path(scaling.path).read_text())
    return len(jobs[WORKER]), len(jobs[PARAMETER_SERVER])


def test_the_chief_first_reads_the_first_numbers(scaling: Scaling) -> None:
    assert _described(scaling) == (2, 1)
    assert scaling.take_due(_FIRST) == []


def test_both_numbers_change_at_once(scaling: Scaling) -> None:
    answer, text = _ask(scaling, {WORKER: 3, PARAMETER_SERVER: 2})
    assert answer == {"text": text}
    assert text == (
        "3 workers and 2 parameter servers from now on; "
        "2 workers and 1 parameter server before."
    )
    assert _described(scaling) == (3, 2)
    due = {each.name: each.environ for each in scaling.take_due(_FIRST)}
    assert list(due) == ["worker 2", "ps 1"]
    for environ in due.values():
        cluster = json.loads(environ["TF_CONFIG"])["cluster"]
        assert cluster[WORKER] == [f"127.0.0.1:{n}" for n in range(4001, 4004)]
        assert cluster[PARAMETER_SERVER] == ["127.0.0.1:4004", "127.0.0.1:4005"]


@pytest.mark.parametrize("job", [WORKER, PARAMETER_SERVER])
def test_one_number_changes_and_the_other_stays(
    scaling: Scaling, job: str
) -> None:
    _ask(scaling, {job: 1})
    assert _described(scaling) == (1 if job == WORKER else 2, 1)


def test_the_last_request_wins(scaling: Scaling) -> None:
    _ask(scaling, {PARAMETER_SERVER: 2})
    assert [each.name for each in scaling.take_due(_FIRST)] == ["ps 1"]
    running = [*_FIRST, "ps 1"]
    # The chief copies to the new one, and reads the file again afterwards.
    _ask(scaling, {PARAMETER_SERVER: 1})
    assert _described(scaling) == (2, 1)
    assert scaling.take_due(running) == []
    _ask(scaling, {PARAMETER_SERVER: 2})
    assert _described(scaling) == (2, 2)
    assert scaling.take_due(running) == []
    # It had removed it, and told it to end.
    assert scaling.ended("ps 1", 0) is not None
    assert [each.name for each in scaling.take_due(_FIRST)] == ["ps 1"]


def test_nothing_changes_if_one_number_is_refused(scaling: Scaling) -> None:
    answer, text = _ask(scaling, {WORKER: 3, PARAMETER_SERVER: 5})
    assert text is None
    assert "Expected 1 to 2 parameter servers" in answer["error"]
    assert _described(scaling) == (2, 1)
    assert scaling.take_due(_FIRST) == []


@pytest.mark.parametrize(
    "request_", [None, [], {}, {"chief": 1}, {WORKER: "3"}, {WORKER: True}]
)
def test_what_is_no_request_is_refused(scaling: Scaling, request_: Any) -> None:
    answer, text = _ask(scaling, request_)
    assert text is None
    assert "not understood" in answer["error"]
    assert "worker and ps" in answer["error"]


def test_the_end_of_the_chief_concerns_others(scaling: Scaling) -> None:
    assert scaling.ended("chief", 0) is None
