from typing import Any

import pytest

from tfps_plugin.evaluation.checkpoint import Checkpoint
from tfps_plugin.evaluation.checkpoint import Stamp
from tfps_plugin.evaluation.pending import PendingCheckpoints


def _checkpoint(name: str, modified_ns: int, num_bytes: int = 9) -> Checkpoint:
    kind: Any = None
    stamp = Stamp(modified_ns, num_bytes)
    return Checkpoint(f"/c/{name}", name, f"/c/{name}", stamp, kind)


def _pending(**options: float) -> PendingCheckpoints:
    return PendingCheckpoints(
        **{
            "settle_seconds": 0.0,
            "retry_seconds": 1.0,
            "give_up_seconds": 10.0,
            **options,
        }
    )


_OLD, _YOUNG = _checkpoint("a-1", 100), _checkpoint("a-2", 200)


def test_the_youngest_is_next_and_the_older_are_passed_over() -> None:
    pending = _pending()
    pending.look([_OLD, _YOUNG], 0)
    assert pending.next(0) == _YOUNG
    assert pending.evaluated(_YOUNG) == 1
    pending.look([_OLD, _YOUNG], 1)
    assert pending.next(1) is None
    assert len(pending) == 0


@pytest.mark.parametrize("name", ["a-10", "a-9-10", "b"])
def test_the_number_decides_between_equal_times(name: str) -> None:
    pending = _pending()
    pending.look([_checkpoint("a-9", 5), _checkpoint(name, 5)], 0)
    expected = "a-9" if name == "b" else name
    chosen = pending.next(0)
    assert chosen is not None
    assert chosen.name == expected


def test_a_file_that_is_written_again_is_another_checkpoint() -> None:
    pending = _pending()
    pending.look([_OLD], 0)
    pending.evaluated(_OLD)
    again = _checkpoint("a-1", 150)
    pending.look([again], 1)
    assert pending.next(1) == again


def test_what_appears_later_is_new_whatever_its_date() -> None:
    pending = _pending()
    pending.look([_YOUNG], 0)
    pending.evaluated(_YOUNG)
    pending.look([_YOUNG, _OLD], 1)
    assert pending.next(1) == _OLD


def test_what_is_missing_from_one_listing_is_not_new_in_the_next() -> None:
    pending = _pending()
    pending.look([_OLD], 0)
    pending.evaluated(_OLD)
    pending.look([], 1)
    pending.look([_OLD], 2)
    assert pending.next(2) is None


def test_what_was_deleted_is_not_next() -> None:
    pending = _pending()
    pending.look([_OLD, _YOUNG], 0)
    pending.look([_OLD], 0)
    assert pending.next(0) == _OLD


def test_a_file_has_to_settle_unless_nobody_writes_any_more() -> None:
    pending = _pending(settle_seconds=2.0)
    pending.look([_OLD], 0)
    assert pending.next(1) is None
    assert pending.next(1, is_final=True) == _OLD
    grown = _checkpoint("a-1", 101, 10)
    pending.look([grown], 1)
    assert pending.next(2.5) is None
    assert pending.next(3) == grown


def test_one_that_fails_is_tried_again_and_then_given_up() -> None:
    pending = _pending()
    pending.look([_YOUNG], 0)
    assert not pending.failed(_YOUNG, 0)
    assert pending.next(0.5) is None
    assert pending.next(1) == _YOUNG
    assert not pending.failed(_YOUNG, 9.9)
    assert pending.failed(_YOUNG, 10)
    pending.look([_YOUNG], 11)
    assert pending.next(11) is None


def test_meanwhile_the_next_one_takes_its_turn() -> None:
    pending = _pending()
    pending.look([_OLD, _YOUNG], 0)
    pending.failed(_YOUNG, 0)
    assert pending.next(0) == _OLD
    pending.evaluated(_OLD)
    assert pending.next(1) == _YOUNG


def test_at_the_end_one_attempt_has_to_do() -> None:
    pending = _pending()
    pending.look([_OLD, _YOUNG], 0)
    assert pending.failed(_YOUNG, 0, is_final=True)
    assert pending.next(0, is_final=True) == _OLD
