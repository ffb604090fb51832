"""Tests of effects behind operations that do not wait themselves."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.transport import fusion
from tfps_plugin.transport.flat_function import FlatFunction
from tfps_plugin.transport.passes.inlining import flatten

_PS = "/job:localhost/replica:0/task:0/device:CPU:0"


@tf.function
def _doubled(x: tf.Tensor) -> tf.Tensor:
    return x * 2.0


@tf.function
def _doubled_within(x: tf.Tensor) -> tf.Tensor:
    return _doubled(x) + 1.0


def _constant_in_a_constant(x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.constant(1.0)]):
        return x + tf.constant(2.0)


_COMPUTE: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "constant": lambda _: tf.constant(3.0),
    "sum with a constant": lambda x: x + tf.constant(3.0),
    # Its axes are a constant, and that alone waits.
    "reduction": lambda x: tf.reduce_min(x * tf.ones([3, 2])),
    "element of a stack": lambda x: tf.gather(tf.stack([x, x * 2.0]), 1),
    "call": _doubled,
    "call in a call": _doubled_within,
    "identity": tf.identity,
    "constant after a constant": _constant_in_a_constant,
}


def _concrete(function: Callable[..., Any], *specs: Any) -> Any:
    with tf.device(None):
        return tf.function(function).get_concrete_function(*specs)


def _runs_after(graph: Any, later: str, earlier: str) -> bool:
    """Returns whether the operation of one type runs after that of another."""
    stack = [o for o in graph.get_operations() if o.type == later]
    assert len(stack) == 1
    before = set(stack)
    while stack:
        operation = stack.pop()
        found = {t.op for t in operation.inputs} | {*operation.control_inputs}
        stack += found - before
        before |= found
    return any(operation.type == earlier for operation in before)


@pytest.mark.parametrize("kind", _COMPUTE)
def test_an_effect_waits_for_what_its_inputs_wait_for(kind: str) -> None:
    total = tf.Variable(0.0)

    def step(x: tf.Tensor) -> None:
        with tf.device(_PS):
            written = tf.io.write_file("/none", tf.strings.as_string(x + 1.0))
        with tf.control_dependencies([written]):
            y = _COMPUTE[kind](x)
        with tf.device(_PS):
            total.assign_add(y)

    function = _concrete(step, tf.TensorSpec([]))
    fused: Any = fusion.fuse(function)
    assert fused is not function
    change, write = "AssignAddVariableOp", "WriteFile"
    assert _runs_after(function.graph, change, write)
    assert _runs_after(fused.graph, change, write)


def test_the_end_waits_for_what_a_constant_waits_for() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        twice = x * 2.0
        with tf.control_dependencies([twice]):
            last = tf.constant(1.0)
        tf.compat.v1.get_default_graph().control_outputs.append(last.op)
        return x

    flat = flatten(_concrete(step, tf.TensorSpec([])).graph)
    assert "Mul" in [flat.operations[n].operation.type for n in flat.controls]


def _controls(flat: FlatFunction, kind: str) -> list[list[str]]:
    """Returns types of operations that each one of a type waits for."""
    return [
        [flat.operations[n].operation.type for n in one.controls]
        for one in flat.operations
        if one.operation.type == kind
    ]


def test_computations_do_not_wait() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        written = tf.io.write_file("/none", tf.strings.as_string(x))
        with tf.control_dependencies([written]):
            return tf.sin(_doubled(x)) + tf.constant(1.0)

    flat = flatten(_concrete(step, tf.TensorSpec([])).graph)
    assert _controls(flat, "Mul") == [[]]
    assert {len(c) for c in _controls(flat, "Const")} == {0}


def test_nothing_waits_twice() -> None:
    def step(x: tf.Tensor) -> None:
        first = tf.io.write_file("/none", tf.strings.as_string(x))
        with tf.control_dependencies([first]):
            second = tf.io.write_file("/none", "2")
        with tf.control_dependencies([first, second]):
            text = tf.constant("3")
        third = tf.io.write_file("/none", text)
        with tf.control_dependencies([third]):
            text = tf.constant("4")
        with tf.control_dependencies([third]):
            tf.io.write_file("/none", text)

    flat = flatten(_concrete(step, tf.TensorSpec([])).graph)
    assert [len(c) for c in _controls(flat, "WriteFile")] == [0, 1, 1, 1]
