"""Tests of counts of steps, which wait for the gradients of their step."""

import types
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from tfps_plugin.strategy import updates
from tfps_plugin.training.optimizers.step import OptimizerStep
from tfps_plugin.training.optimizers.step_count import one_after
from tfps_plugin.transport import fusion
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.step_trace import StepTrace

_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: keras.optimizers.SGD(0.1),
    "slots": lambda: keras.optimizers.Adam(0.1),
    "clipped": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.5),
    "averages": lambda: keras.optimizers.SGD(0.1, use_ema=True),
}
_GRADIENTS = ("Sin", "Cos")
_STRATEGY = types.SimpleNamespace(
    sparse_update="lazy", consistency=None, extended=types.SimpleNamespace()
)


def _create(next_creator: Any, **kwargs: Any) -> Any:
    value = kwargs["initial_value"]
    value = tf.convert_to_tensor(value() if callable(value) else value)
    if value.shape.rank:
        return testing.remote_variable(value)
    scalar = MirroredScalar(testing.LOCAL_DEVICE, value.dtype, "scalar")
    scalar.assign(value)
    return scalar


def _update(variable: Any, fn: Any, args: Any = (), **options: Any) -> Any:
    return updates.update(variable, fn, args, {}, exact=True)


def _step_of(name: str) -> tuple[Any, Callable[..., None]]:
    """Returns an optimizer, and its step with the gradients `_GRADIENTS`."""
    with tf.variable_creator_scope(_create):
        optimizer = _OPTIMIZERS[name]()
        table, weight = (keras.Variable(tf.ones(s)) for s in ([5, 3], [3]))
        optimizer.build([table, weight])
    for variable in (table, weight):
        for slot in optimizer.variables:
            if slot.shape == variable.shape:
                variable.value.join_family(slot.value)
    _STRATEGY.extended.update = _update
    optimizer._distribution_strategy = _STRATEGY

    def step(rows: tf.Tensor, x: tf.Tensor) -> None:
        sparse = tf.IndexedSlices(tf.sin(rows), tf.constant([3, 1]), [5, 3])
        trace = StepTrace.current()
        OptimizerStep(optimizer, [table, weight], trace).run(
            [sparse, tf.cos(x)]
        )

    return optimizer, step


_SPECS = (tf.TensorSpec([2, 3]), tf.TensorSpec([3]))


def _before(operation: tf.Operation) -> set[str]:
    """Returns the types of all operations that one runs after."""
    seen = {operation}
    stack = [operation]
    while stack:
        one = stack.pop()
        found = {t.op for t in one.inputs} | {*one.control_inputs}
        stack += found - seen
        seen |= found
    return {one.type for one in seen}


def _counts(graph: Any) -> list[tf.Operation]:
    """Returns the operations that count a step."""
    return [
        operation
        for operation in graph.get_operations()
        if operation.type == "AssignAddVariableOp"
        and operation.inputs[1].dtype == tf.int64
    ]


@pytest.mark.parametrize("name", _OPTIMIZERS)
@pytest.mark.parametrize("called", [False, True])
def test_a_step_counts_when_it_has_all_gradients(
    name: str, called: bool
) -> None:
    _, own = _step_of(name)
    inner = tf.function(own)

    def step(*args: tf.Tensor) -> None:
        (inner if called else own)(*args)

    with tf.device(None):
        function = tf.function(step).get_concrete_function(*_SPECS)
    fused: Any = fusion.fuse(function)
    # That of the ps, and those of the worker's copy and its tally.
    counts = _counts(fused.__wrapped__.graph)
    assert len(counts) == 3
    for count in counts:
        assert _before(count).issuperset(_GRADIENTS)


def test_a_count_is_known_to_grow() -> None:
    optimizer, step = _step_of("plain")
    with tf.device(None):
        tf.function(step).get_concrete_function(*_SPECS)
    counter = optimizer.iterations.value
    assert counter.only_grows


def test_the_addend_waits_itself_and_not_only_a_constant() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        rows = tf.IndexedSlices(tf.sin(x), tf.constant([0]))
        one = one_after([rows, tf.cos(x)], tf.int64)
        assert tf.get_static_value(one) == 1
        waits = [operation.type for operation in one.op.control_inputs]
        assert sorted(waits) == ["Cos", "Sin"]
        return one

    assert step(tf.ones([1])).numpy() == 1


def test_outside_of_functions_it_is_one() -> None:
    one = one_after([tf.ones([2])], tf.float64)
    assert one.dtype == tf.float64
    assert one.numpy() == 1
