"""Tests of tables without a vocabulary on a cluster.

The truth is `keras.layers.Embedding` in one process, with the same first rows
and the places of ids as row numbers.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import shared_optimizers
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_LOWEST = -(2**63)
_BATCH = 8
_BATCHES = 6
_RANDOM = np.random.default_rng(4)
# Any integers, and the four lowest of all.
_POOL = np.concatenate(
    [np.arange(4) + _LOWEST, _RANDOM.integers(_LOWEST, 2**63 - 1, 56)]
)
_PLACES = np.concatenate(
    [
        _RANDOM.permutation(len(_POOL))[: 3 * _BATCH].reshape(_BATCH, 3)
        for _ in range(_BATCHES)
    ]
)
_IDS = _POOL[_PLACES]
_TARGETS = _RANDOM.integers(0, 2, (len(_IDS), 1)).astype("float32")
_FIRST = keras.initializers.RandomNormal(stddev=0.1, seed=9)


def _model(layer: Any, optimizer: Any) -> keras.Model:
    inputs = keras.Input((3,), dtype="int64")
    outputs = keras.layers.Dense(
        1, kernel_initializer=keras.initializers.RandomNormal(seed=2)
    )(keras.layers.Flatten()(layer(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, "mse")
    return model


def _dynamic(**options: Any) -> tfps.layers.DynamicEmbedding:
    return tfps.layers.DynamicEmbedding(
        4, _FIRST, capacity=400, name="items", **options
    )


def _fit(model: keras.Model, ids: np.ndarray, epochs: int = 3) -> list[float]:
    history = model.fit(
        ids,
        _TARGETS,
        batch_size=_BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    )
    losses: list[float] = history.history["loss"]
    return losses


@functools.cache
def _in_one_process(name: str) -> tuple[list[float], np.ndarray]:
    """Returns losses, and the row of each id of the pool."""
    layer = keras.layers.Embedding(len(_POOL), 4)
    model = _model(layer, shared_optimizers.summing(_OPTIMIZERS[name]()))
    layer.embeddings.assign(_first_rows(_POOL))
    return _fit(model, _PLACES), layer.embeddings.numpy()


def _first_rows(ids: np.ndarray) -> Any:
    # It has met none of them.
    return _dynamic()(tf.constant(ids), training=False)


_OPTIMIZERS = shared_optimizers.EVERY | shared_optimizers.OPTIONS
_OPTIMIZERS.pop("ScheduleFreeAdamW", None)
# These change rows without a gradient, too: in a fixed table also those that
# no step has met yet.
_CHANGING_ALL = ("AdamW", "Ftrl")

Make = Callable[..., tfps.ParameterServerStrategy]


@pytest.mark.sample(cases=2)
@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_every_optimizer_has_the_numbers_of_a_fixed_table(
    make: Make, name: str
) -> None:
    losses, rows = _in_one_process(name)
    strategy = make(sparse_update="exact", consistency=tfps.Sync())
    with strategy.scope():
        layer = _dynamic()
        model = _model(layer, _OPTIMIZERS[name]())
    if name in _CHANGING_ALL:
        layer.import_(_POOL, _first_rows(_POOL))
    np.testing.assert_allclose(_fit(model, _IDS), losses, rtol=1e-4)
    found = dict(zip(*layer.export(), strict=True))
    met = np.arange(len(_POOL))
    if name not in _CHANGING_ALL:
        met = np.unique(_PLACES)
    assert sorted(found) == sorted(_POOL[met])
    np.testing.assert_allclose(
        np.stack([found[one] for one in _POOL[met]]),
        rows[met],
        rtol=1e-3,
        atol=1e-5,
    )


@pytest.mark.parametrize("num_shards", [1, 2, 5])
@pytest.mark.parametrize(
    "consistency",
    [tfps.Async(), tfps.Sync(), tfps.BoundedStaleness(1)],
    ids=lambda each: type(each).__name__,
)
def test_every_consistency_learns(
    make: Make, num_shards: int, consistency: Any
) -> None:
    strategy = make(num_shards, consistency=consistency)
    with strategy.scope():
        layer = _dynamic()
        model = _model(layer, keras.optimizers.Adagrad(0.2))
    losses = _fit(model, _IDS, epochs=6)
    assert losses[-1] < losses[0]
    assert layer.size() == len(np.unique(_IDS))
    model.evaluate(_IDS + 1, _TARGETS, verbose=0)
    model.predict(_IDS + 2, verbose=0)
    assert layer.size() == len(np.unique(_IDS)), "only training makes rows"


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_has_the_numbers_of_a_fixed_table(
    make: Make, num_shards: int, policy: str
) -> None:
    fixed = keras.layers.Embedding(len(_POOL), 4, dtype=policy)
    alone = _model(fixed, keras.optimizers.Adagrad(0.1))
    fixed.embeddings.assign(_first_rows(_POOL))
    losses = _fit(alone, _PLACES)
    with make(num_shards, consistency=tfps.Sync()).scope():
        layer = _dynamic(dtype=policy)
        model = _model(layer, keras.optimizers.Adagrad(0.1))
    np.testing.assert_allclose(_fit(model, _IDS), losses, rtol=1e-3)
    ids, rows = layer.export()
    assert rows.dtype == "float32"
    places = np.searchsorted(np.sort(_POOL), ids)
    np.testing.assert_allclose(
        rows,
        fixed.embeddings.numpy()[np.argsort(_POOL)[places]],
        rtol=0,
        atol=2e-3,
    )


def test_a_custom_loop_has_the_numbers_of_one_process(make: Make) -> None:
    num_steps = 9

    def train(model: keras.Model) -> Callable[[Any, Any], Any]:
        def step(ids: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                error = model(ids, training=True) - targets
                loss = tf.reduce_mean(tf.square(error))
            weights = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        return step

    fixed = keras.layers.Embedding(len(_POOL), 4)
    optimizer = shared_optimizers.summing(keras.optimizers.Adagrad(0.1))
    step_alone = train(_model(fixed, optimizer))
    fixed.embeddings.assign(_first_rows(_POOL))
    # The batches of both workers as one.
    together = zip(
        np.split(_PLACES, _BATCHES // 2),
        np.split(_TARGETS, _BATCHES // 2),
        strict=True,
    )
    expected = [step_alone(*each) for each in 3 * list(together)]

    strategy = make(consistency=tfps.Sync(), sparse_update="exact")
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        layer = _dynamic()
        step_of_worker = train(_model(layer, keras.optimizers.Adagrad(0.1)))

    def batches_of(context: tf.distribute.InputContext) -> tf.data.Dataset:
        every = tf.data.Dataset.from_tensor_slices((_IDS, _TARGETS))
        mine = every.batch(_BATCH).shard(2, context.input_pipeline_id)
        return mine.repeat()

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(step_of_worker, args=next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(batches_of))
    results = [
        coordinator.schedule(step, (iterator,)) for _ in range(num_steps)
    ]
    coordinator.join()
    losses = [np.mean(each.values) for each in coordinator.fetch(results)]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    met = np.unique(_PLACES)
    found = dict(zip(*layer.export(), strict=True))
    assert sorted(found) == sorted(_POOL[met])
    np.testing.assert_allclose(
        np.stack([found[one] for one in _POOL[met]]),
        fixed.embeddings.numpy()[met],
        rtol=1e-3,
        atol=1e-5,
    )


@pytest.mark.cluster(num_workers=8, num_ps=2)
def test_gradients_of_workers_that_meet_new_ids_at_once_add_up(
    make: Make,
) -> None:
    strategy = make(
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=4)
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        layer = tfps.layers.DynamicEmbedding(4, "zeros", capacity=3000)
        layer.build()
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)
    # Closures that run at once meet the same ids, some of them twice.
    random = np.random.default_rng(8)
    ids = np.stack(
        [
            7
            * random.integers(10 * (number // 16), 10 * (number // 16) + 60, 50)
            for number in range(200)
        ]
    )

    @tf.function
    def meet(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(layer(ids))
        weights = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    for each in ids:
        coordinator.schedule(meet, (tf.constant(each),))
    coordinator.join()
    met, times = np.unique(ids, return_counts=True)
    found, rows = layer.export()
    # Each number of a row is the number of its meetings.
    np.testing.assert_array_equal(np.sort(found), met)
    np.testing.assert_array_equal(
        rows[np.argsort(found)], np.stack(4 * [times], axis=1)
    )


@pytest.mark.cluster(num_workers=8, num_ps=2)
def test_workers_that_meet_new_ids_at_once_make_one_row_of_each(
    make: Make,
) -> None:
    strategy = make(
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=4)
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    num_ids = 3000
    with strategy.scope():
        layer = tfps.layers.DynamicEmbedding(4, _FIRST, capacity=num_ids)
        layer.build()

    @tf.function
    def look_up(number: tf.Tensor) -> tf.Tensor:
        # All begin with the same ids.
        ids = tf.range(10 * (number // 16), 10 * (number // 16) + 200)
        return layer(tf.cast(ids, tf.int64) * 64, training=True)

    results = [
        coordinator.schedule(look_up, args=(tf.constant(number),))
        for number in range(200)
    ]
    coordinator.join()
    ids, rows = layer.export()
    expected = np.arange(200 + 10 * 12) * 64
    assert sorted(ids) == sorted(expected)
    np.testing.assert_array_equal(rows, layer(tf.constant(ids)))
    fresh = tfps.layers.DynamicEmbedding(4, _FIRST, capacity=num_ids)
    for number, result in enumerate(results):
        first = 10 * (number // 16)
        np.testing.assert_array_equal(
            result.fetch(),
            fresh(tf.range(first, first + 200, dtype=tf.int64) * 64),
        )


@pytest.mark.parametrize("unknown", ["initial", "zeros", "shared"])
def test_unknown_ids_get_what_was_asked_for(make: Make, unknown: str) -> None:
    with make().scope():
        layer = _dynamic(unknown=unknown)
        model = _model(layer, keras.optimizers.Adagrad(0.2))
    _fit(model, _IDS)
    rows = layer(tf.constant([5, 6], tf.int64)).numpy()
    expected = {
        "initial": _first_rows(np.array([5, 6])),
        "zeros": np.zeros((2, 4)),
        "shared": np.stack(2 * [layer.trainable_weights[-1].numpy()[0]]),
    }[unknown]
    np.testing.assert_array_equal(rows, expected)


def test_a_checkpoint_is_restored_into_any_number_of_shards(
    make: Make, tmp_path: pathlib.Path
) -> None:
    with make(2, consistency=tfps.Sync()).scope():
        layer = _dynamic()
        model = _model(layer, keras.optimizers.Adam(0.05))
    _fit(model, _IDS)
    path = tfps.Checkpoint(model=model).save(tmp_path / "saved")
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    ids, rows = layer.export()
    predicted = model.predict(_IDS, verbose=0)
    losses = _fit(model, _IDS)
    for num_shards in (3, 1):
        with make(num_shards, consistency=tfps.Sync()).scope():
            other = _dynamic()
            restored = _model(other, keras.optimizers.Adam(0.05))
            restored.optimizer.build(restored.trainable_variables)
        # What it has met before is gone.
        restored.fit(_IDS[:8] + 3, _TARGETS[:8], verbose=0)
        tfps.Checkpoint(model=restored).restore(path)
        _assert_same_rows(other, ids, rows)
        np.testing.assert_allclose(
            restored.predict(_IDS, verbose=0), predicted, atol=1e-6
        )
        # Slots belong to the same ids.
        np.testing.assert_allclose(_fit(restored, _IDS), losses, rtol=1e-4)
    # A process without a cluster restores the same file.
    alone = _model(_dynamic(), keras.optimizers.Adam(0.05))
    alone.optimizer.build(alone.trainable_variables)
    tfps.Checkpoint(model=alone).restore(path)
    _assert_same_rows(alone.get_layer("items"), ids, rows)
    np.testing.assert_allclose(
        alone.predict(_IDS, verbose=0), predicted, atol=1e-6
    )
    np.testing.assert_allclose(_fit(alone, _IDS), losses, rtol=1e-4)
    alone.load_weights(tmp_path / "model.weights.h5")
    _assert_same_rows(alone.get_layer("items"), ids, rows)
    np.testing.assert_allclose(
        alone.predict(_IDS, verbose=0), predicted, atol=1e-6
    )
    plain = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        plain.predict(_IDS, verbose=0), predicted, atol=1e-6
    )
    _assert_same_rows(plain.get_layer("items"), ids, rows)


def test_a_restore_goes_back_to_the_time_of_its_checkpoint(
    make: Make, tmp_path: pathlib.Path
) -> None:
    with make().scope():
        layer = _dynamic(
            eviction=tfps.layers.Eviction(None, unseen_steps=4 * _BATCHES)
        )
        model = _model(layer, keras.optimizers.SGD(0.05))
        others = np.arange(3 * _BATCH).reshape(-1, 3)
        _fit(model, _IDS, epochs=1)
        # No new ids after the checkpoint: only the time goes on.
        model.fit(others, np.ones((_BATCH, 1)), verbose=0)
        weights = str(tmp_path / "saved.weights.h5")
        model.save_weights(weights)
        ours = tfps.Checkpoint(model=model)
        theirs = tf.train.Checkpoint(model=model)
        our_prefix = ours.write(str(tmp_path / "ours"))
        their_prefix = theirs.write(str(tmp_path / "theirs"))
        trained = dict(zip(*layer.export(), strict=True))
        model.optimizer.learning_rate = 0.0
    for restore in (
        lambda: ours.restore(our_prefix),
        lambda: theirs.restore(their_prefix),
        lambda: model.load_weights(weights),
    ):
        model.fit(
            np.repeat(others, 6 * _BATCHES, 0),
            np.ones((_BATCH * 6 * _BATCHES, 1)),
            batch_size=_BATCH,
            verbose=0,
        )
        restore()
        model.optimizer.learning_rate = 0.0
        _fit(model, _IDS, epochs=1)
        assert layer.statistics()["evicted"] == 0
        for one, row in zip(*layer.export(), strict=True):
            np.testing.assert_array_equal(row, trained[one])


def _assert_same_rows(layer: Any, ids: np.ndarray, rows: np.ndarray) -> None:
    found = dict(zip(*layer.export(), strict=True))
    assert sorted(found) == sorted(ids)
    for one, row in zip(ids, rows, strict=True):
        np.testing.assert_array_equal(found[one], row)


def test_strings_ragged_and_weighted_ids(make: Make) -> None:
    strategy = make()
    with strategy.scope():
        layer = _dynamic(combiner="mean")
        layer.build()
    names = tf.ragged.constant([["a", "b"], [], ["b"]])
    weights = tf.ragged.constant([[1.0, 3.0], [], [2.0]])
    coordinator = tfps.ClusterCoordinator(strategy)

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        return layer(names, training=True), layer(names, weights)

    means, weighted = coordinator.schedule(step).fetch()
    a, b = _dynamic(combiner="mean")(tf.constant(["a", "b"]))
    np.testing.assert_allclose(means, [(a + b) / 2, 0 * a, b], rtol=1e-6)
    np.testing.assert_allclose(weighted, [(a + 3 * b) / 4, 0 * a, b], rtol=1e-6)
    assert layer.size() == 2


@pytest.mark.parametrize("order", ["least_recent", "smallest_norm"])
@pytest.mark.parametrize(
    "consistency", [tfps.Async(), tfps.Sync()], ids=lambda c: type(c).__name__
)
def test_rows_make_room_for_new_ids(
    make: Make, consistency: Any, order: str
) -> None:
    with make(2, consistency=consistency).scope():
        layer = tfps.layers.DynamicEmbedding(
            4,
            _FIRST,
            capacity=1000,
            eviction=tfps.layers.Eviction(order),
            unknown="zeros",
        )
        model = _model(layer, keras.optimizers.Adam(0.05))
    # New ids all the time, and three that every step looks up.
    ids = np.arange(3 * 4000).reshape(-1, 3) + 10
    ids[::2] = [1, 2, 3]
    targets = np.ones((len(ids), 1), "float32")
    model.fit(ids, targets, batch_size=8, shuffle=False, verbose=0)
    done = layer.statistics()
    assert done["made"] - done["evicted"] == layer.size()
    assert done["evicted"] > 3000
    assert done["without_room"] == 0
    # Three of nine to fifteen ids.
    assert 0.15 < done["hit_rate"] < 0.4
    present = set(layer.export()[0])
    assert present.issuperset([1, 2, 3])
    assert present.issuperset(ids[-200:].ravel())
    # Slots of rows that belong to no id are as new.
    records = layer.weights[1].numpy()
    for slot in model.optimizer.variables:
        if slot.shape == layer.weights[0].shape:
            rows = slot.numpy()
            assert np.all(rows[records[:, 1] == 0] == 0)
            assert np.count_nonzero(rows[records[:, 1] > 0]) > 1000


def _step_of(model: keras.Model) -> Any:
    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids, training=True))
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    return step


@pytest.mark.parametrize("is_built", [True, False])
def test_slots_of_a_custom_loop_begin_anew_with_their_rows(
    make: Make, is_built: bool
) -> None:
    strategy = make()
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        layer = tfps.layers.DynamicEmbedding(
            4,
            _FIRST,
            capacity=1000,
            eviction=tfps.layers.Eviction("least_recent"),
            unknown="zeros",
        )
        model = _model(layer, keras.optimizers.Adagrad(0.05))
        if is_built:
            model.optimizer.build(model.trainable_variables)

    step = _step_of(model)
    for first in range(0, 12_000, 60):
        ids = np.arange(first, first + 60).reshape(-1, 3)
        coordinator.schedule(step, (tf.constant(ids),))
    coordinator.join()
    assert layer.statistics()["evicted"] > 3000
    records = layer.weights[1].numpy()
    (slot,) = (
        each
        for each in model.optimizer.variables
        if each.shape == layer.weights[0].shape
    )
    # Adagrad's slots begin with 0.1, and grow.
    is_as_new = np.all(slot.numpy() == np.float32(0.1), axis=1)
    assert np.all(is_as_new[records[:, 1] == 0])
    assert not np.any(is_as_new[records[:, 1] > 0])


def test_a_function_that_builds_its_optimizer_late_says_so(
    make: Make,
) -> None:
    strategy = make()
    with strategy.scope():
        layer = _dynamic(eviction=tfps.layers.Eviction("least_recent"))
        model = _model(layer, keras.optimizers.Adagrad(0.05))

    step = _step_of(model)
    ids = tf.constant([[1, 2, 3]], tf.int64)
    with strategy.scope():
        with pytest.raises(
            errors.OptimizerNotBuiltError, match=r"Call optimizer\.build"
        ):
            step(ids)
        step(ids)
    assert sorted(layer.export()[0]) == [1, 2, 3]


def test_rare_ids_get_no_rows(make: Make) -> None:
    with make(2).scope():
        layer = tfps.layers.DynamicEmbedding(
            4,
            _FIRST,
            capacity=1000,
            admission=tfps.layers.Admission(min_lookups=3),
            unknown="shared",
        )
        model = _model(layer, keras.optimizers.Adam(0.05))
    ids = np.arange(3 * 400).reshape(-1, 3) + 10
    ids[::2] = [1, 2, 3]
    targets = np.ones((len(ids), 1), "float32")
    model.fit(ids, targets, batch_size=8, shuffle=False, verbose=0)
    assert set(layer.export()[0]) >= {1, 2, 3}
    assert layer.size() < 30
    assert layer.statistics()["not_admitted"] > 500
    # The shared row was trained for all of the others.
    assert np.abs(layer.trainable_weights[-1].numpy()).min() > 0.1
    with make(1).scope():
        other = keras.models.clone_model(model)
    assert other.layers[1].admission == tfps.layers.Admission(min_lookups=3)


def test_exact_counts_go_with_a_checkpoint_to_other_shards(
    make: Make, tmp_path: pathlib.Path
) -> None:
    def counting(num_shards: int) -> Any:
        strategy = make(num_shards, consistency=tfps.Sync())
        with strategy.scope():
            layer = _dynamic(
                admission=tfps.layers.Admission(min_lookups=3, counts="exact")
            )
            model = _model(layer, keras.optimizers.Adam(0.05))
            model.optimizer.build(model.trainable_variables)
            return layer, model

    layer, model = counting(2)
    # One step for each id.
    ids = _POOL[:24].reshape(8, 3)
    for times in (1, 2):
        model.fit(ids[: 4 * times], _TARGETS[: 4 * times], verbose=0)
    assert layer.size() == 0
    path = tfps.Checkpoint(model=model).save(tmp_path / "saved")
    for num_shards in (3, 1):
        other, restored = counting(num_shards)
        tfps.Checkpoint(model=restored).restore(path)
        restored.fit(ids, _TARGETS[:8], verbose=0)
        assert set(other.export()[0]) == set(ids[:4].ravel())
        assert other.statistics()["not_admitted"] == ids[4:].size
        restored.fit(ids, _TARGETS[:8], verbose=0)
        assert set(other.export()[0]) == set(ids.ravel())


@pytest.mark.parametrize(
    "rules",
    [
        {"admission": tfps.layers.Admission(3, counts="exact")},
        {
            "admission": tfps.layers.Admission(probability=0.1),
            "eviction": tfps.layers.Eviction(),
        },
    ],
    ids=str,
)
def test_an_import_gives_every_id_a_row_or_none(
    make: Make, rules: dict[str, Any]
) -> None:
    with make(3, consistency=tfps.Sync()).scope():
        layer = _dynamic(**rules)
        model = _model(layer, keras.optimizers.Adagrad(0.2))
    rows = np.arange(4.0 * len(_POOL)).reshape(-1, 4)
    for factor in (1, 2):
        layer.import_(_POOL, factor * rows)
        _assert_same_rows(layer, _POOL, factor * rows)
    with pytest.raises(errors.InputError, match=r"no room for .*capacity=400"):
        layer.import_(np.arange(3000), np.zeros((3000, 4)))
    _assert_same_rows(layer, _POOL, 2 * rows)
    losses = _fit(model, _IDS)
    assert losses[-1] < losses[0]
    assert layer.size() == layer.statistics()["made"] == len(_POOL)


def test_a_full_table_is_named(make: Make) -> None:
    with make().scope():
        layer = tfps.layers.DynamicEmbedding(4, _FIRST, capacity=10)
        model = _model(layer, "sgd")
    ids = np.arange(30_000).reshape(-1, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is full"):
        model.fit(ids, np.zeros((len(ids), 1)), verbose=0)


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "ScheduleFreeAdamW"),
    reason="Keras before 3.14 does not have it",
)
def test_an_optimizer_that_copies_rows_is_refused(make: Make) -> None:
    with make().scope():
        model = _model(_dynamic(), keras.optimizers.ScheduleFreeAdamW())
    with pytest.raises(errors.UnsupportedError, match="ScheduleFreeAdamW"):
        _fit(model, _IDS)


@pytest.mark.parametrize("name", shared_optimizers.WHOLE_MATRIX)
def test_an_optimizer_that_needs_all_rows_is_refused(
    make: Make, name: str
) -> None:
    optimizer = shared_optimizers.WHOLE_MATRIX[name]
    # One shard has all rows, and many that belong to no id.
    with (
        make(1).scope(),
        pytest.raises(errors.UnsupportedError, match=f"{name}.*'items/embed"),
    ):
        _model(_dynamic(), optimizer())


def test_rows_that_catch_up_are_refused(make: Make) -> None:
    with make(sparse_update="caught_up").scope():
        model = _model(_dynamic(), keras.optimizers.Adam(0.05))
    with pytest.raises(errors.UnsupportedError, match=r"'items'.*caught_up"):
        _fit(model, _IDS)
