"""Tests of the binding of arguments."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.calls.dispatch_context import dispatching
from tfps_plugin.coordinator.closures import arguments
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.inputs.per_worker_values import PerWorkerValues


def _bind(
    function: Any, args: Any = None, kwargs: Any = None
) -> Callable[[], Any]:
    return arguments.bind(
        function,
        args,
        kwargs,
        contextlib.nullcontext,
        lambda concrete: concrete,
    )


def _on_worker(worker_index: int, call: Callable[[], Any]) -> Any:
    context = DispatchContext(worker_index, 0, 0, "/device:CPU:0")
    with dispatching(context):
        return call()


def test_python_callable_gets_its_arguments_as_they_are() -> None:
    given = {"a": [1, 2]}
    call = _bind(lambda *args, **kwargs: (args, kwargs), [given], {"b": 3})
    args, kwargs = call()
    assert args[0] is given
    assert kwargs == {"b": 3}


def test_no_arguments() -> None:
    assert _bind(lambda: 7)() == 7


def test_per_worker_values_anywhere() -> None:
    own = PerWorkerValues(lambda context: f"own {context.worker_index}")
    call = _bind(
        lambda *args, **kwargs: (args, kwargs),
        (own, {"deep": (own, 1)}),
        {"key": [own]},
    )
    for worker_index in (0, 1):
        mine = f"own {worker_index}"
        assert _on_worker(worker_index, call) == (
            (mine, {"deep": (mine, 1)}),
            {"key": [mine]},
        )


@pytest.mark.parametrize(
    "value", [tf.constant([1.0, 2.0]), np.array([1.0, 2.0], np.float32)]
)
def test_tf_function_takes_tensors_and_arrays(value: Any) -> None:
    call = _bind(tf.function(lambda x, n: x * n), (value,), {"n": 3.0})
    assert call().numpy().tolist() == [3.0, 6.0]


def test_tf_function_takes_python_values_and_defaults() -> None:
    @tf.function
    def step(
        x: tf.Tensor, n: int = 2, m: int = 3, *, negate: bool = False
    ) -> tf.Tensor:
        return -x * n * m if negate else x * n * m

    one = tf.constant(1)
    assert _bind(step, (one,))().numpy() == 6
    assert _bind(step, (one, 5))().numpy() == 15
    assert _bind(step, (one, 5, 7))().numpy() == 35
    assert _bind(step, (one,), {"m": 7})().numpy() == 14
    assert _bind(step, (one,), {"negate": True})().numpy() == -6
    own = PerWorkerValues(lambda _: one, type_spec=tf.TensorSpec([], tf.int32))
    call = _bind(step, (own,), {"negate": True})
    assert _on_worker(0, call).numpy() == -6


def test_tf_function_with_input_signature_and_of_an_object() -> None:
    class Model:
        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
        def double(self, x: tf.Tensor) -> tf.Tensor:
            return 2 * x

        @tf.function
        def times(self, x: tf.Tensor, n: int = 3) -> tf.Tensor:
            return n * x

    model = Model()
    assert _bind(model.double, (tf.constant(2),))().numpy() == 4
    assert _bind(model.times, (tf.constant(2),))().numpy() == 6
    assert _bind(model.times, (tf.constant(2),), {"n": 5})().numpy() == 10


def test_tf_function_is_traced_once_with_per_worker_values() -> None:
    datasets = [tf.data.Dataset.range(10 * n, 10 * n + 5) for n in range(2)]
    iterators = PerWorkerValues(
        lambda context: iter(datasets[context.worker_index]),
        type_spec=tf.data.IteratorSpec(datasets[0].element_spec),
    )
    num_traces = []

    @tf.function
    def step(iterator: Any, offset: tf.Tensor) -> tf.Tensor:
        num_traces.append(1)
        return next(iterator) + offset

    results = []
    for number in range(4):
        offset = tf.constant(100 * number, tf.int64)
        call = _bind(step, (iterators, offset))
        results.append(_on_worker(number % 2, call).numpy())
    assert results == [0, 110, 201, 311]
    assert len(num_traces) == 1


def test_traces_inside_the_scope() -> None:
    entered: list[object] = []

    @contextlib.contextmanager
    def scope() -> Any:
        entered.append(True)
        yield
        entered.append(False)

    @tf.function
    def step() -> tf.Tensor:
        entered.append("traced")
        return tf.constant(1)

    arguments.bind(step, None, None, scope, lambda concrete: concrete)
    assert entered == [True, "traced", False]


def test_functions_run_eagerly_where_the_program_says_so() -> None:
    class Model:
        @tf.function
        def step(self, x: tf.Tensor, own: Any = None) -> Any:
            return x + 1, own, tf.executing_eagerly()

    own = PerWorkerValues(lambda context: context.worker_index)
    tf.config.run_functions_eagerly(True)
    try:
        call = _bind(Model().step, (tf.constant(1),), {"own": own})
    finally:
        tf.config.run_functions_eagerly(False)
    result = _on_worker(2, call)
    assert (int(result[0]), *result[1:]) == (2, 2, True)
    assert str(call).startswith("step(")


def test_what_tracing_raises_arrives_as_itself() -> None:
    class OwnError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    @tf.function
    def step() -> None:
        raise OwnError(1, 2)

    with pytest.raises(OwnError, match="1 and 2"):
        _bind(step)


def test_refuses_remote_values_anywhere() -> None:
    with pytest.raises(ValueError, match="cannot be an argument"):
        _bind(print, ({"a": [RemoteValue()]},))


def test_calls_are_described_by_dtypes_and_shapes() -> None:
    def step(*_: Any, **__: Any) -> None:
        """Does nothing."""

    call = _bind(step, (tf.zeros([2, 3]), 1), {"x": np.zeros(4, "int64")})
    assert str(call) == "step(float32[2, 3], int, int64[4])"


_TENSOR = tf.constant(1)
_OWN = PerWorkerValues(lambda context: context.worker_index)


@pytest.mark.parametrize(
    ("own", "other", "are_same"),
    [
        ((_TENSOR, [_OWN]), (_TENSOR, [_OWN]), True),
        ((1, 2.5, "a", None), (1, 2.5, "a", None), True),
        ((), (), True),
        ((_TENSOR,), (tf.constant(1),), False),
        ((np.zeros(2),), (np.zeros(2),), False),
        ((1,), (True,), False),
        ((1,), (2,), False),
        ((1,), (1, 1), False),
        ((_OWN,), (PerWorkerValues(lambda context: 0),), False),
    ],
)
def test_calls_have_the_same_arguments_or_not(
    own: Any, other: Any, are_same: bool
) -> None:
    calls = [
        arguments.Call(print, (), {"all": each}, of=print, is_per_worker=True)
        for each in (own, other)
    ]
    assert calls[0].has_arguments_of(calls[1]) == are_same
