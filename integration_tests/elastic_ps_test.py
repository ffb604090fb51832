"""Tests of parameter servers that come and go while a program trains."""

import math
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import shared_rows
import tensorflow as tf
from shared_ps_changes import PsChanges

import tfps_plugin as tfps
from tfps_plugin.recovery.incremental import row_marks

_SPLITS = 40
_ROWS = 40 * 48
_SECONDS = 60.0
_WORKERS = 2
_LOCAL_STEPS = 3

_CONSISTENCIES: dict[str, tfps.Async | tfps.Sync | tfps.BoundedStaleness] = {
    "async": tfps.Async(),
    "local steps": tfps.Async(local_steps=_LOCAL_STEPS),
    "bounded": tfps.BoundedStaleness(2),
    "sync": tfps.Sync(),
    "backup": tfps.Sync(backup_workers=1),
}

pytestmark = pytest.mark.cluster(num_workers=_WORKERS, num_ps=3)


@pytest.fixture(autouse=True)
def _by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets small tables move as large ones do."""
    monkeypatch.setattr(row_marks, "SMALLEST_TABLE_BYTES", 0)


@pytest.fixture
def new_strategy(
    cluster: tfps.LocalCluster, request: pytest.FixtureRequest
) -> Callable[..., tfps.ParameterServerStrategy]:
    """Returns a function that makes strategies."""

    def make(**options: Any) -> tfps.ParameterServerStrategy:
        options.setdefault(
            "variable_partitioner", tfps.partitioners.FixedShardsPartitioner(3)
        )
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver, **options
        )
        request.addfinalizer(tfps.ClusterCoordinator(strategy).close)
        return strategy

    return make


def _splits() -> dict[str, Any]:
    return {"x": shared_rows.of_splits(_SPLITS, _ROWS)}


def _batches_of_the_chief() -> dict[str, Any]:
    rows = np.arange(_ROWS)
    return {"x": rows, "y": rows, "batch_size": shared_rows.BATCH}


def _endless() -> dict[str, Any]:
    """Returns input in which each worker has rows of its own."""
    size = _ROWS // _WORKERS
    return {
        "x": tfps.DatasetCreator(
            lambda context: shared_rows.numbers(
                context.input_pipeline_id * size, size
            ).repeat()
        ),
        "steps_per_epoch": 300,
    }


def _assert_counted(
    name: str, model: keras.Model, steps: Any, num_steps: int
) -> None:
    """Checks what is known of the counts after steps of `_endless`.

    Args:
        name: Name of the consistency.
        model: The model.
        steps: The steps of each worker.
        num_steps: Number of steps of `fit`.
    """
    iterations = int(model.optimizer.iterations)
    if name == "local steps":
        # One for each round, which may end early.
        least = math.ceil(num_steps / _LOCAL_STEPS)
        assert least <= iterations <= num_steps
    else:
        assert iterations == num_steps
    total = shared_rows.counts(model).sum()
    of_one = num_steps * shared_rows.BATCH
    if name == "sync":
        # A step has a batch of each worker that takes part.
        assert total == sum(steps.read_all()) * shared_rows.BATCH
    if name in ("sync", "backup"):
        assert of_one <= total <= _WORKERS * of_one
        assert total % shared_rows.BATCH == 0
    else:
        assert total == of_one


class FromAnotherThread(PsChanges):
    """Makes the changes on a thread of its own, while steps go on."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.error: BaseException | None = None
        self._go_on = threading.Event()
        self._thread = threading.Thread(target=self._change)
        self._thread.start()

    def _change(self) -> None:
        try:
            assert self._go_on.wait(_SECONDS)
            self.remove(1)
            self.add(1)
        except BaseException as error:
            self.error = error

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 20:
            self._go_on.set()
        # Steps must not end before both changes have: the thread of the
        # program makes them, between two steps.
        if batch >= 250:
            while self._thread.is_alive() and not (
                self._coordinator.safe_points.is_wanted
            ):
                self._thread.join(0.01)

    def on_train_end(self, logs: Any = None) -> None:
        self._go_on.set()
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("data", [_splits, _batches_of_the_chief, _endless])
@pytest.mark.parametrize("name", _CONSISTENCIES)
@pytest.mark.sample(cases=5)
def test_every_row_is_trained_on_once_while_ps_come_and_go(
    cluster: tfps.LocalCluster,
    new_strategy: Callable[..., tfps.ParameterServerStrategy],
    name: str,
    data: Callable[[], dict[str, Any]],
) -> None:
    strategy = new_strategy(consistency=_CONSISTENCIES[name])
    model, steps = shared_rows.model(strategy, _ROWS)
    with strategy.scope():
        mean = keras.metrics.MeanMetricWrapper(
            lambda y_true, _: tf.cast(y_true, tf.float32), "mean"
        )
        model.compile(model.optimizer, model.loss, metrics=[mean])
    changes = PsChanges(cluster, {40: 0, 180: 2}, {100: 0})
    history = model.fit(callbacks=[changes], verbose=0, **data()).history
    assert changes.num_changes == 4
    counts = shared_rows.counts(model)
    if data is _endless:
        _assert_counted(name, model, steps, 300)
        if name != "backup":
            # The metric has seen the examples that were counted.
            seen = counts @ np.arange(_ROWS) / counts.sum()
            np.testing.assert_allclose(history["mean"], [seen], rtol=1e-5)
        return
    if name == "backup":
        # A step does without the gradients of one worker.
        assert counts.max() == 1
        return
    np.testing.assert_array_equal(counts, 1)
    np.testing.assert_allclose(history["mean"], [(_ROWS - 1) / 2], rtol=1e-6)
    result = model.evaluate(verbose=0, return_dict=True, **data())
    np.testing.assert_allclose(result["mean"], (_ROWS - 1) / 2, rtol=1e-6)


@pytest.mark.parametrize("name", _CONSISTENCIES)
@pytest.mark.sample(cases=2)
def test_changes_of_another_thread_happen_between_two_steps(
    cluster: tfps.LocalCluster,
    new_strategy: Callable[..., tfps.ParameterServerStrategy],
    name: str,
) -> None:
    strategy = new_strategy(consistency=_CONSISTENCIES[name])
    model, steps = shared_rows.model(strategy, _ROWS)
    changes = FromAnotherThread(cluster, {}, {})
    model.fit(
        callbacks=[changes], verbose=0, **_endless() | {"steps_per_epoch": 400}
    )
    assert changes.error is None
    assert changes.num_changes == 2
    _assert_counted(name, model, steps, 400)


@pytest.mark.parametrize("consistency", [tfps.Async(), tfps.Sync()], ids=str)
def test_a_custom_loop_goes_on(
    cluster: tfps.LocalCluster,
    new_strategy: Callable[..., tfps.ParameterServerStrategy],
    consistency: Any,
) -> None:
    strategy = new_strategy(consistency=consistency)
    coordinator = tfps.ClusterCoordinator(strategy)
    model, _ = shared_rows.model(strategy, _ROWS)
    changes = PsChanges(cluster, {}, {})
    changes.set_model(model)

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        def on_batch(batch: Any) -> tf.Tensor:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model.loss(y, model(x, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return tf.reduce_sum(x)

        return strategy.run(on_batch, args=(next(iterator),))

    @tf.function
    def total() -> tf.Tensor:
        return tf.reduce_sum(model.layers[0].embeddings)

    batches = iter(
        coordinator.create_per_worker_dataset(
            lambda context: shared_rows.numbers(0, _ROWS).repeat()
        )
    )

    def train(number: int) -> list[Any]:
        return [
            coordinator.schedule(step, args=(batches,)) for _ in range(number)
        ]

    results = train(20)
    changes.remove(0)
    results += train(20)
    changes.add(0)
    results += train(20)
    coordinator.join()
    assert int(model.optimizer.iterations) == 60
    counts = shared_rows.counts(model)
    assert counts.sum() == float(total())
    changes.remove(1)
    changes.add(1)
    # A function of the chief itself is traced again, too.
    assert counts.sum() == float(total())
    if isinstance(consistency, tfps.Async):
        seen = sum(coordinator.fetch(results))
        assert seen == counts @ np.arange(_ROWS)
