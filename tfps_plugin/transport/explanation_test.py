"""Tests of what a step sends, for people."""

from tfps_plugin.transport.explanation import Body
from tfps_plugin.transport.explanation import Explanation
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


def test_where_nothing_travels_it_says_so() -> None:
    assert str(Explanation(())) == "Nothing travels between tasks."
