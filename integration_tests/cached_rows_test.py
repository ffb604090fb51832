"""Tests of embeddings whose most looked-up rows stay on the workers.

The truth is the same training without a cache; and rows that tell the step
that wrote them.
"""

import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_cached
import tensorflow as tf
from shared_cached import Telling

import tfps_plugin as tfps
from tfps_plugin import errors

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_BATCH = 8
_STEPS = 12
_IDS = (
    np.random.default_rng(3).zipf(1.3, (_STEPS * _BATCH, 3))
    % shared_cached.NUM_ROWS
)

Make = Callable[..., tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    """Makes strategies, whose coordinators are closed after the test."""
    made = []

    def make(
        num_shards: int | None = 2, **options: Any
    ) -> tfps.ParameterServerStrategy:
        made.append(
            tfps.ParameterServerStrategy(
                cluster.cluster_resolver,
                None
                if num_shards is None
                else tfps.partitioners.FixedShardsPartitioner(num_shards),
                scheduling=tfps.SchedulingOptions(
                    max_closures_in_flight_per_worker=1
                ),
                **options,
            )
        )
        return made[-1]

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


def _trained(
    strategy: tfps.ParameterServerStrategy,
    optimizer: type[keras.optimizers.Optimizer] = keras.optimizers.Adagrad,
    **options: Any,
) -> tuple[list[float], np.ndarray, keras.Model]:
    with strategy.scope():
        model = keras.Sequential(
            [
                shared_cached.layer_of(
                    keras.initializers.RandomNormal(seed=1), **options
                ),
                keras.layers.Dense(
                    1, kernel_initializer=keras.initializers.Ones()
                ),
            ]
        )
        model.compile(optimizer(0.1), "mse")
    targets = (_IDS[:, :1] % 2).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((_IDS, targets)).batch(_BATCH)
    history = model.fit(data, epochs=2, verbose=0)
    table = model.layers[0].get_embedding_tables()["items"].numpy()
    return history.history["loss"], table, model


@pytest.mark.parametrize("num_shards", [None, 2])
def test_a_cache_of_no_age_changes_nothing(
    make: Make, num_shards: int | None
) -> None:
    losses, table, _ = _trained(make(num_shards))
    cached_losses, cached_table, model = _trained(
        make(num_shards), cache_rows=16, cache_max_age_steps=0
    )
    np.testing.assert_allclose(cached_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(cached_table, table, rtol=1e-5, atol=1e-6)
    statistics = model.layers[0].cache_statistics()
    assert statistics["asked"] > 0
    assert statistics["hits"] == 0


def test_no_row_is_older_than_its_bound(make: Make) -> None:
    # Some ids share a place.
    model = shared_cached.telling(make(), cache_rows=30, cache_max_age_steps=3)
    seen = shared_cached.ages_seen(model, _STEPS)
    assert min(youngest for youngest, _ in seen) == 0.0
    assert max(oldest for _, oldest in seen) == 3.0
    assert 0.2 < model.embed.cache_statistics()["hit_rate"] < 0.75
    # Every update has arrived.
    assert np.all(model.embed.get_embedding_tables()["items"] == _STEPS)


@pytest.mark.parametrize("is_on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("num_shards", [None, 2])
def test_what_the_program_sets_is_seen_at_once(
    make: Make,
    tmp_path: pathlib.Path,
    num_shards: int | None,
    is_on_disk: bool,
) -> None:
    storage = tfps.TieredStorage(4, str(tmp_path / "rows"))
    model = shared_cached.telling(
        make(num_shards, table_storage={"items": storage})
        if is_on_disk
        else make(num_shards),
        cache_rows=1_000,
        cache_max_age_steps=1_000,
    )
    assert model.embed.trainable_variables[0].value.is_on_disk == is_on_disk
    (table,) = model.embed.trainable_variables
    weights = str(tmp_path / "model.weights.h5")
    model.save_weights(weights)
    ours = tfps.Checkpoint(model=model)
    theirs = tf.train.Checkpoint(table=table, made=model.made)
    our_prefix = ours.write(str(tmp_path / "ours"))
    their_prefix = theirs.write(str(tmp_path / "theirs"))

    def assign() -> None:
        table.assign(tf.zeros_like(table))
        model.made.assign(0.0)

    def scatter() -> None:
        made = float(model.made)
        rows = tf.range(shared_cached.NUM_ROWS)
        values = tf.fill([shared_cached.NUM_ROWS, 4], made)
        table.value.scatter_update(tf.IndexedSlices(values, rows))

    for change in (
        lambda: model.load_weights(weights),
        lambda: ours.restore(our_prefix),
        lambda: theirs.restore(their_prefix),
        assign,
        scatter,
    ):
        assert shared_cached.ages_seen(model, 4)[-1][1] > 0.0
        change()
        assert shared_cached.ages_seen(model, 1) == [(0.0, 0.0)]


def test_steps_of_the_chief_see_what_the_program_sets(make: Make) -> None:
    model = shared_cached.telling(
        make(), cache_rows=1_000, cache_max_age_steps=1_000
    )
    (table,) = model.embed.trainable_variables

    def oldest() -> float:
        logs = model.train_on_batch(np.zeros((1, 1)), return_dict=True)
        return float(logs["oldest"])

    assert [oldest() for _ in range(3)] == [0.0, 1.0, 2.0]
    table.assign(tf.fill(table.shape, float(model.made)))
    assert oldest() == 0.0


def test_evaluate_and_predict_read_the_newest_rows(make: Make) -> None:
    model = shared_cached.telling(
        make(), cache_rows=1_000, cache_max_age_steps=1_000
    )
    assert shared_cached.ages_seen(model, 4)[-1][1] > 0.0
    data = tf.data.Dataset.range(1).batch(1)
    found = model.evaluate(data, verbose=0, return_dict=True)
    assert (found["youngest"], found["oldest"]) == (0.0, 0.0)
    _, table, trained = _trained(
        make(), cache_rows=1_000, cache_max_age_steps=1_000
    )
    kernel, bias = trained.layers[1].get_weights()
    np.testing.assert_allclose(
        trained.predict(_IDS, verbose=0),
        table[_IDS].sum(1) @ kernel + bias,
        rtol=1e-4,
        atol=1e-5,
    )


class _Failing(Telling):
    """A model whose fourth step fails."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Makes one step."""
        logs = super().train_step(data)
        bad = tf.equal(tf.convert_to_tensor(self.made), 4.0)
        with tf.control_dependencies(
            [tf.debugging.assert_equal(bad, False, "the fourth step")]
        ):
            return {name: tf.identity(each) for name, each in logs.items()}


def test_a_step_that_fails_leaves_no_wrong_row(make: Make) -> None:
    with make().scope():
        model = _Failing(cache_rows=1_000, cache_max_age_steps=3)
        model.compile(keras.optimizers.SGD(1.0), steps_per_execution=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="fourth step"):
        shared_cached.ages_seen(model, 8)
    made = float(model.made)
    table = model.embed.get_embedding_tables()["items"].numpy()
    seen = shared_cached.ages_seen(model, 6)
    # Rows and steps may differ by what the failed steps have done.
    offset = made - table.min()
    assert min(youngest for youngest, _ in seen) >= offset
    assert max(oldest for _, oldest in seen) <= offset + 3.0


def _as_it_is(function: Callable[[], Any]) -> Any:
    return function()


def _in_branch(function: Callable[[], Any]) -> Any:
    return tf.cond(
        tf.constant(True),
        function,
        lambda: tf.zeros([shared_cached.NUM_ROWS, 4]),
    )


def _in_loop(function: Callable[[], Any]) -> Any:
    return tf.while_loop(
        lambda number, _: number < 1,
        lambda number, _: (number + 1, function()),
        (tf.constant(0), tf.zeros([shared_cached.NUM_ROWS, 4])),
    )[1]


class _Inside(Telling):
    """A model that looks rows up, or trains, inside of something else."""

    def __init__(
        self,
        lookups: Callable[..., Any] = _as_it_is,
        steps: Callable[..., Any] = _as_it_is,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._lookups = lookups
        self._steps = steps
        # Traced by whatever calls it first.
        self._function = tf.function(super()._ages)

    def _ages(self) -> tf.Tensor:
        if self._lookups is tf.function:
            return self._function()
        return self._lookups(super()._ages)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Makes one step."""
        step = super().train_step
        if self._steps is tf.function:
            return tf.function(step)(data)
        return self._steps(lambda: step(data))


def _inside(
    strategy: tfps.ParameterServerStrategy,
    steps_per_execution: int = 1,
    **options: Any,
) -> _Inside:
    with strategy.scope():
        model = _Inside(cache_rows=1_000, cache_max_age_steps=3, **options)
        model.compile(
            keras.optimizers.SGD(1.0), steps_per_execution=steps_per_execution
        )
        # Otherwise a trace that only builds it is the first of its function.
        model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("lookups", [_in_branch, _in_loop, tf.function])
@pytest.mark.parametrize("num_shards", [None, 2])
def test_lookups_inside_of_something_train_all_rows(
    make: Make, num_shards: int | None, lookups: Callable[..., Any]
) -> None:
    model = _inside(make(num_shards), lookups=lookups)
    seen = shared_cached.ages_seen(model, _STEPS)
    # Each step has added one to each row, and has read the newest.
    assert np.all(model.embed.get_embedding_tables()["items"] == _STEPS)
    assert seen == [(0.0, 0.0)] * _STEPS
    assert model.embed.cache_statistics()["asked"] == 0


@pytest.mark.parametrize("num_shards", [None, 2])
def test_a_function_of_training_reads_the_newest_rows_in_evaluate(
    make: Make, num_shards: int | None
) -> None:
    model = _inside(make(num_shards), lookups=tf.function)
    data = tf.data.Dataset.range(1).batch(1)
    for steps in (3, 4):
        shared_cached.ages_seen(model, steps)
        found = model.evaluate(data, verbose=0, return_dict=True)
        assert (found["youngest"], found["oldest"]) == (0.0, 0.0)


@pytest.mark.parametrize("steps_per_execution", [1, 4])
@pytest.mark.parametrize("steps", [_as_it_is, tf.function])
def test_a_step_has_its_cache_inside_of_loops_and_functions(
    make: Make, steps: Callable[..., Any], steps_per_execution: int
) -> None:
    model = _inside(make(), steps_per_execution, steps=steps)
    shared_cached.ages_seen(model, _STEPS)
    assert np.all(model.embed.get_embedding_tables()["items"] == _STEPS)
    # Read in every fourth step.
    assert model.embed.cache_statistics()["hit_rate"] == 0.75


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"consistency": tfps.Sync()}, "Sync"),
        ({"consistency": tfps.BoundedStaleness(2)}, "BoundedStaleness"),
        ({"consistency": tfps.Async(local_steps=2)}, "local steps"),
        ({"sparse_update": "caught_up"}, "caught_up"),
    ],
)
def test_promises_that_old_rows_break_are_refused(
    make: Make, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(errors.UnsupportedError, match=name):
        _trained(make(**options), keras.optimizers.Adam, cache_rows=16)
