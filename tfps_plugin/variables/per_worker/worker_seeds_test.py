import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables import testing
from tfps_plugin.variables.per_worker import worker_seeds
from tfps_plugin.variables.per_worker.worker_resident import Residents
from tfps_plugin.variables.per_worker.worker_seeds import WorkerLocalSeed


@contextmanager
def _on_lane(lane: int, generation: int = 0) -> Iterator[None]:
    """Runs as the first or second lane of a worker: 0, 1 | 2, 3 | ..."""
    context = DispatchContext(lane // 2, lane, generation, testing.LOCAL_DEVICE)
    with dispatch_context.dispatching(context):
        yield


def _generator(seed: int) -> keras.random.SeedGenerator:
    with tf.variable_creator_scope(
        lambda next_creator, **kwargs: WorkerLocalSeed(
            tf.convert_to_tensor(kwargs["initial_value"]()),
            "seed",
            synchronization=tf.VariableSynchronization.AUTO,
            aggregation=tf.VariableAggregation.NONE,
        )
    ):
        return keras.random.SeedGenerator(seed)


def _drawer(generator: Any, ordered: bool = True) -> Any:
    """Returns a traced function that draws four numbers."""

    def draw() -> tf.Tensor:
        seed = generator.next(ordered=ordered)
        return tf.random.stateless_uniform([4], tf.cast(seed, tf.int32))

    return tf.function(draw)


def _draw(drawer: Any, count: int) -> list[tuple[float, ...]]:
    return [tuple(drawer().numpy().tolist()) for _ in range(count)]


@pytest.mark.parametrize("ordered", [True, False])
def test_lanes_draw_different_sequences(ordered: bool) -> None:
    draw = _drawer(_generator(7), ordered)
    drawn = []
    for lane in (0, 1, 2):
        with _on_lane(lane):
            drawn += _draw(draw, 3)
    alone = _drawer(keras.random.SeedGenerator(7), ordered)
    expected = _draw(alone, 3)
    assert drawn[:3] == expected, "the first lane draws what one process does"
    assert len(set(drawn)) == 9


@pytest.mark.parametrize("ordered", [True, False])
def test_a_worker_that_came_back_does_not_repeat_itself(ordered: bool) -> None:
    draw = _drawer(_generator(7), ordered)
    drawn = []
    for generation in range(3):
        for lane in range(4):
            with _on_lane(lane, generation):
                drawn += _draw(draw, 4)
        connection.present().part(Residents).forget_worker(0)
        connection.present().part(Residents).forget_worker(1)
    assert len(set(drawn)) == 3 * 4 * 4


@pytest.mark.parametrize("ordered", [True, False])
def test_a_draw_of_the_chief_starts_no_sequence_again(ordered: bool) -> None:
    generator = _generator(7)
    draw = _drawer(generator, ordered)
    drawn = []
    by_chief = []
    for _ in range(3):
        for lane in range(3):
            with _on_lane(lane):
                drawn += _draw(draw, 5)
        # A draw outside of functions, as in a layer's call, assigns the state.
        seed = tf.cast(generator.next(ordered=ordered), tf.int32)
        by_chief.append(
            tuple(tf.random.stateless_uniform([4], seed).numpy().tolist())
        )
    assert len(set(drawn)) == 3 * 3 * 5
    assert len(set(by_chief)) == 3
    if ordered:
        assert not {*drawn} & {*by_chief}


def test_what_is_saved_is_where_to_go_on() -> None:
    generator = _generator(7)
    draw = _drawer(generator)
    before = []
    for lane, count in ((0, 2), (1, 5), (2, 3)):
        with _on_lane(lane):
            before += _draw(draw, count)
    saved = generator.state.numpy()
    assert saved.tolist() == [7, 5]
    # In another process.
    restored = _generator(1)
    restored.state.assign(saved)
    draw_again = _drawer(restored)
    after = []
    for lane in range(3):
        with _on_lane(lane):
            after += _draw(draw_again, 5)
    assert len({*before, *after}) == 10 + 15


def test_no_two_lanes_of_any_generation_meet() -> None:
    """Keras reduces seeds by these two moduli."""
    generations, lanes = range(40), range(2000)
    offsets = {
        (lane + generation * worker_seeds._LANES_PER_GENERATION)
        * worker_seeds._SEED_STRIDE
        for generation in generations
        for lane in lanes
    }
    for divisor in (933199, 2**31 - 2):
        remainders = {offset % divisor for offset in offsets}
        assert len(remainders) == len(generations) * len(lanes)


def test_draws_without_a_seed_are_those_of_the_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[Any] = []
    monkeypatch.setattr(
        keras_compat, "global_seed_state", lambda: held[0] if held else None
    )
    monkeypatch.setattr(keras_compat, "make_global_seed_generator", held.append)
    strategy = tf.distribute.get_strategy()
    worker_seeds.claim_global_seeds(strategy)
    assert not held, "Keras makes one when it is needed"
    held.append(tf.Variable([5, 3], dtype=tf.int64))
    worker_seeds.claim_global_seeds(strategy)
    assert held.pop().numpy().tolist() == [5, 3]
    held[0] = _generator(9).state.value
    with _on_lane(0):
        held[0].assign_add([0, 4])
    worker_seeds.claim_global_seeds(strategy)
    assert held.pop().numpy().tolist() == [9, 0], "another strategy's"
    held[0]._distribute_strategy = strategy
    worker_seeds.claim_global_seeds(strategy)
    assert len(held) == 1


def test_functions_keep_a_generator_that_the_program_has_dropped() -> None:
    """Keras makes a new global generator with every set_random_seed()."""
    seed = WorkerLocalSeed(tf.constant([5, 0], tf.int64), "seed")
    read = tf.function(seed.read_value).get_concrete_function()
    del seed
    gc.collect()
    np.testing.assert_array_equal(read(), [5, 0])
