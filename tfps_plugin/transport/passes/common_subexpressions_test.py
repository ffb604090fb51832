"""Tests of expressions that are computed once instead of several times."""

from typing import Any

import tensorflow as tf

from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.passes import common_subexpressions
from tfps_plugin.transport.passes.inlining import flatten
from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup import present_rows

_LOCK = "MutexLock"


def _flat(function: Any, *specs: tf.TensorSpec) -> FlatFunction:
    with tf.device(None):
        concrete = tf.function(function).get_concrete_function(*specs)
    return flatten(concrete.graph)


def _types(function: FlatFunction) -> list[str]:
    return [flat.operation.type for flat in function.operations]


def test_equal_constants_are_one() -> None:
    flat = _flat(lambda x: x * 2.0 + tf.sin(x) * 2.0, tf.TensorSpec([]))
    assert _types(flat).count("Const") == 2
    assert _types(common_subexpressions.merge(flat)).count("Const") == 1


def test_what_differs_in_an_attribute_stays() -> None:
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        return [
            tf.matmul(x, x),
            tf.matmul(x, x, transpose_a=True),
            tf.matmul(x, x),
        ]

    merged = common_subexpressions.merge(_flat(function, tf.TensorSpec([2, 2])))
    assert _types(merged).count("MatMul") == 2
    first, second, third = merged.outputs
    assert first == third != second


def test_what_is_on_another_device_stays() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/job:ps/task:0"):
            here = tf.sin(x)
        with tf.device("/job:ps/task:1"):
            return here + tf.sin(x)

    merged = common_subexpressions.merge(_flat(function, tf.TensorSpec([])))
    assert _types(merged).count("Sin") == 2


def test_what_waits_stays() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        check = tf.raw_ops.Assert(condition=x > 0.0, data=["negative"])
        with tf.control_dependencies([check]):
            checked = tf.sin(x)
        return checked + tf.sin(x)

    merged = common_subexpressions.merge(_flat(function, tf.TensorSpec([])))
    assert _types(merged).count("Sin") == 2


def test_reads_with_no_write_between_them_are_one() -> None:
    variable = tf.Variable(1.0)

    def function(x: tf.Tensor) -> tf.Tensor:
        before = [variable.read_value(), variable.read_value()]
        variable.assign(x)
        after = [variable.read_value(), variable.read_value()]
        return tf.stack([*before, *after])

    flat = _flat(function, tf.TensorSpec([]))
    assert _types(flat).count("ReadVariableOp") == 4
    merged = common_subexpressions.merge(flat)
    assert _types(merged).count("ReadVariableOp") == 2


def test_what_only_computes_waits_for_no_lock() -> None:
    mutex = tf.raw_ops.MutexV2(container="", shared_name="duplicates_test")
    variable = tf.Variable(1.0)

    def function(x: tf.Tensor) -> None:
        for _ in range(2):
            lock = tf.raw_ops.MutexLock(mutex=mutex)
            with tf.control_dependencies([lock]):
                added = variable.assign_add(tf.sin(x), read_value=False)
            with tf.control_dependencies([added]):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    merged = common_subexpressions.merge(_flat(function, tf.TensorSpec([])))
    types = _types(merged)
    assert types.count("Sin") == 1
    assert types.index("Sin") < types.index(_LOCK)
    # Operations that change a variable wait; inputs precede their readers.
    for number, flat in enumerate(merged.operations):
        before = [output.node for output in flat.inputs] + list(flat.controls)
        assert all(one < number for one in before)
        if flat.operation.type == "AssignAddVariableOp":
            assert any(
                merged.operations[one].operation.type == _LOCK
                for one in flat.controls
            )


def test_rows_and_slots_of_an_update_share_coordinates() -> None:
    table = testing.remote_variable(tf.zeros([9, 4]))
    slot = testing.remote_variable(tf.ones([9, 4]))
    mutex = tf.raw_ops.MutexV2(container="", shared_name="coordinates")

    def update(ids_U: tf.Tensor) -> tf.Tensor:
        with tf.device(table.device):
            lock = tf.raw_ops.MutexLock(mutex=mutex)
            with tf.control_dependencies([lock]):
                rows_UD = present_rows.gather_stored(table, ids_U)
                rows_UD += present_rows.gather_stored(slot, ids_U)
            with tf.control_dependencies([rows_UD]):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        return rows_UD

    flat = _flat(update, tf.TensorSpec([None], tf.int32))
    types = _types(common_subexpressions.merge(flat))
    assert types.count("ResourceGatherNd") == 2
    assert types.count("ExpandDims") == 1
    assert types.index("ExpandDims") < types.index("MutexLock")
    assert types.index("MutexLock") < types.index("ResourceGatherNd")
