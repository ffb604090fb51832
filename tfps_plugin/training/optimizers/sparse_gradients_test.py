from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.optimizers import sparse_gradients
from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.step_trace import StepTrace

_ROWS = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
_DENSE = np.random.default_rng(1).normal(size=(5,)).astype("float32")
_IDS = np.array([6, 0, 3])
_SHAPE = (7, 2)


def _gradients() -> list[Any]:
    return [
        DistinctRows(tf.constant(_ROWS), tf.constant(_IDS), [8, 4]),
        tf.constant(_DENSE),
    ]


def _whole() -> list[Any]:
    table = np.zeros((8, 4), "float32")
    table[_IDS] = _ROWS
    return [tf.constant(table), tf.constant(_DENSE)]


@pytest.mark.parametrize(
    "options",
    [
        {"clipnorm": 0.5},
        {"clipnorm": 1e3},
        {"global_clipnorm": 0.5},
        {"global_clipnorm": 1e3},
        {"clipvalue": 0.1},
        {},
    ],
    ids=str,
)
def test_rows_are_clipped_as_the_whole_table_is(options: Any) -> None:
    optimizer = keras.optimizers.SGD(0.1, **options)
    expected = optimizer._clip_gradients(_whole())
    rows, dense = sparse_gradients.clip(optimizer, _gradients(), [])
    assert isinstance(rows, DistinctRows), "an id still occurs once"
    np.testing.assert_allclose(
        tf.convert_to_tensor(rows), expected[0], rtol=1e-6
    )
    np.testing.assert_allclose(dense, expected[1], rtol=1e-6)


def test_a_norm_that_is_not_finite_spoils_everything_as_in_keras() -> None:
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=1.0)
    rows, dense = sparse_gradients.clip(
        optimizer, [_gradients()[0], tf.constant([1.0, np.inf])], []
    )
    assert np.isnan(rows.values.numpy()).all()
    assert np.isnan(dense.numpy()).all()


def test_values_of_a_gradient() -> None:
    rows, dense = _gradients()
    np.testing.assert_array_equal(sparse_gradients.values_of(rows), _ROWS)
    np.testing.assert_array_equal(sparse_gradients.values_of(dense), _DENSE)


def _accumulator(num_shards: int) -> Any:
    if num_shards:
        return testing.sharded_variable(np.zeros(_SHAPE, "f4"), num_shards)
    return testing.remote_variable(np.zeros(_SHAPE, "f4"))


def _rows(ids: list[int], seed: int) -> tuple[DistinctRows, np.ndarray]:
    values = np.random.default_rng(seed).normal(size=(len(ids), 2))
    whole = np.zeros(_SHAPE, "f4")
    whole[ids] = values
    rows = DistinctRows(
        tf.constant(values, tf.float32), tf.constant(ids, tf.int64), _SHAPE
    )
    return rows, whole


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("num_shards", [0, 1, 3])
def test_rows_are_summed_and_taken_once(num_shards: int, traced: bool) -> None:
    total = _accumulator(num_shards)
    first, first_whole = _rows([5, 1], 0)
    second, second_whole = _rows([1, 6], 1)
    last, last_whole = _rows([0], 2)

    def run() -> Any:
        sparse_gradients.add(total, first)
        sparse_gradients.add(total, second)
        return sparse_gradients.take(total, last)

    taken = tf.function(run)() if traced else run()
    assert sorted(taken.indices.numpy()) == [0, 1, 5, 6]
    whole = np.zeros(_SHAPE, "f4")
    np.add.at(whole, taken.indices.numpy(), taken.values.numpy())
    np.testing.assert_allclose(
        whole, first_whole + second_whole + last_whole, rtol=1e-6
    )
    np.testing.assert_array_equal(total.numpy(), np.zeros(_SHAPE))


@pytest.mark.parametrize("num_shards", [0, 1, 3])
def test_dense_gradients_are_summed_and_taken_once(num_shards: int) -> None:
    total = _accumulator(num_shards)
    gradient = np.random.default_rng(0).normal(size=_SHAPE).astype("f4")

    @tf.function
    def run() -> Any:
        sparse_gradients.add(total, tf.constant(gradient))
        return sparse_gradients.take(total, tf.constant(2 * gradient))

    np.testing.assert_allclose(run(), 3 * gradient, rtol=1e-6)
    np.testing.assert_array_equal(total.numpy(), np.zeros(_SHAPE))


def test_no_rows_are_taken_where_none_were_touched() -> None:
    total = _accumulator(2)
    nothing, _ = _rows([], 0)
    taken = tf.function(lambda: sparse_gradients.take(total, nothing))()
    assert taken.values.shape == (0, 2)


@pytest.mark.parametrize("num_shards", [0, 2])
def test_what_is_not_finite_is_taken_like_the_rest(num_shards: int) -> None:
    total = _accumulator(num_shards)
    broken = DistinctRows(
        tf.constant([[np.inf, 1.0]]), tf.constant([3], tf.int64), _SHAPE
    )
    sparse_gradients.take(total, broken)
    rows, whole = _rows([3], 0)
    taken = sparse_gradients.take(total, rows)
    np.testing.assert_allclose(taken.values, whole[[3]], rtol=1e-6)


class _OverTwoPs:
    """Sums of vectors of two ps that run the same function.

    The other one has the gradients of this one, times `ratio`.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self.parts: list[tf.Tensor] = []

    def __call__(self, part: tf.Tensor) -> tf.Tensor:
        self.parts.append(part)
        return part * (1 + self._ratio**2)


def _clipped(options: Any, ratio: float) -> tuple[Any, _OverTwoPs]:
    """Clips what a ps has of a table, and of a dense gradient."""
    optimizer = keras.optimizers.SGD(0.1, **options)
    variables = [keras.Variable(np.zeros((8, 4))), keras.Variable(np.zeros(5))]
    optimizer.build(variables)
    total = _OverTwoPs(ratio)

    @tf.function(autograph=False)
    def run() -> Any:
        StepTrace.current().total_over_ps = total
        rows, dense = sparse_gradients.clip(optimizer, _gradients(), variables)
        return tf.convert_to_tensor(rows), dense

    return run(), total


@pytest.mark.parametrize("limit", [0.5, 1e3])
def test_a_global_norm_is_that_of_all_ps(limit: float) -> None:
    (rows, dense), total = _clipped({"global_clipnorm": limit}, ratio=3.0)
    assert len(total.parts) == 1
    whole = [*_whole(), *(3 * each for each in _whole())]
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=limit)
    expected = optimizer._clip_gradients(whole)[:2]
    np.testing.assert_allclose(rows, expected[0], rtol=1e-5)
    np.testing.assert_allclose(dense, expected[1], rtol=1e-5)


@pytest.mark.parametrize("limit", [0.5, 1e3])
def test_the_norm_of_a_variable_is_that_of_its_parts_on_all_ps(
    limit: float,
) -> None:
    (rows, dense), total = _clipped({"clipnorm": limit}, ratio=3.0)
    assert len(total.parts) == 1
    assert total.parts[0].shape == (2,)
    for found, mine in zip((rows, dense), _whole(), strict=True):
        both = tf.concat([mine, 3 * mine], 0)
        expected = tf.clip_by_norm(both, limit)[: mine.shape[0]]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_clipping_by_value_needs_no_other_ps() -> None:
    (rows, dense), total = _clipped({"clipvalue": 0.1}, ratio=3.0)
    assert not total.parts
    for found, mine in zip((rows, dense), _whole(), strict=True):
        np.testing.assert_allclose(found, np.clip(mine, -0.1, 0.1))


def test_places_of_a_norm_are_those_of_the_optimizer() -> None:
    """A ps that has only the second variable leaves the first at zero."""
    optimizer = keras.optimizers.SGD(0.1, clipnorm=0.5)
    variables = [keras.Variable(np.zeros((8, 4))), keras.Variable(np.zeros(5))]
    optimizer.build(variables)
    total = _OverTwoPs(ratio=0.0)

    @tf.function(autograph=False)
    def run() -> Any:
        StepTrace.current().total_over_ps = total
        sparse_gradients.clip(optimizer, _gradients()[1:], variables[1:])
        return total.parts[0]

    np.testing.assert_allclose(
        run(), [0.0, np.sum(np.square(_DENSE))], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("options", "size"), [({"clipnorm": 0.5}, 2), ({"global_clipnorm": 0.5}, 1)]
)
def test_a_ps_without_gradients_adds_nothing_to_a_norm(
    options: Any, size: int
) -> None:
    """It has to say so: the other parameter servers wait for its part."""
    optimizer = keras.optimizers.SGD(0.1, **options)
    optimizer.build([keras.Variable(np.zeros((8, 4))), keras.Variable(0.0)])
    total = _OverTwoPs(ratio=0.0)

    @tf.function(autograph=False)
    def run() -> Any:
        StepTrace.current().total_over_ps = total
        assert sparse_gradients.clip(optimizer, [], []) == []
        return total.parts

    (part,) = run()
    np.testing.assert_array_equal(part, np.zeros(size))
