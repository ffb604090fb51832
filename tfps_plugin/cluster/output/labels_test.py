import click
import pytest

from tfps_plugin.cluster.output.labels import make_labels
from tfps_plugin.cluster.output.labels import wants_colour

_NAMES = ("ps 0", "worker 0", "chief")


def test_labels_have_one_width() -> None:
    assert make_labels(_NAMES, coloured=False) == {
        "ps 0": "ps 0     | ",
        "worker 0": "worker 0 | ",
        "chief": "chief    | ",
    }


def test_each_task_has_a_colour_of_its_own() -> None:
    plain = make_labels(_NAMES, coloured=False)
    coloured = make_labels(_NAMES, coloured=True)
    starts = set()
    for name in _NAMES:
        assert click.unstyle(coloured[name]) == plain[name]
        starts.add(coloured[name].split("m")[0])
    assert len(starts) == len(_NAMES)


def test_there_are_labels_for_more_tasks_than_colours() -> None:
    names = [f"worker {index}" for index in range(50)]
    assert list(make_labels(names, coloured=True)) == names


@pytest.mark.parametrize(
    ("environ", "is_terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colour_is_a_matter_of_terminal_and_wish(
    environ: dict[str, str], is_terminal: bool, expected: bool
) -> None:
    assert wants_colour(environ, is_terminal=is_terminal) is expected
