"""Tests of the order of operations in a flat function."""

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.transport.flat_function import FlatOperation
from tfps_plugin.transport.passes import inlining


def _flat(function: tf.types.experimental.GenericFunction) -> list[str]:
    """Returns each stateful operation, after it the types it waits for."""
    flat = inlining.flatten(function.get_concrete_function().graph)
    given = flat.operations
    made = [one for one in given if isinstance(one, FlatOperation)]
    return [
        " ".join(
            [
                one.operation.type,
                *(given[number].operation.type for number in one.controls),
            ]
        )
        for one in made
        if compat.is_stateful(one.operation)
    ]


def _handle(name: str) -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)


def _read(handle: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)


def test_finding_one_resource_does_not_wait_for_finding_another() -> None:
    @tf.function
    def step() -> tf.Tensor:
        return _read(_handle("a")) + _read(_handle("b"))

    assert _flat(step) == ["VarHandleOp", "ReadVariableOp"] * 2


def test_an_operation_waits_for_what_its_handle_was_to_wait_for() -> None:
    @tf.function
    def step() -> tf.Tensor:
        first = tf.raw_ops.AssignVariableOp(
            resource=_handle("a"), value=tf.constant(1, tf.int64)
        )
        # The read itself gets no edge: its handle has it.
        with tf.control_dependencies([first]):
            return _read(_handle("b"))

    assert _flat(step) == [
        "VarHandleOp",
        "AssignVariableOp",
        "VarHandleOp",
        "ReadVariableOp AssignVariableOp",
    ]


def test_prints_keep_their_order_across_a_handle() -> None:
    @tf.function
    def step() -> tf.Tensor:
        tf.raw_ops.PrintV2(input="one")
        read = _read(_handle("a"))
        tf.raw_ops.PrintV2(input="two")
        return read

    found = _flat(step)
    assert found[0] == "PrintV2"
    assert "PrintV2 PrintV2" in found
