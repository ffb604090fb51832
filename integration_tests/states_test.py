"""Tests of states that are merged by rules, kept in order, or refused."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.states.merge_rule import MergeRule

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_random = np.random.default_rng(0)
_BATCH = 8
_X = _random.normal(size=(20 * _BATCH, 3)).astype("float32")
_Y = _X @ np.array([[1.0], [-2.0], [0.5]], "float32")
_Y += _random.normal(size=_Y.shape).astype("float32")
_DATA: dict[str, Any] = {"x": _X, "y": _Y, "batch_size": _BATCH, "verbose": 0}


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


class _Extremes(keras.metrics.Metric):
    """Metric with states that are no sums, and a sum that begins above zero."""

    def __init__(self) -> None:
        super().__init__(name="extremes")
        infinite = keras.initializers.Constant(np.inf)
        self.largest = self.add_weight(name="largest", initializer="zeros")
        self.smallest = self.add_weight(name="smallest", initializer=infinite)
        self.total = self.add_weight(name="total", initializer="ones")
        self.scale = self.add_weight(
            name="scale", initializer=keras.initializers.Constant(3.0)
        )
        self.all = self.add_weight(name="all", initializer="ones", dtype="bool")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        distance = keras.ops.abs(y - p)
        self.largest.assign(
            keras.ops.maximum(self.largest, keras.ops.max(distance))
        )
        self.smallest.assign(tf.minimum(self.smallest, keras.ops.min(distance)))
        self.total.assign_add(self.scale * keras.ops.sum(distance))
        self.all.assign(self.all & tf.reduce_all(distance < 100.0))

    def reset_state(self) -> None:
        self.largest.assign(0.0)
        self.smallest.assign(np.inf)
        self.total.assign(1.0)
        self.all.assign(True)

    def result(self) -> Any:
        return {
            "largest": self.largest,
            "smallest": self.smallest,
            "total": self.total,
            "all": tf.cast(self.all, tf.float32),
        }


class _Average(keras.metrics.Metric):
    """Metric with a moving average, which depends on the order of batches."""

    def __init__(self) -> None:
        super().__init__(name="average")
        self.mean = self.add_weight(name="mean", initializer="zeros")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(abs(y - p)))

    def result(self) -> Any:
        return self.mean


class _Welford(keras.metrics.Metric):
    """Metric with a count, a mean that uses it, and the last batch's value."""

    def __init__(self) -> None:
        super().__init__(name="welford")
        self.count = self.add_weight(name="count", initializer="zeros")
        self.mean = self.add_weight(name="mean", initializer="zeros")
        self.last = self.add_weight(name="last", initializer="zeros")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        mean = tf.reduce_mean(abs(y - p))
        self.count.assign_add(1.0)
        self.mean.assign_add((mean - self.mean) / self.count)
        self.last.assign(mean)

    def result(self) -> Any:
        return {"mean": self.mean, "last": self.last}


def _model(*metrics: Callable[[], Any]) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(
                1, kernel_initializer=keras.initializers.GlorotUniform(1)
            ),
        ]
    )
    # The learning rate is zero, so the workers' batches change nothing.
    model.compile(
        keras.optimizers.SGD(0.0), "mse", metrics=[make() for make in metrics]
    )
    return model


def _creator() -> tfps.DatasetCreator:
    return tfps.DatasetCreator(
        lambda split: (
            tf.data.Dataset.from_tensor_slices((_X, _Y))
            .shard(4, split)
            .batch(_BATCH)
        ),
        splits=range(4),
    )


def _close(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            actual[name], value, rtol=1e-5, atol=1e-7, err_msg=name
        )


def test_extremes_are_those_of_one_process(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    alone = _model(_Extremes)
    history = alone.fit(**_DATA, shuffle=False).history
    expected = alone.evaluate(**_DATA, return_dict=True)
    with strategy.scope():
        ours = _model(_Extremes)
    for _ in range(2):
        _close(ours.fit(**_DATA, shuffle=False).history, history)
        _close(ours.evaluate(**_DATA, return_dict=True), expected)
        _close(ours.evaluate(_creator(), verbose=0, return_dict=True), expected)
    rules = [v.value.rule for v in ours.metrics[1].metrics[0].variables]
    assert rules == [
        MergeRule.MAX,
        MergeRule.MIN,
        MergeRule.SUM,
        MergeRule.CONSTANT,
        MergeRule.MIN,
    ]


def test_a_moving_average_is_one_for_all_workers(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        ours = _model(_Average)
    distances = [
        float(np.abs(y - x @ ours.layers[0].get_weights()[0]).mean())
        for x, y in zip(
            _X.reshape(-1, _BATCH, 3), _Y.reshape(-1, _BATCH, 1), strict=True
        )
    ]

    def average(order: list[float]) -> float:
        result = 0.0
        for distance in order:
            result = 0.9 * result + 0.1 * distance
        return result

    # Bounds over all orders of the batches.
    least = average(sorted(distances, reverse=True))
    most = average(sorted(distances))
    for data in (_DATA, {"x": _creator(), "verbose": 0}):
        ours.fit(**data)
        found = ours.evaluate(**data, return_dict=True)["average"]
        assert least <= found <= most
    assert isinstance(ours.metrics[1].metrics[0].mean.value, RemoteVariable)


def test_states_that_depend_on_each_other_see_batches_in_order(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    alone = _model(_Welford, _Average)
    history = alone.fit(**_DATA, shuffle=False, epochs=2).history
    expected = alone.evaluate(**_DATA, return_dict=True)
    with strategy.scope():
        ours = _model(_Welford, _Average)
    _close(ours.fit(**_DATA, shuffle=False, epochs=2).history, history)
    _close(ours.evaluate(**_DATA, return_dict=True), expected)
    coordinator = tfps.ClusterCoordinator(strategy)
    before = coordinator.counters.snapshot()
    for call in (ours.fit, ours.evaluate):
        with pytest.raises(errors.UnsupportedError, match="welford/mean"):
            call(_creator(), verbose=0)
    assert coordinator.counters.snapshot() == before, "nothing has run"


def test_what_cannot_be_merged_in_a_custom_loop_is_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        average, extremes = _Average(), _Extremes()
    y = tf.constant(_Y[:_BATCH])
    alone = _Extremes()

    @tf.function
    def update(metric: Any, p: tf.Tensor) -> None:
        strategy.run(metric.update_state, args=(y, p))

    with pytest.raises(errors.UnsupportedError, match="average/mean"):
        coordinator.schedule(tf.function(lambda: update(average, y)))
    for offset in range(8):
        coordinator.schedule(
            tf.function(lambda p: update(extremes, p)), args=(y + offset,)
        )
        alone.update_state(y, y + offset)
    coordinator.join()
    _close(extremes.result(), alone.result())


_STREAM = _random.normal(size=(6 * _BATCH, 4, 3)).astype("float32")
_STEPS: dict[str, Any] = {"batch_size": _BATCH, "verbose": 0}


class _Cell(keras.layers.Layer):
    """A custom cell."""

    state_size = output_size = 5

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(
            shape=(input_shape[-1], 5),
            initializer=keras.initializers.GlorotUniform(1),
        )

    def call(self, inputs: Any, states: Any) -> Any:
        output = keras.ops.tanh(inputs @ self.kernel + 0.5 * states[0])
        return output, [output]


def _recurrent() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(_BATCH, 4, 3)),
            keras.layers.Bidirectional(
                keras.layers.GRU(
                    5,
                    stateful=True,
                    return_sequences=True,
                    kernel_initializer=keras.initializers.GlorotUniform(1),
                    recurrent_initializer=keras.initializers.Orthogonal(1, 2),
                ),
                name="both",
            ),
            keras.layers.RNN(_Cell(), stateful=True, name="own"),
            keras.layers.Dense(
                1, kernel_initializer=keras.initializers.GlorotUniform(3)
            ),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_recurrent_states_pass_from_batch_to_batch(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    y = _STREAM[:, 0, :1]

    def run(model: keras.Model) -> list[Any]:
        results = [model.predict(_STREAM, **_STEPS)]
        results.append(model.evaluate(_STREAM, y, **_STEPS))
        fit = model.fit(_STREAM, y, shuffle=False, epochs=2, **_STEPS)
        results.append(fit.history["loss"])
        model.layers[1].reset_state()
        results.append(model.predict(_STREAM, **_STEPS))
        return results

    expected = run(_recurrent())
    with strategy.scope():
        ours = _recurrent()
    for actual, one in zip(run(ours), expected, strict=True):
        np.testing.assert_allclose(actual, one, rtol=1e-4, atol=1e-6)


def test_recurrent_states_are_refused_where_each_worker_reads(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        ours = _recurrent()
    creator = tfps.DatasetCreator(
        lambda context: tf.data.Dataset.from_tensor_slices(
            (_STREAM, _STREAM[:, 0, :1])
        ).batch(_BATCH, drop_remainder=True)
    )
    for call in (ours.fit, ours.evaluate):
        with pytest.raises(errors.UnsupportedError, match="layer 'own'"):
            call(creator, verbose=0)
    before = ours.get_weights()
    with pytest.raises(errors.UnsupportedError, match="layer 'own'"):
        ours.fit(_STREAM, _STREAM[:, 0, :1], validation_data=creator, **_STEPS)
    for weight, earlier in zip(ours.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, earlier)
    assert len(ours.predict(creator, verbose=0)) == len(_STREAM)


def test_a_weight_that_a_layer_normalizes_is_assigned_in_order(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def model() -> keras.Model:
        layer = keras.layers.Dense(
            2, kernel_initializer=keras.initializers.GlorotUniform(1)
        )
        made = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.SpectralNormalization(layer),
                keras.layers.Dense(
                    1, kernel_initializer=keras.initializers.GlorotUniform(2)
                ),
            ]
        )
        made.compile(keras.optimizers.SGD(0.05), "mse")
        return made

    alone = model()
    with strategy.scope():
        ours = model()
    ours.set_weights(alone.get_weights())
    for one in (alone, ours):
        one.fit(**_DATA, shuffle=False)
    for actual, expected in zip(
        ours.get_weights(), alone.get_weights(), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


class Counting(keras.Model):
    """Model with a step that assigns the program's own variable."""

    def __init__(self, count: tf.Variable) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        # Keras does not track a variable in a list of lists.
        self.hidden = [[count]]

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> Any:
        self.hidden[0][0].assign_add(1)
        return super().train_step(data)


def test_variables_that_a_custom_step_assigns(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        inside = tf.Variable(0)
        ours = Counting(inside)
        ours.compile("sgd", "mse")
    ours.fit(**_DATA)
    assert inside.numpy() == len(_X) // _BATCH
    outside = tf.Variable(0)
    with strategy.scope():
        ours = Counting(outside)
        ours.compile("sgd", "mse")
    with pytest.raises(errors.VariableCreationError, match="outside"):
        ours.fit(**_DATA)


def test_steps_that_use_a_state_in_two_ways_share_one(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """The state moves to a ps once `fit` assigns it in an unmergeable way."""

    class Model(keras.Sequential):
        def test_step(self, data: Any) -> Any:
            self.seen.seen.assign_add(1.0)
            return super().test_step(data)

        def train_step(self, data: Any) -> Any:
            self.seen.seen.assign(0.5 * self.seen.seen + 1.0)
            return super().train_step(data)

    class Seen(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__()
            self.seen = self.add_weight(name="seen", initializer="zeros")

        def update_state(self, *args: Any, **kwargs: Any) -> None:
            pass

        def result(self) -> Any:
            return self.seen

    with strategy.scope():
        ours = Model([keras.Input((3,)), keras.layers.Dense(1)])
        ours.seen = Seen()
        ours.compile("sgd", "mse")
    steps = len(_X) // _BATCH
    for _ in range(2):
        ours.seen.reset_state()
        ours.evaluate(**_DATA)
        assert ours.seen.result() == steps
        ours.seen.reset_state()
        ours.fit(**_DATA)
        np.testing.assert_allclose(
            ours.seen.result(), 2.0 - 0.5 ** (steps - 1), rtol=1e-6
        )
