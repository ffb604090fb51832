"""Tests of parcels: what arrives is what was sent, shard by shard."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.synchronous.parcels import Applied
from tfps_plugin.training.synchronous.parcels import Assigned
from tfps_plugin.training.synchronous.parcels import ParcelLayout
from tfps_plugin.training.synchronous.parcels import Parcels
from tfps_plugin.training.synchronous.sums import example_weights
from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.step_trace import StepTrace

_RANDOM = np.random.default_rng(0)
_TABLE = _RANDOM.normal(size=(7, 2)).astype("float32")
_WEIGHT = _RANDOM.normal(size=(3,)).astype("float32")
_DENSE = _RANDOM.normal(size=(7, 2)).astype("float32")
_GRADIENT = _RANDOM.normal(size=(3,)).astype("float32")
_IDS = [6, 1, 6, 3]
_VALUES = _RANDOM.normal(size=(4, 2)).astype("float32")
_EXAMPLES = 4.0
_FACTOR = example_weights.of(_EXAMPLES, tf.float32).numpy()
# Optimizers have variables, so they are not made in functions.
_SGD = keras.optimizers.SGD()


def _on_ps(value: np.ndarray, num_shards: int = 0) -> keras.Variable:
    """Returns a variable of parameter servers; 0 shards: in one piece."""

    def create(next_creator: Any, **kwargs: Any) -> Any:
        del next_creator, kwargs
        if num_shards:
            return testing.sharded_variable(value, num_shards)
        return testing.remote_variable(value)

    with tf.variable_creator_scope(create):
        return keras.Variable(value)


def _slices() -> tf.IndexedSlices:
    return tf.IndexedSlices(
        tf.constant(_VALUES), tf.constant(_IDS), tf.constant([7, 2])
    )


def _whole_slices() -> np.ndarray:
    whole = np.zeros((7, 2), "float32")
    np.add.at(whole, _IDS, _VALUES)
    return whole


class _Sent:
    """A parcel that was sent and unpacked again.

    Attributes:
        layout: Its layout.
        tensors: Its tensors.
        runs: For each optimizer: it, whole gradients, variables, and whether
            gradients are finite.
    """

    def __init__(
        self,
        applied: Callable[[], list[Applied]],
        assigned: Callable[[], list[Assigned]] = list,
        change: Callable[[list[tf.Tensor]], list[tf.Tensor]] = list,
        weight: float = _EXAMPLES,
    ) -> None:
        """Sends a parcel, in a function.

        Args:
            applied: Returns the gradients.
            assigned: Returns the values.
            change: Changes the tensors on the way.
            weight: Number of examples.
        """
        found: dict[str, Any] = {}

        @tf.function(autograph=False)
        def send() -> list[tf.Tensor]:
            parcels = Parcels(
                applied(),
                assigned(),
                [testing.LOCAL_DEVICE],
                tf.constant(weight),
            )
            found["layout"] = parcels.layouts[testing.LOCAL_DEVICE]
            return parcels.tensors[testing.LOCAL_DEVICE]

        self.tensors = send()
        self.layout: ParcelLayout = found["layout"]
        for tensor, part in zip(self.tensors, self.layout.parts, strict=True):
            assert part.spec.is_compatible_with(tensor)
        kept: list[tuple[Any, list[Any], Any]] = []

        @tf.function(autograph=False)
        def receive(tensors: list[tf.Tensor]) -> Any:
            StepTrace.current().only_on = testing.LOCAL_DEVICE
            outputs = []

            def run(
                optimizer: Any,
                gradients: list[Any],
                variables: list[Any],
                is_finite: Any,
            ) -> None:
                kept.append((optimizer, variables, gradients))
                whole = [tf.convert_to_tensor(each) for each in gradients]
                outputs.append((whole, is_finite))

            self.layout.apply(tensors, run, tf.constant(weight > 0))
            return outputs

        outputs = receive(change(self.tensors))
        self.runs = [
            (optimizer, [each.numpy() for each in whole], variables, is_finite)
            for (optimizer, variables, _), (whole, is_finite) in zip(
                kept, outputs, strict=True
            )
        ]
        self.gradients = [gradients for _, _, gradients in kept]


@pytest.mark.parametrize("num_shards", [0, 1, 3])
@pytest.mark.parametrize("kind", ["dense", "rows"])
def test_gradients_arrive_weighed(kind: str, num_shards: int) -> None:
    optimizer = keras.optimizers.SGD()
    table, weight = _on_ps(_TABLE, num_shards), _on_ps(_WEIGHT)
    sent = _Sent(
        lambda: [
            Applied(
                optimizer,
                [
                    tf.constant(_DENSE) if kind == "dense" else _slices(),
                    tf.constant(_GRADIENT),
                ],
                [table, weight],
            )
        ]
    )
    ((found, gradients, variables, is_finite),) = sent.runs
    assert found is optimizer
    assert variables == [table, weight]
    assert is_finite is None
    of_table = _DENSE if kind == "dense" else _whole_slices()
    for mine, expected in zip(gradients, (of_table, _GRADIENT), strict=True):
        np.testing.assert_allclose(mine, _FACTOR * expected, rtol=1e-6)
    hows = [part.how for part in sent.layout.parts]
    if kind == "dense":
        assert hows == ["mean"] * (max(num_shards, 1) + 1)
    else:
        # Ids and rows of all shards together.
        assert hows == ["mean", "rows", "rows"]


def test_an_id_travels_once_and_counts_from_the_first_shard() -> None:
    """The rows of the shards before are added to it."""
    one, other = _on_ps(_TABLE, 2), _on_ps(_TABLE, 3)
    sent = _Sent(lambda: [Applied(_SGD, [_slices()] * 2, [one, other])])
    ids, rows = sent.tensors
    assert ids.dtype == tf.int64
    assert sorted(ids.numpy()) == [1, 3, 6, 7 + 1, 7 + 3, 7 + 6]
    assert rows.shape == (6, 2)
    ((_, gradients, _, _),) = sent.runs
    for gradient in gradients:
        np.testing.assert_allclose(
            gradient, _FACTOR * _whole_slices(), rtol=1e-6
        )


def test_rows_of_each_shape_and_dtype_travel_together() -> None:
    tables = [
        _on_ps(_TABLE, 2),
        _on_ps(np.zeros((5, 3), "float32"), 2),
        _on_ps(np.zeros((4, 2), "float64")),
        _on_ps(_TABLE),
    ]
    weight = _on_ps(_WEIGHT)

    def row_of(table: keras.Variable) -> tf.IndexedSlices:
        return tf.IndexedSlices(
            tf.ones([1, table.shape[1]], table.dtype),
            tf.constant([3]),
            tf.constant([*table.shape]),
        )

    sent = _Sent(
        lambda: [
            Applied(
                _SGD,
                [*(row_of(table) for table in tables), tf.constant(_GRADIENT)],
                [*tables, weight],
            )
        ]
    )
    dense, *rows = [(part.spec, part.how) for part in sent.layout.parts]
    assert dense == (tf.TensorSpec([3], tf.float32), "mean")
    ids = (tf.TensorSpec([None], tf.int64), "rows")
    assert rows[::2] == [ids] * 3
    assert [spec for spec, _ in rows[1::2]] == [
        tf.TensorSpec([None, 2], tf.float32),
        tf.TensorSpec([None, 3], tf.float32),
        tf.TensorSpec([None, 2], tf.float64),
    ]
    # The third id of two tables of seven rows, one behind the other.
    assert sent.tensors[1].numpy().tolist() == [3, 7 + 3]
    ((_, gradients, variables, _),) = sent.runs
    assert variables == [*tables, weight]
    for gradient, table in zip(gradients[:-1], tables, strict=True):
        expected = np.zeros(table.shape)
        expected[3] = _FACTOR
        np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize("num_shards", [0, 2])
def test_ids_of_several_workers_may_repeat(num_shards: int) -> None:
    """The parcels of two workers behind each other are one of their sums."""
    table = _on_ps(_TABLE, num_shards)
    sent = _Sent(
        lambda: [Applied(_SGD, [_slices()], [table])],
        change=lambda tensors: [tf.concat([t, t], 0) for t in tensors],
    )
    ((gradient,),) = sent.gradients
    assert isinstance(gradient, DistinctRows), "an id occurs once"
    ((_, (whole,), _, _),) = sent.runs
    np.testing.assert_allclose(whole, 2 * _FACTOR * _whole_slices(), rtol=1e-6)


def test_each_optimizer_gets_its_own_gradients() -> None:
    one, other = keras.optimizers.SGD(), keras.optimizers.Adam()
    table, weight = _on_ps(_TABLE, 2), _on_ps(_WEIGHT)
    sent = _Sent(
        lambda: [
            Applied(one, [tf.constant(_GRADIENT)], [weight]),
            Applied(other, [_slices()], [table]),
        ]
    )
    assert [(run[0], run[2]) for run in sent.runs] == [
        (one, [weight]),
        (other, [table]),
    ]
    np.testing.assert_allclose(sent.runs[0][1][0], _FACTOR * _GRADIENT)
    assert sent.layout.optimizers == [one, other]


def test_halves_are_multiplied_in_full_precision() -> None:
    """Their weight is less than the smallest half."""
    weight, table = (
        _on_ps(np.zeros(shape, "float16")) for shape in ([2], [4, 1])
    )
    rows = np.array([[2.0]], "float16")
    sent = _Sent(
        lambda: [
            Applied(
                _SGD,
                [
                    tf.constant([0.5, -1.0], tf.float16),
                    tf.IndexedSlices(
                        tf.constant(rows), tf.constant([3]), tf.constant([4, 1])
                    ),
                ],
                [weight, table],
            )
        ],
    )
    dense, _, values = sent.tensors
    assert (dense.dtype, values.dtype) == (tf.float32, tf.float32)
    np.testing.assert_array_equal(dense / _FACTOR, [0.5, -1.0])
    np.testing.assert_array_equal(values / _FACTOR, [[2.0]])


def test_without_examples_gradients_are_zero_even_if_they_are_no_numbers() -> (
    None
):
    weight, table = _on_ps(_WEIGHT), _on_ps(_TABLE, 2)
    state = testing.remote_variable(_WEIGHT)
    sent = _Sent(
        lambda: [
            Applied(
                _SGD,
                [
                    tf.constant([np.nan, np.inf, 1.0]),
                    tf.IndexedSlices(
                        tf.fill([2, 2], np.float32(np.nan)),
                        tf.constant([0, 5]),
                        tf.constant([7, 2]),
                    ),
                ],
                [weight, table],
            )
        ],
        lambda: [
            Assigned(state, "assign", tf.fill([3], np.float32(np.nan)), "mean")
        ],
        weight=0.0,
    )
    ((_, (dense, rows), _, _),) = sent.runs
    np.testing.assert_array_equal(dense, np.zeros(3))
    np.testing.assert_array_equal(rows, np.zeros((7, 2)))
    # There is no mean of nothing: it stays as it is.
    np.testing.assert_array_equal(state.numpy(), _WEIGHT)


@pytest.mark.parametrize("how", ["mean", "sum", "first"])
@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_values_are_assigned_by_their_method(method: str, how: Any) -> None:
    weight, assigned = _on_ps(_WEIGHT), testing.remote_variable(_WEIGHT)
    table = testing.sharded_variable(_TABLE, 3)
    factor = _FACTOR if how == "mean" else 1.0
    sent = _Sent(
        lambda: [Applied(_SGD, [tf.constant(_GRADIENT)], [weight])],
        lambda: [
            Assigned(assigned, method, tf.constant(_GRADIENT), how),
            Assigned(table, method, tf.constant(_DENSE), how),
        ],
    )
    for variable, before, value in (
        (assigned, _WEIGHT, _GRADIENT),
        (table, _TABLE, _DENSE),
    ):
        expected = {
            "assign": factor * value,
            "assign_add": before + factor * value,
            "assign_sub": before - factor * value,
        }[method]
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)
    assert [part.how for part in sent.layout.parts[1:]] == [how] * 4


@pytest.mark.parametrize(
    ("broken", "weight_of_worker", "is_finite"),
    [
        (0.0, _EXAMPLES, True),
        (np.inf, _EXAMPLES, False),
        (np.nan, _EXAMPLES, False),
        # Gradients of no examples do not count.
        (np.nan, 0.0, True),
    ],
)
def test_every_ps_learns_whether_scaled_gradients_are_finite(
    broken: float, weight_of_worker: float, is_finite: bool
) -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    weight = _on_ps(_WEIGHT)
    sent = _Sent(
        lambda: [
            Applied(optimizer, [tf.constant([1.0, broken, 2.0])], [weight])
        ],
        weight=weight_of_worker,
    )
    ((_, _, _, found),) = sent.runs
    assert bool(found) is is_finite
    # The number of workers whose gradients are not.
    assert sent.layout.parts[-1].how == "sum"
    ((inner, variables),) = sent.layout.updates
    assert inner is optimizer.inner_optimizer
    assert variables == [weight]


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize(
    ("wire_dtype", "largest", "is_finite"),
    [
        (tf.float16, 5e4, True),
        (tf.float16, 7e4, False),
        (tf.bfloat16, 7e4, True),
        (tf.int8, 7e4, True),
        (None, 7e4, True),
    ],
)
def test_scaled_gradients_have_to_be_finite_when_they_arrive(
    wire_dtype: Any, largest: float, is_finite: bool, is_sparse: bool
) -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    table = _on_ps(np.zeros((7, 8), "float32"), 2)
    table.value.wire_dtype = wire_dtype
    # An id occurs twice, and travels once.
    ids = [6, 1, 6]

    def gradient() -> Any:
        values = np.ones((3, 8), "float32")
        values[[0, 2]] = largest / 2
        slices = tf.IndexedSlices(tf.constant(values), ids, tf.constant([7, 8]))
        return slices if is_sparse else tf.convert_to_tensor(slices)

    sent = _Sent(lambda: [Applied(optimizer, [gradient()], [table])])
    ((_, _, _, found),) = sent.runs
    assert bool(found) is is_finite


def test_no_optimizer_without_a_scale_checks_gradients() -> None:
    weight = _on_ps(_WEIGHT)
    sent = _Sent(
        lambda: [
            Applied(
                _SGD,
                [tf.constant([1.0, np.inf, 2.0])],
                [weight],
            )
        ]
    )
    assert len(sent.tensors) == 1
    assert sent.runs[0][3] is None
