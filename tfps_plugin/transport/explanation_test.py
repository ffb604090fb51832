"""Tests of the table of a step's messages."""

import dataclasses

import pytest

from tfps_plugin.transport.explanation import Body
from tfps_plugin.transport.explanation import Explanation
from tfps_plugin.transport.explanation import Held
from tfps_plugin.transport.explanation import Sent

_PS = "/job:ps/replica:0/task:1"


def test_it_is_a_table_with_a_sum() -> None:
    body = Body(
        "step",
        12,
        (
            Sent("", _PS, 0, 3, 1, 2, 1024, 0),
            Sent(_PS, "", 1, 4, 0, 2, 2048, 3),
            Sent(_PS, "", 2, 0, 2, 1, 0, 0),
            Sent("", _PS, 3, 2, 0, 1, 0, 2),
        ),
    )
    assert body.num_parcels == 6
    assert str(Explanation((body,))).splitlines() == [
        "step: 12 values travel between tasks, in 6 messages",
        "wave  from    to      values                      bytes  messages",
        "   0  worker  ps 1         4                      1,024         2",
        "   1  ps 1    worker       4  2,048 + 3 of unknown size         2",
        "   2  ps 1    worker       2                          0         1",
        "   3  worker  ps 1         2          2 of unknown size         1",
        "                          12                                    6",
    ]


def test_what_the_chief_runs_is_told_from_what_workers_run() -> None:
    body = Body("sums", 2, (Sent(_PS, "", 0, 1, 0, 1, 8, 0),), runs_on="chief")
    assert str(Explanation((body,))).splitlines()[2] == (
        "   0  ps 1  chief       1      8         1"
    )


def test_on_the_task_that_it_asks_a_body_sends_nothing() -> None:
    there, back = (
        Sent("", _PS, 0, 1, 0, 1, 8, 0),
        Sent(_PS, "", 1, 1, 0, 1, 8, 0),
    )
    other = Sent("", "/job:ps/replica:0/task:0", 2, 1, 0, 1, 8, 0)
    body = Body("step", 2, (there, back))
    assert body.is_within(_PS)
    assert not body.is_within("")
    assert not Body("step", 3, (there, back, other)).is_within(_PS)


def test_where_nothing_travels_it_says_so() -> None:
    assert str(Explanation(())) == "Nothing travels between tasks."


def test_the_value_of_a_cell_shows_the_table_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = Body("step", 1200, (Sent("", _PS, 0, 3, 1, 2, 1024, 0),))
    explanation = Explanation((body,))
    explanation._ipython_display_()
    assert capsys.readouterr().out == f"{explanation}\n"
    printed = dataclasses.replace(explanation, is_printed=True)
    printed._ipython_display_()
    assert capsys.readouterr().out == ""
    assert printed == explanation
    assert repr(printed) == (
        "<Explanation of 1 functions: 1,200 values in 2 messages>"
    )


def test_placement_is_shown_with_the_largest_variables_first() -> None:
    body = Body(
        "step",
        1,
        (Sent(_PS, "", 0, 1, 0, 1, 8, 0),),
        operations=(("", 120), (_PS, 1030)),
    )
    held = (
        Held("/job:ps/replica:0/task:0", "bias", 40),
        Held(_PS, "dense/kernel", 4000),
    )
    text = str(Explanation((body,), held))
    assert text.splitlines()[-5:] == [
        "",
        "It uses 2 variables and shards: ps 0 40 bytes (1), ps 1 4,000 bytes "
        "(1)",
        "variable      on    bytes",
        "dense/kernel  ps 1  4,000",
        "bias          ps 0     40",
    ]
    assert "operations: worker 120, ps 1 1,030" in text


def test_tables_on_disk_are_shown_with_their_share_in_memory() -> None:
    body = Body("step", 1, (Sent(_PS, "", 0, 1, 0, 1, 8, 0),))
    held = (Held(_PS, "items", 40_000, 39_000), Held(_PS, "bias", 40))
    assert str(Explanation((body,), held)).splitlines()[-4:] == [
        "It uses 2 variables and shards: ps 1 40,040 bytes, at most 1,040 of "
        "them in memory (2)",
        "variable  on     bytes  in memory",
        "items     ps 1  40,000      1,000",
        "bias      ps 1      40         40",
    ]


def test_many_variables_are_summed_up() -> None:
    body = Body("step", 1, (Sent(_PS, "", 0, 1, 0, 1, 8, 0),))
    held = tuple(Held(_PS, f"v{number}", number) for number in range(20))
    lines = str(Explanation((body,), held)).splitlines()
    assert lines[-1].split() == ["8", "smaller", "ones", "28"]
