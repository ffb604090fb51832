"""Tests of datasets of the chief in functions that workers run."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_captures
from tfps_plugin._compat.graph import tensorflow_tables
from tfps_plugin._compat.graph.tensorflow_captures import FuncGraph
from tfps_plugin.inputs import captured_inputs
from tfps_plugin.inputs import dataset_recipes
from tfps_plugin.inputs.worker_dataset import WorkerDataset


@pytest.fixture(autouse=True)
def hook(monkeypatch: pytest.MonkeyPatch) -> None:
    def replacement(graph: Any, handle: tf.Tensor) -> tf.Tensor | None:
        if handle.dtype != tf.variant:
            return None
        return captured_inputs.sent_along(graph, handle)

    capture = tensorflow_tables.replace_captured_handles(
        FuncGraph.capture, replacement
    )
    monkeypatch.setattr(FuncGraph, "capture", capture)


@contextlib.contextmanager
def _scope() -> Iterator[None]:
    yield


_outside = tf.data.Dataset.range(1, 5)

_FUNCTIONS: dict[str, Callable[[], Any]] = {
    "itself": lambda: _outside,
    "twice": lambda: tf.data.Dataset.zip(_outside, _outside.map(lambda x: -x)),
    "in another's function": lambda: tf.data.Dataset.range(2).flat_map(
        lambda x: _outside.map(lambda y: x * y)
    ),
    "shuffled": lambda: _outside.shuffle(4, seed=1).batch(2),
    "tf.function": tf.function(lambda: _outside.skip(1)),
}


def _elements(dataset: tf.data.Dataset) -> list[Any]:
    return [
        tf.nest.map_structure(lambda x: x.numpy().tolist(), element)
        for element in dataset
    ]


@pytest.mark.parametrize("make", _FUNCTIONS.values(), ids=_FUNCTIONS.keys())
def test_it_is_sent_along(make: Callable[[], tf.data.Dataset]) -> None:
    dataset = WorkerDataset(make, 2, _scope)
    recipes: list[Any] = [*dataset._recipes]
    for recipe in recipes:
        captured = tensorflow_captures.values_of(recipe.graph)
        assert tf.variant not in [tensor.dtype for tensor in captured]
    assert _elements(dataset.build(1)) == _elements(make())


def test_a_step_may_read_it_as_a_whole() -> None:
    @tf.function
    def step() -> tf.Tensor:
        total = tf.constant(0, tf.int64)
        for element in _outside:
            total += element
        return total

    concrete = step.get_concrete_function()
    captured_inputs.refuse_resources(concrete)
    assert concrete().numpy() == 10
    captured = tensorflow_captures.values_of(concrete.graph)
    assert [tensor.dtype for tensor in captured] == [tf.string]


def test_what_calls_python_is_refused() -> None:
    outside = tf.data.Dataset.from_generator(
        lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int64)
    )
    with pytest.raises(errors.InputError, match=r"PyFunc.*files that workers"):
        WorkerDataset(lambda: outside.take(1), 1, _scope)


def test_a_trace_of_elsewhere_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    concrete = tf.function(lambda: _outside.skip(1)).get_concrete_function()
    with pytest.raises(errors.InputError, match=r"Pass the tf\.function"):
        WorkerDataset(concrete, 1, _scope)


def test_iterators_and_changing_tables_are_refused() -> None:
    iterator = iter(_outside)
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    for use, what in (
        (lambda: next(iterator), "an iterator of the chief"),
        (lambda: table.lookup(tf.constant(1, tf.int64)), "MutableHashTable"),
    ):
        concrete = tf.function(use).get_concrete_function()
        with pytest.raises(errors.InputError, match=what):
            captured_inputs.refuse_resources(concrete)
    for argument in (iterator, _outside):
        with pytest.raises(errors.InputError, match="create_per_worker"):
            captured_inputs.refuse_argument(argument)


def test_variables_and_constants_may_be_captured() -> None:
    variable, constant = tf.Variable(1.0), tf.constant([1.0, 2.0])
    concrete = tf.function(lambda: variable * constant).get_concrete_function()
    captured_inputs.refuse_resources(concrete)


def test_what_is_no_dataset_stays_as_it_is() -> None:
    handles = tf.raw_ops.TensorListReserve(
        element_shape=tf.zeros([0], tf.int32),
        num_elements=2,
        element_dtype=tf.float32,
    )
    function = tf.function(
        lambda: tf.raw_ops.TensorListLength(input_handle=handles)
    )
    assert function().numpy() == 2
    assert (
        dataset_recipes.serialized(
            tf.data.experimental.to_variant(_outside)
        ).dtype
        == tf.string
    )
