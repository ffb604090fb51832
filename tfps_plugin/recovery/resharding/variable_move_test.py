"""Tests of variables and their rows on their way to other devices."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.resharding import moved_rows
from tfps_plugin.recovery.resharding.variable_move import VariableMove
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.sharding.layout import RowLayout

_WIDTH = 3
# Aligned slices have this many rows at least.
_SLICE_ROWS = 64


def _new_variable(
    like: RemoteVariable, num_rows: int | None, device: str, name: str
) -> RemoteVariable:
    # Every device of a test is this machine's.
    del device
    shape = like.shape
    if num_rows is not None:
        shape = tf.TensorShape([num_rows]).concatenate(shape[1:])
    return RemoteVariable(testing.LOCAL_DEVICE, shape, like.dtype, name)


def _on_all(move: VariableMove, act: str) -> None:
    for rows in move.rows:
        rows.allocate()
        getattr(rows, act)()


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts tables into slices of a few rows."""
    monkeypatch.setattr(row_marks, "SMALLEST_TABLE_BYTES", 0)
    monkeypatch.setattr(moved_rows, "SLICE_BYTES", 1)


def _offsets(draw: st.DrawFn, num_rows: int) -> RowLayout:
    inner = draw(st.sets(st.integers(1, num_rows - 1), max_size=4))
    return RowLayout((0, *sorted(inner), num_rows))


@st.composite
def _layouts(draw: st.DrawFn) -> tuple[int, int, RowLayout]:
    num_rows = draw(st.integers(2, 3 * _SLICE_ROWS))
    return (
        num_rows,
        draw(st.integers(1, min(4, num_rows))),
        _offsets(draw, num_rows),
    )


@hypothesis.settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(_layouts(), st.booleans(), st.integers(0, 2), st.randoms())
def test_rows_that_change_meanwhile_arrive_as_they_are(
    case: tuple[int, int, RowLayout],
    is_looked_up: bool,
    num_rounds: int,
    random: st.DataObject,
) -> None:
    num_rows, num_shards, layout = case
    draw = np.random.default_rng(random.randrange(1 << 30))  # type: ignore[attr-defined]
    truth = draw.normal(size=(num_rows, _WIDTH)).astype("float32")
    table = testing.sharded_variable(truth, num_shards)
    move = VariableMove(
        table,
        layout,
        ["/job:ps/task:9"] * layout.num_shards,
        _new_variable,
        is_looked_up=is_looked_up,
    )

    def change() -> None:
        rows = draw.integers(0, num_rows, 5)
        values = draw.normal(size=(5, _WIDTH)).astype("float32")
        for row, value in zip(rows, values, strict=True):
            truth[row] = value
            table[int(row)].assign(value)

    _on_all(move, "copy")
    change()
    for _ in range(num_rounds):
        _on_all(move, "copy_changed")
        change()
    _on_all(move, "complete")
    old, new = move.adopt()
    table.recut_is_complete()
    assert len(old) == num_shards
    assert len(new) == layout.num_shards
    assert table.layout == layout
    np.testing.assert_array_equal(table.numpy(), truth)
    np.testing.assert_array_equal(
        tf.gather(table, [0, num_rows - 1]), truth[[0, -1]]
    )


def test_only_rows_that_changed_are_copied_again() -> None:
    truth = np.arange(3 * _SLICE_ROWS * _WIDTH, dtype="float32")
    table = testing.sharded_variable(truth.reshape(-1, _WIDTH), 1)
    move = VariableMove(
        table,
        RowLayout.even(3 * _SLICE_ROWS, 2),
        ["/job:ps/task:8", "/job:ps/task:9"],
        _new_variable,
        is_looked_up=True,
    )
    (rows,) = move.rows
    rows.allocate()
    rows.copy()
    assert rows.copy_changed() == 0
    table[70].assign([1.0, 2.0, 3.0])
    assert rows.copy_changed() == _WIDTH * 4
    assert rows.copy_changed() == 0


def test_shards_that_stay_are_not_copied() -> None:
    table = testing.sharded_variable(np.ones((6, _WIDTH), "float32"), 2)
    move = VariableMove(
        table,
        RowLayout((0, 3, 5, 6)),
        [testing.LOCAL_DEVICE, testing.LOCAL_DEVICE, "/job:ps/task:9"],
        _new_variable,
        is_looked_up=True,
    )
    first = table.shards[0]
    assert [each.part.variable for each in move.rows] == [table.shards[1]]
    _on_all(move, "complete")
    old, new = move.adopt()
    assert table.shards[0] is first
    assert (len(old), len(new)) == (1, 2)


@pytest.mark.parametrize(
    "value", [3, [1.0, 2.0], [[1.0], [2.0]], "text"], ids=str
)
def test_a_whole_variable_is_the_same_object_elsewhere(value: object) -> None:
    variable = testing.remote_variable(value)
    before = variable.own_handle
    move = VariableMove(
        variable,
        RowLayout((0, 1)),
        ["/job:ps/task:9"],
        _new_variable,
        is_looked_up=False,
    )
    assert move.changes_anything
    _on_all(move, "copy")
    _on_all(move, "complete")
    assert move.adopt() == ([], [variable])
    assert variable.own_handle is not before
    expected = value.encode() if isinstance(value, str) else value
    np.testing.assert_array_equal(variable.numpy(), expected)


def test_a_slot_joins_the_new_shards() -> None:
    tables = [
        testing.sharded_variable(np.ones((4, _WIDTH), "float32"), 2)
        for _ in range(2)
    ]
    table, slot = tables
    table.join_family(slot)
    called: list[int] = []
    table.after_recut(lambda: called.append(table.layout.num_shards))
    for each in tables:
        move = VariableMove(
            each,
            RowLayout((0, 1, 2, 4)),
            ["/job:ps/task:9"] * 3,
            _new_variable,
            is_looked_up=True,
        )
        _on_all(move, "complete")
        move.adopt()
    for each in tables:
        each.recut_is_complete()
    assert called == [3]
    assert [
        shard.family[0] is of_slot
        for shard, of_slot in zip(table.shards, slot.shards, strict=True)
    ] == [True] * 3
