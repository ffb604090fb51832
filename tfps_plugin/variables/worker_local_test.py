from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin.cluster import dispatch_context
from tfps_plugin.cluster.dispatch_context import DispatchContext
from tfps_plugin.variables import testing
from tfps_plugin.variables import worker_resident
from tfps_plugin.variables.worker_local import WorkerLocalSeed
from tfps_plugin.variables.worker_local import WorkerLocalVariable
from tfps_plugin.variables.worker_tables import WorkerTable


@contextmanager
def _on_lane(lane: int, generation: int = 0) -> Iterator[None]:
    """Runs as the first or second lane of a worker: 0, 1 | 2, 3 | ..."""
    context = DispatchContext(lane // 2, lane, generation, testing.LOCAL_DEVICE)
    with dispatch_context.dispatching(context):
        yield


def test_what_lanes_add_is_summed_on_the_chief() -> None:
    state = WorkerLocalVariable(tf.constant([1.0, 2.0]), "state")

    @tf.function
    def add(x: tf.Tensor) -> None:
        # As Keras's confusion matrices do: read, then assign.
        state.assign(state + x)

    for lane in range(4):
        with _on_lane(lane):
            add(tf.constant([10.0, 100.0]))
            add(tf.constant([10.0, 100.0]))
    np.testing.assert_array_equal(state.numpy(), [81.0, 802.0])
    np.testing.assert_array_equal(state + 0.0, [81.0, 802.0])


def test_a_lane_sees_its_own_copy_alone() -> None:
    state = WorkerLocalVariable(tf.constant(5), "state")
    read = tf.function(lambda: state.read_value())
    with _on_lane(0):
        state.assign_add(3)
        assert read().numpy() == state.numpy() == 3
    with _on_lane(1):
        assert read().numpy() == 0
    assert read().numpy() == 5, "a function on the chief has the chief's part"


def test_the_chief_assigns_for_all() -> None:
    state = WorkerLocalVariable(tf.constant(5), "state")
    with _on_lane(0):
        state.assign_add(3)
    state.assign(0)
    assert state.numpy() == 0
    state.assign_add(2)
    with _on_lane(0):
        state.assign_add(4)
    assert state.numpy() == 6


def test_a_lost_worker_takes_its_share_along() -> None:
    state = WorkerLocalVariable(tf.constant(0), "state")
    for lane in range(4):
        with _on_lane(lane):
            state.assign_add(1)
    worker_resident.forget_worker(0)
    assert state.numpy() == 2
    with _on_lane(0, generation=1):
        state.assign_add(1)
    assert state.numpy() == 3


def test_lanes_draw_different_sequences() -> None:
    with tf.variable_creator_scope(
        lambda next_creator, **kwargs: WorkerLocalSeed(
            tf.convert_to_tensor(kwargs["initial_value"]()), "seed"
        )
    ):
        generator = keras.random.SeedGenerator(7)
    draw = tf.function(lambda: keras.random.uniform((4,), seed=generator))
    drawn = []
    for lane in (0, 1, 2):
        with _on_lane(lane):
            drawn += [draw().numpy().tolist() for _ in range(2)]
    assert len({tuple(d) for d in drawn}) == 6
    alone = keras.random.SeedGenerator(7)
    expected = [
        keras.random.uniform((4,), seed=alone).numpy().tolist()
        for _ in range(2)
    ]
    assert drawn[:2] == expected, "the first lane draws what one process does"


def test_every_worker_looks_up_in_a_table_of_its_own() -> None:
    table = WorkerTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1
    )
    look_up = tf.function(lambda: table.lookup(tf.constant(["b", "x"])))
    assert look_up().numpy().tolist() == [2, -1]
    assert not table._resident.existing()
    for lane in range(4):
        with _on_lane(lane):
            assert look_up().numpy().tolist() == [2, -1]
            assert table.lookup(tf.constant(["a"])).numpy().tolist() == [1]
    copies = table._resident.existing()
    assert len(copies) == 2, "one for each worker, shared by its lanes"
    handles = {id(copy.resource_handle) for copy in (*copies, table)}
    assert len(handles) == 3
    assert not look_up.get_concrete_function().graph.captures
    assert table.size().numpy() == 2


def test_eager_operations_ask_for_the_value() -> None:
    """Given a variable, they would read its own handle by themselves."""
    state = WorkerLocalVariable(tf.constant([1.0, 2.0]), "state")
    with _on_lane(0):
        state.assign([3.0, 4.0])
        np.testing.assert_array_equal(tf.multiply(state, 2.0), [6.0, 8.0])
    np.testing.assert_array_equal(tf.multiply(state, 2.0), [8.0, 12.0])
    assert tf.reduce_sum(state).numpy() == 10.0
    with tf.GradientTape() as tape:
        tape.watch(state)
        y = tf.multiply(state, 3.0)
    np.testing.assert_array_equal(tape.gradient(y, state), [3.0, 3.0])


def test_a_table_made_in_a_function_is_filled_by_it() -> None:
    tables = []

    @tf.function
    def look_up() -> tf.Tensor:
        tables.append(
            WorkerTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant(["a", "b"]), tf.constant([1, 2])
                ),
                tf.constant(-1),
            )
        )
        return tables[0].lookup(tf.constant(["b", "x"]))

    concrete = look_up.get_concrete_function()
    for lane in (0, 2, 0):
        with _on_lane(lane):
            assert concrete().numpy().tolist() == [2, -1]
    (table,) = tables
    assert [c.size().numpy() for c in table._resident.existing()] == [2, 2]
    assert concrete().numpy().tolist() == [2, -1]
