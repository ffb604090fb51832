"""Tests that workers in step give the numbers of one process, by optimizer.

`shared_sync_parity` has the model, its data and the reference.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import shared_optimizers
import shared_sync_parity as parity
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_WORKERS = 2
_DATA = parity.Data(_WORKERS)

_optimizers = keras.optimizers


def _on_cluster(
    cluster: tfps.LocalCluster,
    make: Callable[[], keras.Model],
    dataset_fn: Any = _DATA.of_worker,
    **options: Any,
) -> parity.Trained:
    return parity.on_cluster(cluster, make, dataset_fn, **options)


@pytest.mark.sample(cases=3)
@pytest.mark.parametrize("name", parity.CASES)
def test_every_optimizer_and_option_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    expected = parity.in_one_process(name, _WORKERS)
    actual = _on_cluster(
        cluster, lambda: parity.new_model(parity.CASES[name]())
    )
    parity.assert_same(
        actual, expected, parity.TOLERANCES.get(name, parity.TOLERANCE)
    )


@pytest.mark.parametrize("name", ["Adafactor", "Lamb", "Muon"])
@pytest.mark.sample(cases=1)
def test_optimizers_of_whole_matrices_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    make = shared_optimizers.WHOLE_MATRIX[name]
    expected = parity.in_one_process(name, _WORKERS)
    actual = _on_cluster(
        cluster, lambda: parity.new_model(make()), partitioner=None
    )
    parity.assert_same(actual, expected)


class SlotsAnywhere(keras.optimizers.SGD):
    """Has slots that do not say to which variable they belong."""

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        self._slots = [
            self.add_variable(shape=(8,), name="slot") for _ in variables
        ]

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> None:
        slot = self._slots[self._get_variable_index(variable)]
        self.assign_add(slot, keras.ops.ones_like(slot))
        super().update_step(gradient, variable, learning_rate)


def test_slots_on_other_parameter_servers_are_refused(
    cluster: tfps.LocalCluster,
) -> None:
    with pytest.raises(
        tfps.errors.UnsupportedError, match=r"uses variables on.*task:"
    ):
        _on_cluster(
            cluster,
            lambda: parity.new_model(SlotsAnywhere(0.1)),
            partitioner=None,
        )


class _OwnClipping(keras.optimizers.SGD):
    """Clips by a norm that Keras knows nothing of."""

    def _clip_gradients(self, grads: Any) -> Any:
        return [0.5 * tf.convert_to_tensor(each) for each in grads]


def test_clipping_of_an_optimizer_of_ones_own_is_refused(
    cluster: tfps.LocalCluster,
) -> None:
    """It would see the gradients of one parameter server at a time."""
    with pytest.raises(
        tfps.errors.UnsupportedError, match=r"_OwnClipping\._clip_gradients"
    ):
        _on_cluster(
            cluster, lambda: parity.new_model(_OwnClipping(0.1, name="own"))
        )


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("name", ["SGD, plain", "Adagrad"])
@pytest.mark.sample(cases=1)
def test_rows_alone_are_updated_where_untouched_rows_stay(
    cluster: tfps.LocalCluster, name: str, num_shards: int
) -> None:
    """These optimizers have the same numbers with `sparse_update="lazy"`."""
    expected = parity.in_one_process(name, _WORKERS)
    actual = _on_cluster(
        cluster,
        lambda: parity.new_model(parity.CASES[name]()),
        partitioner=tfps.partitioners.FixedShardsPartitioner(num_shards),
        sparse_update="lazy",
    )
    parity.assert_same(actual, expected)


def _with_overflow(step: int) -> np.ndarray:
    targets = _DATA.targets.copy()
    # Only scaled, its gradient is not finite.
    targets[1, step] = 1e38
    return targets


def test_synchronized_statistics_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster,
) -> None:
    def make() -> keras.Model:
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(parity.ROWS, 4),
                keras.layers.Flatten(),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(1),
            ]
        )
        optimizer = _optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
        model.compile(optimizer, "mse", metrics=["mae"])
        return model

    expected = parity.trained(make(), _DATA.of_all())
    parity.assert_same(_on_cluster(cluster, make), expected)


def test_constraints_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster,
) -> None:
    """There is one of each kind, on a table of 1, of 2 and of 3 shards."""
    constraints = [
        keras.constraints.UnitNorm(axis=-1),
        keras.constraints.MaxNorm(0.05, axis=1),
        keras.constraints.NonNeg(),
    ]

    def make(optimizer: Any) -> keras.Model:
        return parity.new_model(
            optimizer,
            {"bias_constraint": keras.constraints.NonNeg()},
            *[{"embeddings_constraint": each} for each in constraints],
        )

    expected = parity.trained(
        make(shared_optimizers.summing(_optimizers.Adam(0.01))), _DATA.of_all()
    )
    actual = _on_cluster(cluster, lambda: make(_optimizers.Adam(0.01)))
    parity.assert_same(actual, expected)


def test_regularizers_count_once(cluster: tfps.LocalCluster) -> None:
    """All workers add them to their loss; the step has their mean."""
    penalty = keras.regularizers.L2(0.05)

    def make(optimizer: Any) -> keras.Model:
        return parity.new_model(
            optimizer,
            {"kernel_regularizer": penalty, "activity_regularizer": penalty},
            *[{"embeddings_regularizer": penalty}] * 3,
        )

    expected = parity.trained(
        make(shared_optimizers.summing(_optimizers.Adam(0.01))), _DATA.of_all()
    )
    actual = _on_cluster(cluster, lambda: make(_optimizers.Adam(0.01)))
    parity.assert_same(actual, expected)


def test_swapping_averages_in_and_out(cluster: tfps.LocalCluster) -> None:
    def adam() -> Any:
        return _optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)

    def swap() -> list[Any]:
        return [keras.callbacks.SwapEMAWeights()]

    expected = parity.trained(
        parity.new_model(shared_optimizers.summing(adam())),
        _DATA.of_all(),
        callbacks=swap(),
    )
    actual = _on_cluster(
        cluster, lambda: parity.new_model(adam()), callbacks=swap()
    )
    for mine, theirs in zip(actual.weights, expected.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


_ONE_WEIGHT: dict[str, Callable[[], Any]] = {
    "SGD": lambda: _optimizers.SGD(0.1),
    "Nadam": lambda: _optimizers.Nadam(0.01),
    "clipvalue, accumulation": lambda: _optimizers.Adam(
        0.01, gradient_accumulation_steps=3, clipvalue=0.1
    ),
    "clipnorm": lambda: _optimizers.SGD(0.1, clipnorm=0.1),
    "global_clipnorm": lambda: _optimizers.SGD(0.1, global_clipnorm=0.1),
    "global_clipnorm, accumulation": lambda: _optimizers.SGD(
        0.1, global_clipnorm=0.1, gradient_accumulation_steps=3
    ),
    "LossScaleOptimizer": lambda: _optimizers.LossScaleOptimizer(
        _optimizers.Adam(0.01), initial_scale=64.0, dynamic_growth_steps=10
    ),
    "LossScaleOptimizer, global_clipnorm": lambda: (
        _optimizers.LossScaleOptimizer(
            _optimizers.SGD(0.1, global_clipnorm=0.1),
            initial_scale=64.0,
            dynamic_growth_steps=10,
        )
    ),
}


@pytest.mark.timeout(90)
@pytest.mark.sample(cases=1)
@pytest.mark.parametrize("name", _ONE_WEIGHT)
def test_a_ps_without_any_gradient_keeps_step(
    cluster: tfps.LocalCluster, name: str
) -> None:
    """It may hold scalars of the optimizer, and others wait for its norms."""
    targets = _with_overflow(7) if "LossScale" in name else _DATA.targets

    def make() -> keras.Model:
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Rescaling(1 / parity.ROWS),
                keras.layers.Dense(1, use_bias=False),
            ]
        )
        model.compile(_ONE_WEIGHT[name](), "mse", metrics=["mae"])
        return model

    expected = parity.trained(make(), _DATA.of_all(targets))
    actual = _on_cluster(
        cluster, make, lambda context: _DATA.of_worker(context, targets)
    )
    parity.assert_same(actual, expected)


def _with_empty(
    context: Any, whose: tuple[int, ...], step: int
) -> tf.data.Dataset:
    """Returns batches of which one may have no example."""
    is_empty = context.input_pipeline_id in whose

    def shortened(number: tf.Tensor, batch: Any) -> Any:
        size = tf.where(tf.equal(number, step) & is_empty, 0, parity.BATCH)
        return tf.nest.map_structure(lambda part: part[:size], batch)

    return _DATA.of_worker(context).enumerate().map(shortened)


@pytest.mark.timeout(90)
def test_a_member_without_examples_counts_nothing(
    cluster: tfps.LocalCluster,
) -> None:
    step = 13

    def batches() -> Any:
        for number in range(parity.STEPS):
            whose = slice(1) if number == step else slice(_WORKERS)
            yield (
                np.concatenate(_DATA.ids[whose, number]),
                np.concatenate(_DATA.targets[whose, number]),
            )

    expected = parity.trained(
        parity.new_model(shared_optimizers.summing(_optimizers.SGD(0.1))),
        tf.data.Dataset.from_generator(
            batches,
            output_signature=(
                tf.TensorSpec([None, 3], tf.int32),
                tf.TensorSpec([None, 1], tf.float32),
            ),
        ).apply(tf.data.experimental.assert_cardinality(parity.STEPS)),
    )
    actual = _on_cluster(
        cluster,
        lambda: parity.new_model(_optimizers.SGD(0.1)),
        lambda context: _with_empty(context, (1,), step),
    )
    # Its loss is not a number: the mean over no examples.
    parity.assert_same(actual._replace(losses=expected.losses), expected)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("step", [12, 13])
def test_a_step_without_any_example_is_followed_by_others(
    cluster: tfps.LocalCluster, step: int
) -> None:
    """It may be the last one of a span, or not."""
    actual = _on_cluster(
        cluster,
        lambda: parity.new_model(_optimizers.SGD(0.1)),
        lambda context: _with_empty(context, (0, 1), step),
        steps_per_epoch=parity.STEPS,
    )
    assert int(actual.state[0]) == parity.STEPS
