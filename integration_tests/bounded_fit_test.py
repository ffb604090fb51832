"""Tests of fit() with bounded staleness, while nothing fails.

Weights that count updates tell each step how far the others have come.
"""

import logging
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_counting
import tensorflow as tf
from shared_counting import num_updates
from shared_gate import Gate

import tfps_plugin as tfps
from tfps_plugin import errors

_WORKERS = 2
pytestmark = [
    pytest.mark.cluster(num_workers=_WORKERS, num_ps=2),
    pytest.mark.sample(cases=8, group="bounded_fit"),
]

_random = np.random.default_rng(3)

Make = Callable[..., tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    """Yields a maker of strategies."""
    made = []

    def make(
        max_staleness: int = 1, **options: Any
    ) -> tfps.ParameterServerStrategy:
        consistency = tfps.BoundedStaleness(max_staleness)
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            **{"consistency": consistency, **options},
        )
        made.append(strategy)
        return strategy

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


def _counters(strategy: tfps.ParameterServerStrategy) -> Any:
    return tfps.ClusterCoordinator(strategy).counters


@pytest.mark.parametrize("max_staleness", [0, 1, 5])
def test_each_step_sees_the_updates_that_it_has_to_wait_for(
    make: Make, max_staleness: int
) -> None:
    strategy = make(max_staleness)
    model = shared_counting.model(
        strategy, num_workers=_WORKERS, max_staleness=max_staleness
    )
    num_steps = 60

    def of_worker(context: Any) -> tf.data.Dataset:
        del context
        return tf.data.Dataset.from_tensor_slices(
            shared_counting.steps(num_steps)
        )

    model.fit(
        tfps.DatasetCreator(of_worker),
        steps_per_epoch=_WORKERS * num_steps,
        verbose=0,
    )
    # Every step of a worker is a step of Keras.
    assert int(model.optimizer.iterations) == _WORKERS * num_steps
    assert num_updates(model) == [_WORKERS * num_steps] * 2
    counters = _counters(strategy)
    assert counters.value("steps_done") == _WORKERS * num_steps
    assert counters.value("steps_again") == 0
    assert counters.value("largest_lead") <= max_staleness


@pytest.mark.parametrize("max_staleness", [0, 3])
def test_the_others_make_so_many_steps_more_and_then_wait(
    make: Make,
    gate: Gate,
    caplog: pytest.LogCaptureFixture,
    max_staleness: int,
) -> None:
    """Whoever began one more would see too few updates, and stop."""
    caplog.set_level(logging.INFO, "tfps_plugin")
    strategy = make(max_staleness)
    model = shared_counting.model(
        strategy, num_workers=_WORKERS, max_staleness=max_staleness, gate=gate
    )
    # The span goes on beyond the bound.
    num_steps, held = 30, 5
    reached: list[list[int]] = []

    def of_worker(context: Any) -> tf.data.Dataset:
        is_held = context.input_pipeline_id == 1
        return tf.data.Dataset.from_tensor_slices(
            shared_counting.steps(num_steps, held=held if is_held else None)
        )

    # The other worker ends the step that it may begin last.
    expected = [held + (held + max_staleness + 1)] * 2

    def wait_at_the_bound() -> None:
        try:
            shared_counting.wait_until(lambda: num_updates(model) == expected)
        except AssertionError as error:
            raise AssertionError(num_updates(model)) from error
        finally:
            reached.append(num_updates(model))
            gate.open()

    gate.once_reached(wait_at_the_bound)
    model.fit(
        tfps.DatasetCreator(of_worker),
        steps_per_epoch=_WORKERS * num_steps,
        verbose=0,
    )
    gate.assert_acted()
    assert reached == [expected], reached
    assert num_updates(model) == [_WORKERS * num_steps] * 2
    assert _counters(strategy).value("largest_lead") == max_staleness
    assert f"largest staleness of this epoch was {max_staleness}" in caplog.text


def test_a_worker_whose_input_has_ended_holds_nobody(make: Make) -> None:
    model = shared_counting.model(make(0))
    lengths = (3, 40)

    def of_worker(context: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(
            shared_counting.steps(
                lengths[context.input_pipeline_id],
                first=shared_counting.UNCHECKED,
            )
        )

    history = model.fit(tfps.DatasetCreator(of_worker), epochs=3, verbose=0)
    assert len(history.history["loss"]) == 3
    assert int(model.optimizer.iterations) == 3 * sum(lengths)
    assert num_updates(model) == [3 * sum(lengths)] * 2


class _Counts(keras.callbacks.Callback):
    """Counts batches, and looks at the model now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.num_batches = 0
        self.seen: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        self.num_batches += 1
        if batch % 10 == 9:
            self.seen.append(int(self.model.optimizer.iterations))


@pytest.mark.parametrize("steps_per_execution", [1, 5])
def test_each_batch_of_the_chief_is_trained_on_once(
    make: Make, steps_per_execution: int
) -> None:
    strategy = make(2)
    model = shared_counting.model(
        strategy,
        metrics=[shared_counting.mean_target],
        steps_per_execution=steps_per_execution,
    )
    num_batches, size = 35, 4
    # A sum of powers of two is exact.
    x = _random.integers(0, 8, (num_batches * size, 2)).astype("float32")
    y = np.zeros((num_batches * size, 2), "float32")
    y[:, 0] = _random.integers(0, 8, num_batches * size)
    counts = _Counts()
    history = model.fit(
        x,
        y,
        batch_size=size,
        epochs=2,
        callbacks=[counts],
        validation_data=(x[:8], y[:8]),
        verbose=0,
    ).history
    expected = 2 * x.sum(axis=0) / size
    found = model.layers[0].weight.numpy()
    np.testing.assert_array_equal(found, expected)
    assert int(model.optimizer.iterations) == 2 * num_batches
    np.testing.assert_allclose(
        history["mean_target"], [y[:, 0].mean()] * 2, rtol=1e-6
    )
    np.testing.assert_allclose(
        history["val_loss"][-1], -(x[:8] * found).sum(axis=1).mean(), rtol=1e-6
    )
    if steps_per_execution == 1:
        assert counts.num_batches == 2 * num_batches
        assert counts.seen == [10, 20, 30, 45, 55, 65]
    # Validation has two batches.
    assert _counters(strategy).value("steps_done") == 2 * (num_batches + 2)
    assert _counters(strategy).value("steps_again") == 0


def _layers() -> list[Any]:
    return [
        keras.Input((3,), dtype="int32"),
        keras.layers.Embedding(40, 4),
        keras.layers.Flatten(),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(1),
    ]


def _compiled() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(_layers())
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"]
    )
    return model


_IDS = _random.integers(0, 40, (320, 3)).astype("int32")
_TARGETS = _random.normal(size=(320, 1)).astype("float32")


def test_a_step_sends_no_more_messages_than_an_asynchronous_one(
    make: Make,
) -> None:
    def num_messages(strategy: tfps.ParameterServerStrategy) -> int:
        with strategy.scope():
            model = _compiled()
        model.fit(_IDS, _TARGETS, batch_size=32, verbose=0)
        explanation = strategy.explain(model, print_fn=None)
        return sum(body.num_parcels for body in explanation.bodies)

    bounded = num_messages(make(8))
    asynchronous = num_messages(make(consistency=tfps.Async()))
    assert 0 < bounded <= asynchronous


@pytest.mark.parametrize("is_traced_before", [False, True])
def test_a_scheduled_update_is_refused(
    make: Make, is_traced_before: bool
) -> None:
    strategy = make(2)
    model = shared_counting.model(strategy)
    coordinator = tfps.ClusterCoordinator(strategy)

    @tf.function
    def step() -> None:
        model.optimizer.apply([tf.ones([2])], model.trainable_variables)

    with pytest.raises(
        errors.UnsupportedError, match=r"tfps\.BoundedStaleness\(max_stalenes"
    ):
        coordinator.schedule(
            step.get_concrete_function() if is_traced_before else step
        )


def test_steps_that_follow_one_another_are_refused(make: Make) -> None:
    strategy = make(2)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4, 2), batch_size=8),
                keras.layers.LSTM(3, stateful=True),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    x = np.zeros((32, 4, 2), "float32")
    with pytest.raises(errors.UnsupportedError, match=r"BoundedStaleness"):
        model.fit(x, x[:, 0, :1], batch_size=8, shuffle=False, verbose=0)
