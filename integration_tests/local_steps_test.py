"""Tests of rounds of local steps, against the same rule in one process.

In a round of the reference, weights move by plain gradient descent; then they
are set back, and the optimizer applies the sum of the gradients once. Rows of
tables stay as they are until then.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from shared_training import At

import tfps_plugin as tfps
from tfps_plugin import errors

pytestmark = [
    pytest.mark.cluster(num_workers=2, num_ps=2),
    pytest.mark.sample(cases=6, group="local_steps"),
]

_ROWS, _FEATURES, _BATCH = 40, 3, 8
_STEPS = 10
_LOCAL = 4
_RATE = 0.05
_random = np.random.default_rng(5)
_IDS = _random.integers(0, _ROWS, (_STEPS * _BATCH, _FEATURES))
_TARGETS = _random.normal(size=(_STEPS * _BATCH, 1)).astype("float32")

Make = Callable[..., tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    """Yields a maker of strategies, one call of each worker at a time."""
    made = []

    def make(
        local_steps: int = _LOCAL,
        *,
        scheduling: tfps.SchedulingOptions | None = None,
        staleness_scaling: bool = False,
        sparse_update: Any = "exact",
        **options: Any,
    ) -> tfps.ParameterServerStrategy:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            consistency=tfps.Async(
                local_steps=local_steps, staleness_scaling=staleness_scaling
            ),
            scheduling=scheduling
            or tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
            sparse_update=sparse_update,
            **options,
        )
        made.append(strategy)
        return strategy

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


def _dense() -> list[Any]:
    return [
        keras.layers.Dense(
            6, activation="tanh", kernel_constraint=keras.constraints.NonNeg()
        )
    ]


def _normalized() -> list[Any]:
    return [keras.layers.Dense(6), keras.layers.BatchNormalization()]


def _frozen() -> list[Any]:
    return [keras.layers.Dense(6, activation="tanh", trainable=False)]


class Scaled(keras.layers.Layer):
    """Has a scalar that is trained."""

    def build(self, input_shape: Any) -> None:
        self.factor = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        return inputs * self.factor


def _scaled() -> list[Any]:
    return [Scaled()]


def _recurrent() -> list[Any]:
    """Reads its weights inside of a loop."""
    return [keras.layers.Reshape((_FEATURES, 4)), keras.layers.LSTM(5)]


def _model(inner: Callable[[], list[Any]] = _dense) -> keras.Model:
    layers = [
        keras.Input((_FEATURES,), dtype="int32"),
        keras.layers.Embedding(_ROWS, 4),
        keras.layers.Flatten(),
        *inner(),
        keras.layers.Dense(1),
    ]
    return keras.Sequential(layers)


def _set_weights(model: keras.Model) -> None:
    random = np.random.default_rng(2)
    model.set_weights(
        [
            random.uniform(0.05, 0.4, weight.shape).astype(weight.dtype)
            for weight in model.weights
        ]
    )


def _in_one_process(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    *,
    epochs: int = 1,
    rounds: tuple[int, ...] = (_LOCAL, _LOCAL, _STEPS - 2 * _LOCAL),
    clip: Callable[[list[Any]], list[Any]] = lambda gradients: gradients,
) -> list[np.ndarray]:
    """Trains a model by the rule of local steps; returns its weights."""
    _set_weights(model)
    weights = model.trainable_variables
    table = model.layers[0].trainable_variables
    for _ in range(epochs):
        last = 0
        for length in rounds:
            first, last = last, last + length
            before = [weight.numpy() for weight in weights]
            total = [tf.zeros(weight.shape) for weight in weights]
            for step in range(first, last):
                examples = slice(step * _BATCH, (step + 1) * _BATCH)
                with tf.GradientTape() as tape:
                    predicted = model(_IDS[examples], training=True)
                    loss = tf.reduce_mean((predicted - _TARGETS[examples]) ** 2)
                gradients = [
                    tf.convert_to_tensor(gradient)
                    for gradient in tape.gradient(loss, weights)
                ]
                total = [a + b for a, b in zip(total, gradients, strict=True)]
                for weight, gradient in zip(
                    weights, clip(gradients), strict=True
                ):
                    if not any(weight is one for one in table):
                        moved = weight - _RATE * gradient
                        if weight.constraint is not None:
                            moved = weight.constraint(moved)
                        weight.assign(moved)
            for weight, value in zip(weights, before, strict=True):
                weight.assign(value)
            optimizer.apply(total, weights)
    # As at the end of Keras's fit().
    optimizer.finalize_variable_values(weights)
    return model.get_weights()


def _assert_close(
    model: keras.Model, expected: list[np.ndarray], atol: float = 1e-6
) -> None:
    for weight, value in zip(model.weights, expected, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(weight),
            value,
            0,
            atol,
            True,
            weight.path,
        )


def _of_first_worker(context: Any) -> tf.data.Dataset:
    """Returns all input on the first worker, so that steps have one order."""
    whole = tf.data.Dataset.from_tensor_slices((_IDS, _TARGETS)).batch(_BATCH)
    return whole if context.input_pipeline_id == 0 else whole.take(0)


def _fit(model: keras.Model, is_read_by_chief: bool, **options: Any) -> Any:
    options = {"verbose": 0, **options}
    if is_read_by_chief:
        return model.fit(
            _IDS, _TARGETS, batch_size=_BATCH, shuffle=False, **options
        )
    return model.fit(tfps.DatasetCreator(_of_first_worker), **options)


_SGD = lambda **options: keras.optimizers.SGD(_RATE, **options)  # noqa: E731
_ADAM = lambda **options: keras.optimizers.Adam(_RATE, **options)  # noqa: E731


@pytest.fixture
def only_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets calls with batches of the chief follow one another."""
    monkeypatch.setattr(
        "tfps_plugin.training.steps.epoch.chief_read_run.ChiefReadRun"
        "._most_closures_in_flight",
        1,
    )


@pytest.mark.parametrize("is_read_by_chief", [False, True])
@pytest.mark.parametrize("optimizer", [_SGD, _ADAM], ids=["sgd", "adam"])
def test_rounds_train_as_the_rule_says(
    make: Make, only_worker: None, is_read_by_chief: bool, optimizer: Any
) -> None:
    strategy = make()
    with strategy.scope():
        model = _model()
        model.compile(optimizer(), "mse", metrics=["mae"])
    _set_weights(model)
    history = _fit(model, is_read_by_chief, epochs=2).history
    _assert_close(model, _in_one_process(_model(), optimizer(), epochs=2))
    # Ten steps are two rounds of four, and one of two.
    assert int(model.optimizer.iterations) == 2 * 3
    counters = tfps.ClusterCoordinator(strategy).counters
    assert counters.value("steps_done") == 2 * _STEPS
    assert counters.value("staleness_updates") == 2 * 3
    assert counters.value("staleness_sum") == 0
    assert len(history["loss"]) == len(history["mae"]) == 2
    assert np.isfinite(history["mae"]).all()


@pytest.mark.parametrize(
    "inner",
    [_normalized, _frozen, _scaled, _recurrent],
    ids=lambda inner: inner.__name__,
)
def test_layers_of_many_kinds_use_local_weights(
    make: Make, only_worker: None, inner: Any
) -> None:
    with make().scope():
        model = _model(inner)
        model.compile(_SGD(), "mse")
    _set_weights(model)
    _fit(model, False, epochs=2)
    expected = _in_one_process(_model(inner), _SGD(), epochs=2)
    _assert_close(model, expected, 1e-5)


def _by_global_norm(gradients: list[Any]) -> list[Any]:
    return tf.clip_by_global_norm(gradients, 0.5)[0]


@pytest.mark.parametrize(
    ("options", "clip"),
    [
        ({"global_clipnorm": 0.5}, _by_global_norm),
        ({"use_ema": True, "ema_overwrite_frequency": 2}, None),
        ({"weight_decay": 0.1}, None),
    ],
    ids=["clipping", "averages", "decay"],
)
def test_what_an_optimizer_does_besides_it_does_once_a_round(
    make: Make, options: dict[str, Any], clip: Any
) -> None:
    with make().scope():
        model = _model()
        model.compile(_SGD(**options), "mse")
    _set_weights(model)
    _fit(model, False)
    expected = _in_one_process(
        _model(), _SGD(**options), **({"clip": clip} if clip else {})
    )
    _assert_close(model, expected, 1e-5)


class TwoOptimizers(keras.Model):
    """Trains two layers one after the other, by optimizers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(3)
        self.second = keras.layers.Dense(1)

    def build(self, input_shape: Any) -> None:
        self.first.build(input_shape)
        self.second.build((None, 3))

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))

    def compile(self, other: Any, *args: Any, **options: Any) -> None:
        super().compile(*args, **options)
        self.other = other

    def train_step(self, data: Any) -> Any:
        x, y = data
        for optimizer, layer in (
            (self.optimizer, self.first),
            (self.other, self.second),
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            weights = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_updates_of_a_step_see_those_before_them(make: Make) -> None:
    """A round of SGD is then a number of steps of one process."""
    x = _random.normal(size=(_STEPS * _BATCH, 2)).astype("float32")

    def of_first_worker(context: Any) -> tf.data.Dataset:
        whole = tf.data.Dataset.from_tensor_slices((x, _TARGETS)).batch(_BATCH)
        return whole if context.input_pipeline_id == 0 else whole.take(0)

    def built(**options: Any) -> keras.Model:
        model = TwoOptimizers()
        model.compile(_SGD(), optimizer=_SGD(), **options)
        model.build((None, 2))
        _set_weights(model)
        return model

    with make().scope():
        model = built()
    model.fit(tfps.DatasetCreator(of_first_worker), verbose=0)
    reference = built(run_eagerly=True)
    reference.fit(x, _TARGETS, batch_size=_BATCH, shuffle=False, verbose=0)
    _assert_close(model, reference.get_weights())
    assert int(model.optimizer.iterations) == 3
    assert int(model.other.iterations) == 3


def _num_messages(strategy: Any, model: keras.Model, local_steps: int) -> float:
    """Returns the messages of a batch."""
    number = 0.0
    for body in strategy.explain(model, print_fn=None).bodies:
        is_of_round = local_steps > 1 and body.name.count("While body") == 1
        number += body.num_parcels / (local_steps if is_of_round else 1)
    return number


@pytest.mark.parametrize("optimizer", [_SGD, _ADAM], ids=["sgd", "adam"])
def test_dense_weights_travel_once_a_round(make: Make, optimizer: Any) -> None:
    found = {}
    for local_steps in (1, _LOCAL):
        strategy = make(local_steps)
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((4,)), *_frozen(), keras.layers.Dense(1)]
            )
            model.compile(optimizer(), "mse")
        x = np.zeros((4 * _BATCH, 4), "float32")
        model.fit(x, x[:, :1], batch_size=_BATCH, verbose=0)
        found[local_steps] = _num_messages(strategy, model, local_steps)
    assert found[_LOCAL] == found[1] / _LOCAL, found


def test_rows_are_asked_for_in_each_step(make: Make) -> None:
    found = {}
    for local_steps in (1, _LOCAL):
        strategy = make(local_steps)
        with strategy.scope():
            model = _model()
            model.compile(_SGD(), "mse")
        _fit(model, True)
        found[local_steps] = _num_messages(strategy, model, local_steps)
    # Ids to each ps, and rows back.
    assert 4 < found[_LOCAL] < found[1], found


def test_a_round_ends_where_the_chief_looks_at_weights(
    make: Make, only_worker: None
) -> None:
    seen: list[Any] = []
    with make().scope():
        model = _model()
        model.compile(_SGD(), "mse")
    _set_weights(model)

    def look() -> None:
        seen.append(int(model.optimizer.iterations))
        seen.append(model.get_weights())

    _fit(model, True, callbacks=[At({6: look})])
    number, weights = seen
    # Logs of the first batch are shown at once, because a callback uses logs.
    assert number == 3
    assert int(model.optimizer.iterations) == 4
    expected = _in_one_process(_model(), _SGD(), rounds=(1, 4, 1))
    for weight, value in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight, value, atol=1e-6)


@pytest.mark.parametrize("staleness_scaling", [False, True])
def test_two_workers_learn(make: Make, staleness_scaling: bool) -> None:
    strategy = make(staleness_scaling=staleness_scaling)
    with strategy.scope():
        model = _model()
        model.compile(keras.optimizers.Adam(0.01), "mse")

    def dataset(context: Any) -> tf.data.Dataset:
        ids = np.random.default_rng(context.input_pipeline_id).integers(
            0, _ROWS, (40 * _BATCH, _FEATURES)
        )
        targets = ids.mean(axis=1, keepdims=True).astype("float32") / _ROWS
        return tf.data.Dataset.from_tensor_slices((ids, targets)).batch(_BATCH)

    history = model.fit(
        tfps.DatasetCreator(dataset), epochs=6, verbose=0
    ).history
    assert history["loss"][-1] < 0.2 * history["loss"][0], history
    counters = tfps.ClusterCoordinator(strategy).counters
    assert counters.value("steps_done") == 6 * 80
    pushes = int(model.optimizer.iterations)
    assert pushes == counters.value("staleness_updates")
    # Each epoch and worker may end within a round.
    assert 6 * 80 / _LOCAL <= pushes <= 6 * 80 / _LOCAL + 24
    model.evaluate(tfps.DatasetCreator(dataset), verbose=0)


# Refusals.


def _scheduled(strategy: Any, model: keras.Model) -> None:
    @tf.function
    def step() -> None:
        weights = model.trainable_variables
        model.optimizer.apply([tf.zeros(w.shape) for w in weights], weights)

    coordinator = tfps.ClusterCoordinator(strategy)
    with pytest.raises(errors.UnsupportedError, match=r"local_steps=4"):
        coordinator.schedule(step)
    with pytest.raises(errors.UnsupportedError, match=r"local_steps=4"):
        coordinator.schedule(step.get_concrete_function())


def test_scheduled_functions_are_refused(make: Make) -> None:
    strategy = make()
    with strategy.scope():
        model = _model()
        model.compile(_SGD(), "mse")
        model.optimizer.build(model.trainable_variables)
    _scheduled(strategy, model)


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (lambda: _SGD(gradient_accumulation_steps=2), "accumulation_steps=2"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(_SGD()),
            r"LossScaleOptimizer.*local_steps=4",
        ),
    ],
)
def test_optimizers_that_skip_updates_are_refused(
    make: Make, optimizer: Any, reason: str
) -> None:
    with make().scope():
        model = _model()
        model.compile(optimizer(), "mse")
    with pytest.raises(errors.UnsupportedError, match=reason):
        _fit(model, True)


def test_calls_that_end_within_a_round_are_refused(make: Make) -> None:
    with make().scope():
        model = _model()
        model.compile(_SGD(), "mse", steps_per_execution=6)
    with pytest.raises(ValueError, match=r"multiple of 4 as steps_per_exec"):
        _fit(model, True)
    with pytest.raises(ValueError, match=r"multiple of 4 as steps_per_closure"):
        make(scheduling=tfps.SchedulingOptions(steps_per_closure=6))


def test_calls_of_whole_rounds_are_allowed(make: Make) -> None:
    with make().scope():
        model = _model()
        model.compile(_SGD(), "mse", steps_per_execution=8)
    _set_weights(model)
    _fit(model, False)
    _assert_close(model, _in_one_process(_model(), _SGD()))


def test_steps_on_the_chief_are_refused(make: Make) -> None:
    with make().scope():
        model = _model()
        model.compile(_SGD(), "mse", run_eagerly=True)
    with pytest.raises(errors.UnsupportedError, match=r"run_eagerly=True"):
        _fit(model, True)


class Own(keras.layers.Layer):
    """Reads its weight in a function of its own."""

    def build(self, input_shape: Any) -> None:
        self.weight = self.add_weight(shape=(input_shape[-1],))

    @tf.function
    def _weighed(self, inputs: Any) -> Any:
        return inputs * self.weight

    def call(self, inputs: Any) -> Any:
        return self._weighed(inputs)


class Assigning(Own):
    """Assigns the weight that it trains."""

    def call(self, inputs: Any) -> Any:
        self.weight.assign(self.weight / 2.0)
        return inputs * self.weight


class Tied(keras.layers.Embedding):
    """Looks up rows, and compares them with all rows."""

    def call(self, inputs: Any) -> Any:
        table = keras.ops.convert_to_tensor(self.embeddings)
        return super().call(inputs) @ keras.ops.transpose(table)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, _ROWS)


def _tied() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((_FEATURES,), dtype="int32"),
            Tied(_ROWS, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )


class Conditional(keras.Model):
    """Applies gradients in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.layer(tf.cast(inputs, "float32"))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)

        def apply() -> tf.Tensor:
            self.optimizer.apply(gradients, weights)
            return tf.constant(0)

        tf.cond(loss > 0, apply, lambda: tf.constant(0))
        return {"loss": loss}


@pytest.mark.parametrize(
    ("make_model", "reason"),
    [
        (lambda: _model(lambda: [Own()]), r"own.*used by the operation"),
        (lambda: _model(lambda: [Assigning()]), r"assign of '.*variable.*'"),
        (_tied, r"looks up and reads as a whole.*tied/embeddings"),
        (Conditional, r"applied inside of one"),
    ],
)
def test_steps_that_use_other_weights_are_refused(
    make: Make, make_model: Any, reason: str
) -> None:
    with make().scope():
        model = make_model()
        model.compile(_SGD(), "mse")
    with pytest.raises(errors.UnsupportedError, match=reason):
        _fit(model, True)
