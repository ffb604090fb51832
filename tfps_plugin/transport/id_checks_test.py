"""Tests of id checks in fused functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.transport import fusion
from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup import graph_checks

_ROWS = (4, 7, 10)
_IDS = tf.TensorSpec([None], tf.int64)


def _on_ps(ids: tf.Tensor) -> tf.Tensor:
    """Computes something from ids on a parameter server."""
    with tf.device(testing.LOCAL_DEVICE):
        return tf.cast(ids, tf.float32) * 2.0 + 1.0


def _inside(ids: tf.Tensor, table: int, *, from_end: bool = False) -> tf.Tensor:
    return graph_checks.require_inside(
        ids, _ROWS[table], f"table {table}", from_end=from_end
    )


def _fused(function: Callable[..., Any], *specs: tf.TensorSpec) -> Any:
    """Returns the function with fewer messages."""
    with tf.device(None):
        traced = tf.function(function).get_concrete_function(*specs)
    fused: Any = fusion.fuse(traced)
    assert fused is not traced
    return fused


def _looks_up_all(*ids: tf.Tensor) -> list[tf.Tensor]:
    return [_on_ps(_inside(ids_N, i)) for i, ids_N in enumerate(ids)]


def test_ids_that_are_inside_go_on() -> None:
    fused = _fused(_looks_up_all, *[_IDS] * 3)
    ids = [np.arange(rows, dtype=np.int64)[::-1] for rows in _ROWS]
    ids[1] = ids[1][:0]  # a batch without ids
    for found, expected in zip(fused(*map(tf.constant, ids)), ids, strict=True):
        np.testing.assert_array_equal(found, 2.0 * expected + 1.0)


@pytest.mark.parametrize("table", range(3))
@pytest.mark.parametrize("wrong", [-1, None, 1 << 40])
def test_the_error_says_which_table_it_is(
    table: int, wrong: int | None
) -> None:
    """The message is the same as outside of functions."""
    fused = _fused(_looks_up_all, *[_IDS] * 3)
    ids = [tf.constant([0, rows - 1], tf.int64) for rows in _ROWS]
    wrong = _ROWS[table] if wrong is None else wrong
    ids[table] = tf.constant([1, wrong, 2], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError) as alone:
        _inside(ids[table], table)
    with pytest.raises(tf.errors.InvalidArgumentError) as together:
        fused(*ids)
    told = alone.value.message
    told = told[told.index("[Ids outside") : told.index("lookup.]")]
    assert f"table {table} " in told
    assert str(wrong) in told
    assert told in together.value.message


def test_nothing_is_asked_of_a_parameter_server_before() -> None:
    asked = tf.Variable(0.0)

    def step(*ids: tf.Tensor) -> list[tf.Tensor]:
        rows = _looks_up_all(*ids)
        with tf.device(testing.LOCAL_DEVICE):
            asked.assign_add(tf.reduce_sum(rows[0]))
        return rows

    fused = _fused(step, *[_IDS] * 3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        fused(*(tf.constant([i], tf.int64) for i in (0, 0, 10)))
    assert float(asked) == 0.0
    fused(*(tf.constant([i], tf.int64) for i in (0, 0, 9)))
    assert float(asked) == 1.0


def test_ids_that_depend_on_checked_ones_are_checked_after_them() -> None:
    def step(ids: tf.Tensor, others: tf.Tensor) -> list[tf.Tensor]:
        first = _inside(ids, 0)
        second = _inside(first * 2, 1)
        third = _inside(others, 2)
        return [_on_ps(ids_N) for ids_N in (first, second, third)]

    fused = _fused(step, _IDS, _IDS)
    for ids, others, table in (([3], [9], None), ([4], [9], 0), ([3], [10], 2)):
        args = tf.constant(ids, tf.int64), tf.constant(others, tf.int64)
        if table is None:
            assert [t.numpy().tolist() for t in fused(*args)] == [
                [7.0],
                [13.0],
                [19.0],
            ]
        else:
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=f"table {table} "
            ):
                fused(*args)


def test_what_is_done_between_checks_is_done_in_order() -> None:
    """Each operation runs after the check of its inputs."""
    done = tf.Variable(0.0)

    def step(ids: tf.Tensor, others: tf.Tensor) -> list[tf.Tensor]:
        first = _inside(ids, 0)
        done.assign_add(tf.cast(tf.reduce_sum(first), tf.float32))
        second = _inside(others, 1)
        return [_on_ps(first), _on_ps(second), done.read_value()]

    fused = _fused(step, _IDS, _IDS)
    for expected in (1.0, 2.0):
        *_, seen = fused(tf.constant([1], tf.int64), tf.constant([1], tf.int64))
        assert float(seen) == expected
    with pytest.raises(tf.errors.InvalidArgumentError, match="table 0 "):
        fused(tf.constant([4], tf.int64), tf.constant([1], tf.int64))
    assert float(done) == 2.0


def test_ids_may_count_from_the_end() -> None:
    def step(*ids: tf.Tensor) -> list[tf.Tensor]:
        return [
            _on_ps(_inside(ids_N, i, from_end=True))
            for i, ids_N in enumerate(ids)
        ]

    fused = _fused(step, _IDS, _IDS)
    fused(tf.constant([-4], tf.int64), tf.constant([-7], tf.int64))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="or -7 to -1 from its end"
    ):
        fused(tf.constant([-4], tf.int64), tf.constant([-8], tf.int64))


def test_other_assertions_stay_as_they_are() -> None:
    def step(ids: tf.Tensor, others: tf.Tensor) -> list[tf.Tensor]:
        tf.debugging.Assert(tf.reduce_all(ids >= 0), ["below", ids])
        tf.debugging.Assert(tf.reduce_all(others >= 0), ["below too", others])
        return [_on_ps(ids), _on_ps(others)]

    fused = _fused(step, _IDS, _IDS)
    with pytest.raises(tf.errors.InvalidArgumentError, match="below too"):
        fused(tf.constant([4], tf.int64), tf.constant([-1], tf.int64))


def test_loops_and_branches_check_their_own() -> None:
    def step(ids: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            rows = tf.cond(
                i % 2 == 0,
                lambda: _looks_up_all(ids, others),
                lambda: _looks_up_all(others, ids),
            )
            return i + 1, total + tf.add_n([tf.reduce_sum(r) for r in rows])

        return tf.while_loop(lambda i, _: i < 2, body, [0, 0.0])[1]

    fused = _fused(step, _IDS, _IDS)
    ids = tf.constant([1, 3], tf.int64)
    assert float(fused(ids, ids)) == 2 * 2 * (3.0 + 7.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="table 0 "):
        # Only the second iteration looks these up in the smallest table.
        fused(ids, tf.constant([6], tf.int64))
