"""Tests of two workers with two replicas each, against one process.

`shared_sync_parity` has the model, its data and the reference.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_cluster
import shared_sync_parity as parity
import tensorflow as tf

import tfps_plugin as tfps

_WORKERS = 2
_DATA = parity.Data(_WORKERS)
# Four shares are added up in another order than one process does, and Adam
# amplifies the rounding.
_TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def living_cluster() -> Iterator[tfps.LocalCluster]:
    """Yields the cluster of the module."""
    with tfps.LocalCluster(_WORKERS, 2, logical_cpus_per_worker=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(living_cluster: tfps.LocalCluster) -> tfps.LocalCluster:
    """Returns the cluster of the module, with all its tasks."""
    return shared_cluster.with_all_tasks(living_cluster)


@contextlib.contextmanager
def _strategy(
    cluster: tfps.LocalCluster, **options: Any
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, parity.cut, sparse_update="exact", **options
    )
    try:
        yield strategy
    finally:
        tfps.ClusterCoordinator(strategy).close()


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("name", parity.CASES)
def test_every_optimizer_and_option_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    actual = parity.on_cluster(
        cluster,
        lambda: parity.new_model(parity.CASES[name]()),
        _DATA.of_worker,
    )
    parity.assert_same(
        actual,
        parity.in_one_process(name, _WORKERS),
        _TOLERANCE,
    )


def _normalizing() -> keras.Model:
    keras.utils.set_random_seed(4)
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(parity.ROWS, 4),
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def _data(num_examples: int) -> tf.data.Dataset:
    random = np.random.default_rng(2)
    return tf.data.Dataset.from_tensor_slices(
        (
            random.integers(0, parity.ROWS, (num_examples, 3)).astype("int32"),
            random.normal(size=(num_examples, 1)).astype("float32"),
        )
    )


def test_statistics_are_those_of_all_replicas_of_all_workers(
    cluster: tfps.LocalCluster,
) -> None:
    """Of batches of 8, 8, 8 and 3: one of the four shares is empty."""
    data = _data(27).batch(8)
    expected = _normalizing()
    losses = expected.fit(data, epochs=3, verbose=0, shuffle=False).history
    with _strategy(cluster, consistency=tfps.Sync()) as strategy:
        assert strategy.num_replicas_in_sync == 4
        with strategy.scope():
            model = _normalizing()
        history = model.fit(data, epochs=3, verbose=0, shuffle=False).history
        variables = [v.numpy() for v in model.variables]
    for name, values in losses.items():
        np.testing.assert_allclose(history[name], values, rtol=2e-5)
    for mine, theirs in zip(variables, expected.variables, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_of_tensorflow", [False, True])
def test_a_custom_loop_has_the_results_of_all_replicas(
    cluster: tfps.LocalCluster, *, is_of_tensorflow: bool
) -> None:
    with _strategy(cluster, consistency=tfps.Sync()) as strategy:
        with strategy.scope():
            weight = keras.Variable(np.zeros([2, 1], "float32"))
            optimizer = keras.optimizers.SGD(0.1)
            optimizer.build([weight])
        coordinator = tfps.ClusterCoordinator(strategy)

        def dataset_fn(context: tf.distribute.InputContext) -> Any:
            # Rows of ones on the first worker, of twos on the second one.
            rows = np.full([3, 2], 1.0 + context.input_pipeline_id, "float32")
            return tf.data.Dataset.from_tensors(rows).repeat()

        @tf.function
        def step(iterator: Any) -> Any:
            def replica_fn(rows: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    losses = (rows @ tf.convert_to_tensor(weight))[:, 0]
                    loss = (
                        tf.nn.compute_average_loss(losses, global_batch_size=6)
                        if is_of_tensorflow
                        else tf.reduce_mean(losses)
                    )
                optimizer.apply([tape.gradient(loss, weight.value)], [weight])
                return tf.reduce_sum(rows)

            return strategy.run(replica_fn, args=(next(iterator),))

        iterator = iter(
            coordinator.create_per_worker_dataset(
                lambda: strategy.distribute_datasets_from_function(dataset_fn)
            )
        )
        results = coordinator.schedule(step, args=(iterator,)).fetch()
        coordinator.join()
        # Two rows and one row of each worker, two numbers in each row.
        assert sorted(results.values) == [2.0, 4.0, 4.0, 8.0]
        assert strategy.reduce("SUM", results, axis=None).numpy() == 18.0
        np.testing.assert_allclose(weight.numpy(), [[-0.15], [-0.15]])


@pytest.mark.parametrize("consistency", [tfps.Async(), tfps.Sync()], ids=str)
def test_training_goes_on_without_a_lost_worker(
    cluster: tfps.LocalCluster, consistency: Any
) -> None:
    data = _data(8).batch(8).repeat()
    with _strategy(cluster, consistency=consistency) as strategy:
        with strategy.scope():
            model = _normalizing()

        def kill(batch: int, logs: Any = None) -> None:
            del logs
            if batch == 20:
                cluster.kill("worker", 1)

        model.fit(
            data,
            steps_per_epoch=60,
            callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=kill)],
            verbose=0,
        )
        assert model.optimizer.iterations.numpy() == 60
        again = _data(13).batch(4)
        weights = model.get_weights()
        counted = model.evaluate(again, verbose=0)
    local = _normalizing()
    local.set_weights(weights)
    np.testing.assert_allclose(
        counted, local.evaluate(again, verbose=0), rtol=2e-5
    )
