"""Tests that functions for workers use a worker's own copy of any table."""

import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin._compat.graph.tensorflow_captures import FuncGraph
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.training.patches import preprocessing
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker import worker_tables

_WORDS = ["ash", "birch"]
_QUERY = tf.constant(["birch", "oak"])
_EXPECTED = [6, -1]


class _Scope:
    """Flag that says whether functions are being traced for workers."""

    entered = False


@pytest.fixture(autouse=True)
def scope(monkeypatch: pytest.MonkeyPatch) -> _Scope:
    scope = _Scope()
    monkeypatch.setattr(preprocessing, "in_our_scope", lambda: scope.entered)
    capture = preprocessing.capture(FuncGraph.capture)
    monkeypatch.setattr(FuncGraph, "capture", capture)
    return scope


@contextmanager
def _on_worker(index: int) -> Iterator[None]:
    context = DispatchContext(index, index, 0, testing.LOCAL_DEVICE)
    with dispatch_context.dispatching(context):
        yield


def _table(folder: pathlib.Path) -> tf.lookup.StaticHashTable:
    del folder
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            _WORDS, tf.constant([5, 6], tf.int64)
        ),
        -1,
    )


class _Module(tf.Module):
    def __init__(self, table: tf.lookup.StaticHashTable) -> None:
        super().__init__()
        self.table = table

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def lookup(self, words):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return self.table.lookup(words)


def _loaded(folder: pathlib.Path) -> Any:
    tf.saved_model.save(_Module(_table(folder)), str(folder))
    return tf.saved_model.load(str(folder))


def _num_copies(made: Any) -> int:
    table = getattr(made, "table", made)
    handle = table.resource_handle
    return len(worker_tables.copies_of(handle, table).resident.existing())


@pytest.mark.parametrize("make", [_table, _loaded])
def test_tables_from_outside_have_copies(
    scope: _Scope, tmp_path: pathlib.Path, make: Callable[[pathlib.Path], Any]
) -> None:
    made = make(tmp_path)

    @tf.function
    def look_up(words: tf.Tensor) -> tf.Tensor:
        # It works in branches and loops, too.
        found = tf.cond(
            tf.size(words) > 0,
            lambda: made.lookup(words),
            lambda: tf.zeros_like(words, tf.int64),
        )
        return tf.while_loop(
            lambda i, _: i < 1,
            lambda i, _: (i + 1, made.lookup(words)),
            (0, found),
        )[1]

    outside = look_up.get_concrete_function(_QUERY)
    scope.entered = True
    inside = tf.function(look_up.python_function).get_concrete_function(_QUERY)
    scope.entered = False
    for function in (outside, inside):
        assert function(_QUERY).numpy().tolist() == _EXPECTED
    assert _num_copies(made) == 0
    for worker in (0, 1, 0):
        with _on_worker(worker):
            assert outside(_QUERY).numpy().tolist() == _EXPECTED
    assert _num_copies(made) == 0, "not for functions of the chief"
    for worker in (0, 1, 0):
        with _on_worker(worker):
            assert inside(_QUERY).numpy().tolist() == _EXPECTED
    assert _num_copies(made) == 2


def test_tables_that_are_not_filled_yet(scope: _Scope) -> None:
    """A function fills the table that it makes, wherever it runs."""
    tables: list[tf.lookup.StaticHashTable] = []

    @tf.function
    def look_up() -> tf.Tensor:
        if not tables:
            tables.append(_table(pathlib.Path()))
        return tables[0].lookup(_QUERY)

    scope.entered = True
    function = look_up.get_concrete_function()
    scope.entered = False
    for worker in (0, 1):
        with _on_worker(worker):
            assert function().numpy().tolist() == _EXPECTED
    assert _num_copies(tables[0]) == 2


def test_tables_that_change_have_no_copies(scope: _Scope) -> None:
    """All workers see the keys that one of them inserts."""
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    scope.entered = True
    function = tf.function(lambda: table.lookup(_QUERY)).get_concrete_function()
    table.insert(["oak"], tf.constant([9], tf.int64))
    with _on_worker(0):
        np.testing.assert_array_equal(function(), [-1, 9])


def test_saved_models_keep_the_table_itself(
    scope: _Scope, tmp_path: pathlib.Path
) -> None:
    scope.entered = True
    assert _loaded(tmp_path).lookup(_QUERY).numpy().tolist() == _EXPECTED


class _Rows(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, "ids")])
    def squares(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"squares": tf.gather(self.rows, ids) ** 2}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("endpoint", ["squares", "serving_default"])
def test_every_function_of_a_saved_model_has_gradients(
    scope: _Scope, tmp_path: pathlib.Path, endpoint: str, traced: bool
) -> None:
    """The function finds the variable where it lives at call time."""
    module = _Rows()
    tf.saved_model.save(module, tmp_path, signatures=module.squares)
    with tf.variable_creator_scope(_remote):
        loaded = tf.saved_model.load(str(tmp_path))
    function = getattr(loaded, endpoint, None) or loaded.signatures[endpoint]
    scope.entered = True

    def gradient(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(function(ids=ids)["squares"])
        return tf.convert_to_tensor(tape.gradient(total, loaded.rows))

    run = tf.function(gradient) if traced else gradient
    expected = [[0, 0], [12, 16], [10, 12]]
    ids = tf.constant([1, 2, 1])
    np.testing.assert_array_equal(run(ids), expected)
    value = loaded.rows.numpy()
    loaded.rows.remake()
    loaded.rows.assign(10 * value)
    np.testing.assert_array_equal(run(ids), 10 * np.array(expected))


def _remote(next_creator: Any, **arguments: Any) -> RemoteVariable:
    del next_creator
    names = ("shape", "dtype", "name")
    return RemoteVariable(
        testing.LOCAL_DEVICE, *(arguments[name] for name in names)
    )
