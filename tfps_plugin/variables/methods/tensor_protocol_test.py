"""Tests that every kind of variable has the interface of a tf.Variable.

`tf.Variable` itself is the reference, attribute by attribute.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables import testing
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.per_worker.per_worker_variable import (
    PerWorkerVariable,
)
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.per_worker.worker_seeds import WorkerLocalSeed

_VALUE = np.arange(1.0, 15.0, dtype="float32").reshape(7, 2)
_ROWS = tf.IndexedSlices(
    tf.constant([[2.0, 0.5], [3.0, 9.0], [4.0, -1.0], [5.0, 2.0]]),
    tf.constant([6, 0, 3, 6]),
)
_PLACES = tf.constant([[6, 1], [0, 0], [3, 1]])
_UPDATES = tf.constant([2.0, 3.0, -4.0])


def _mirrored() -> Any:
    variable = MirroredScalar(testing.LOCAL_DEVICE, tf.float32, "number")
    variable.assign(3.0)
    return variable


_MAKERS: dict[str, Callable[[], Any]] = {
    "sharded": lambda: testing.sharded_variable(_VALUE, 3),
    "whole": lambda: testing.remote_variable(_VALUE),
    "mirrored": _mirrored,
    "worker-local": lambda: WorkerLocalVariable(tf.constant(_VALUE), "state"),
    "per-worker": lambda: PerWorkerVariable(
        initialization.describe(_VALUE, None, None), "own", lambda: range(2)
    ),
    "seed": lambda: WorkerLocalSeed(
        tf.constant([7, 0], tf.uint32),
        "seed",
        synchronization=tf.VariableSynchronization.AUTO,
        aggregation=tf.VariableAggregation.NONE,
    ),
}
_KINDS = list(_MAKERS)
# Every public attribute of an eager tf.Variable, with how it is used.
_USES: dict[str, Callable[[Any], Any]] = {
    "SaveSliceInfo": lambda v: v.SaveSliceInfo is tf.Variable.SaveSliceInfo,
    "aggregation": lambda v: None,  # as each kind was made
    "assign": lambda v: v.assign(v + v, False, "x", True),
    "assign_add": lambda v: v.assign_add(v + v, False, "x", True),
    "assign_sub": lambda v: v.assign_sub(v + v, False, "x", True),
    "batch_scatter_update": lambda v: v.batch_scatter_update(
        tf.IndexedSlices(tf.constant([[7.0], [8.0]]), [[1], [0]]), True, "x"
    ),
    "constraint": lambda v: v.constraint,
    "count_up_to": lambda v: v.count_up_to(3),
    "create": lambda v: v.create,
    "device": lambda v: v.device.rpartition("/")[2],
    "dtype": lambda v: v.dtype,
    "eval": lambda v: v.eval(session=None),
    "experimental_ref": lambda v: v.experimental_ref().deref() is v,
    "from_proto": lambda v: v.from_proto(None, import_scope=None),
    "gather_nd": lambda v: v.gather_nd([[1, 1], [0, 1]], name="x"),
    "get_shape": lambda v: v.get_shape(),
    "graph": lambda v: v.graph,
    "handle": lambda v: v.handle.dtype,
    "initial_value": lambda v: v.initial_value,
    "initialized_value": lambda v: v.initialized_value(),
    "initializer": lambda v: v.initializer,
    "is_initialized": lambda v: v.is_initialized(name="x"),
    "load": lambda v: v.load(v + v, session=None),
    "name": lambda v: isinstance(v.name, str),
    "numpy": lambda v: v.numpy(),
    "op": lambda v: v.op,
    "read_value": lambda v: v.read_value(),
    "read_value_no_copy": lambda v: v.read_value_no_copy(),
    "ref": lambda v: v.ref().deref() is v,
    "scatter_add": lambda v: v.scatter_add(_ROWS, True, "x"),
    "scatter_div": lambda v: v.scatter_div(_ROWS, True, "x"),
    "scatter_max": lambda v: v.scatter_max(_ROWS, True, "x"),
    "scatter_min": lambda v: v.scatter_min(_ROWS, True, "x"),
    "scatter_mul": lambda v: v.scatter_mul(_ROWS, True, "x"),
    "scatter_sub": lambda v: v.scatter_sub(_ROWS, True, "x"),
    "scatter_update": lambda v: v.scatter_update(
        tf.IndexedSlices([[1.0, 2.0]], [4]), True, "x"
    ),
    "scatter_nd_add": lambda v: v.scatter_nd_add(_PLACES, _UPDATES, "x"),
    "scatter_nd_max": lambda v: v.scatter_nd_max(_PLACES, _UPDATES, "x"),
    "scatter_nd_min": lambda v: v.scatter_nd_min(_PLACES, _UPDATES, "x"),
    "scatter_nd_sub": lambda v: v.scatter_nd_sub(_PLACES, _UPDATES, "x"),
    "scatter_nd_update": lambda v: v.scatter_nd_update(_PLACES, _UPDATES, "x"),
    "set_shape": lambda v: (v.set_shape(v.shape), v.set_shape([5, 5, 5])),
    "shape": lambda v: v.shape,
    "sparse_read": lambda v: v.sparse_read([1, 0, 1], name="x"),
    "synchronization": lambda v: None,  # as each kind was made
    "to_proto": lambda v: v.to_proto(export_scope=None),
    "trainable": lambda v: v.trainable in (True, False),
    "value": lambda v: v.value(),
}


def _outcome(use: Callable[[Any], Any], variable: Any) -> tuple[Any, Any]:
    """Returns the result or error of a use, and the variable's value then."""
    try:
        result = use(variable)
        if isinstance(result, tf.Tensor | tf.Variable):
            result = result.numpy()
    except Exception as error:
        result = error
    return result, variable.numpy()


def _assert_alike(result: Any, right: Any) -> None:
    if isinstance(result, np.ndarray) and isinstance(right, np.ndarray):
        np.testing.assert_allclose(result, right, rtol=1e-6)
    elif isinstance(right, NotImplementedError):
        assert isinstance(result, np.ndarray | NotImplementedError)
    elif isinstance(result, Exception):
        allowed = (type(right), errors.UnsupportedError)
        assert isinstance(result, allowed), f"tf.Variable: {right!r}"
    else:
        assert result == right


def test_every_public_attribute_is_known() -> None:
    public = {each for each in dir(tf.Variable(1.0)) if each[0] != "_"}
    assert public == set(_USES)


@pytest.mark.parametrize("kind", _KINDS)
def test_it_takes_the_arguments_of_a_variable(kind: str) -> None:
    variable = _MAKERS[kind]()
    plain = tf.Variable(variable.numpy())
    for attribute in _USES:
        right = inspect.getattr_static(plain, attribute)
        mine = inspect.getattr_static(variable, attribute)
        assert inspect.isfunction(mine) == inspect.isfunction(right)
        if inspect.isfunction(right):
            names = list(inspect.signature(right).parameters)
            assert list(inspect.signature(mine).parameters) == names


@pytest.mark.parametrize("attribute", sorted(_USES))
@pytest.mark.parametrize("kind", _KINDS)
def test_it_does_what_a_variable_does_or_refuses(
    kind: str, attribute: str
) -> None:
    variable = _MAKERS[kind]()
    plain = tf.Variable(variable.numpy())
    right, value_then = _outcome(_USES[attribute], plain)
    result, value = _outcome(_USES[attribute], variable)
    _assert_alike(result, right)
    if isinstance(result, errors.UnsupportedError):
        # The error gives a reason and a way out, and nothing was changed.
        assert "Received: " in str(result)
        assert "Use " in str(result)
    else:
        np.testing.assert_allclose(value, value_then, rtol=1e-6)


@pytest.mark.parametrize(
    "kind", ["sharded", "whole", "worker-local", "per-worker"]
)
@pytest.mark.parametrize(
    "attribute", [each for each in _USES if "scatter" in each]
)
def test_a_table_refuses_no_scatter(kind: str, attribute: str) -> None:
    variable = _MAKERS[kind]()
    plain = tf.Variable(_VALUE)
    _USES[attribute](plain)
    tf.function(lambda: _USES[attribute](variable).name)()
    np.testing.assert_allclose(variable.numpy(), plain.numpy(), rtol=1e-6)


@pytest.mark.parametrize("kind", _KINDS)
def test_it_is_compared_element_by_element(kind: str) -> None:
    variable = _MAKERS[kind]()
    plain = tf.Variable(variable.numpy())
    other = plain.numpy() * (plain.numpy() != plain.numpy().max())
    for compared in (
        lambda v: v == other,
        lambda v: v != other,
        lambda v: other == v,
        lambda v: v == v,
        lambda v: v == tf.zeros([9, 9], v.dtype),
        lambda v: v != tf.zeros([9, 9], v.dtype),
    ):
        np.testing.assert_array_equal(compared(variable), compared(plain))
    with pytest.raises(TypeError, match=r"unhashable.*ref\(\)"):
        hash(variable)
    assert variable.ref() in {variable.ref()}
    assert variable in [variable]


@pytest.mark.parametrize("kind", _KINDS)
def test_python_takes_it_for_a_number_where_it_is_one(kind: str) -> None:
    variable = _MAKERS[kind]()
    plain = tf.Variable(variable.numpy())
    for convert in (bool, int, float, complex, list):
        try:
            right = convert(plain)
        except Exception as error:
            with pytest.raises(type(error)):
                convert(variable)
        else:
            np.testing.assert_array_equal(convert(variable), right)


@pytest.mark.parametrize("kind", _KINDS)
def test_it_is_not_changed_in_place(kind: str) -> None:
    variable = _MAKERS[kind]()
    for change in ("__iadd__", "__isub__", "__imul__", "__itruediv__"):
        with pytest.raises(RuntimeError, match="variable"):
            getattr(variable, change)(1.0)


@pytest.mark.parametrize("kind", _KINDS)
def test_modules_list_it(kind: str) -> None:
    variable = _MAKERS[kind]()

    class Inner(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of_inner = {"a": [variable]}

    class Outer(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [(Inner(),)]

    module = Outer()
    (listed,) = module.variables
    assert listed is variable
    trainable = [each is variable for each in module.trainable_variables]
    assert trainable == ([True] if variable.trainable else [])
    assert isinstance(variable, tf.Variable)
    assert tf.is_tensor(variable)


@pytest.mark.parametrize("kind", ["sharded", "whole", "mirrored"])
@pytest.mark.parametrize("in_function", [False, True])
def test_tapes_watch_it_and_say_so(kind: str, in_function: bool) -> None:
    variable = _MAKERS[kind]()
    others = tf.Variable(2.0)

    def gradients() -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([variable])
            loss = tf.reduce_sum(variable * variable * others)
        watched = [each is variable for each in tape.watched_variables()]
        mine, of_others = tape.gradient(loss, [variable, others])
        assert watched == [True]
        assert of_others is None
        return mine

    got = (tf.function(gradients) if in_function else gradients)()
    np.testing.assert_allclose(got, 4.0 * variable.numpy(), rtol=1e-6)


def test_an_unwatched_table_has_no_gradient() -> None:
    table, other = testing.sharded_variable(_VALUE, 3), tf.Variable(2.0)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(other)
        loss = tf.reduce_sum(tf.gather(table, [1, 6])) * other
    assert tape.gradient(loss, table) is None


def test_functions_list_the_table_that_they_use() -> None:
    table = testing.sharded_variable(_VALUE, 3)
    function = tf.function(lambda: tf.gather(table, [1, 6]))
    (used,) = function.get_concrete_function().variables
    assert used is table
