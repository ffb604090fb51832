import re

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables import testing
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates import views


def _replace(variable: RemoteVariable, value: object) -> None:
    """Gives the variable another resource, as recovery does."""
    other = testing.remote_variable(value)
    variable._handle = other._handle


def test_functions_survive_a_new_handle_without_retracing() -> None:
    variable = testing.remote_variable([1.0, 2.0])
    traced = []

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(variable * x)
        variable.assign_sub(tape.gradient(y, variable))
        return y

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        traced.append(1)
        y = tf.constant(0.0)
        for i in tf.range(3):
            if i > 0:
                y += inner(x) + variable[0]
        return y

    concrete = outer.get_concrete_function(tf.TensorSpec([2]))
    concrete(tf.ones(2))
    np.testing.assert_array_equal(variable.numpy(), [-1.0, 0.0])
    _replace(variable, [10.0, 20.0])
    # Step 1: y = 30, variable [9, 19]; step 2: y = 28, variable [8, 18].
    assert concrete(tf.ones(2)).numpy() == 30 + 9 + 28 + 8
    np.testing.assert_array_equal(variable.numpy(), [8.0, 18.0])
    assert len(traced) == 1


def test_nothing_is_captured_by_value() -> None:
    variable = testing.remote_variable([1.0, 2.0])

    @tf.function
    def read_and_add() -> tf.Tensor:
        total = tf.convert_to_tensor(variable.assign_add([1.0, 1.0]))
        return total + tf.gather(variable, [0]) + variable.read_value()

    concrete = read_and_add.get_concrete_function()
    assert not concrete.graph.captures


def test_a_function_reads_what_it_wrote() -> None:
    variable = testing.remote_variable(1.0)

    @tf.function
    def add_twice() -> tf.Tensor:
        variable.assign_add(1.0)
        first = variable.read_value()
        variable.assign_add(10.0)
        return first, variable.read_value()

    assert [value.numpy() for value in add_twice()] == [2.0, 12.0]


def test_gradients_with_the_tape_outside_of_the_function() -> None:
    variable = testing.remote_variable([1.0, 2.0])
    square = tf.function(lambda: tf.reduce_sum(variable * variable))
    with tf.GradientTape() as tape:
        y = square()
    np.testing.assert_array_equal(tape.gradient(y, variable), [2.0, 4.0])


def test_it_is_a_variable_to_tensorflow() -> None:
    variable = testing.remote_variable([1, 2], trainable=False)
    assert isinstance(variable, tf.Variable)
    assert not variable.trainable
    assert variable.device == testing.LOCAL_DEVICE
    assert (variable + 1).numpy().tolist() == [2, 3]


def test_a_view_stands_in_for_the_variable() -> None:
    variable = testing.remote_variable([[1.0], [2.0], [3.0]])
    view = views.RowsView(variable, tf.constant([2, 0]))
    with StepTrace.current().viewing({variable._unique_id: view}):
        assert tf.identity(variable).numpy().tolist() == [[3.0], [1.0]]
        variable.assign_add([[10.0], [20.0]])
        assert variable.read_value().numpy().tolist() == [[13.0], [21.0]]
        variable.assign([[5.0], [6.0]])
        variable.assign_sub([[1.0], [1.0]])
    assert variable.numpy().tolist() == [[5.0], [2.0], [4.0]]


def test_whole_variables_are_looked_up_by_distinct_ids() -> None:
    variable = testing.remote_variable([[1.0], [2.0], [3.0]])

    @tf.function
    def look_up(ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(variable, ids)

    ids = tf.constant([[2, 0], [2, 2]])
    rows = look_up(ids)
    assert rows.numpy().tolist() == [[[3.0], [1.0]], [[3.0], [3.0]]]
    operations = look_up.get_concrete_function(ids).graph.get_operations()
    (gather,) = (o for o in operations if o.type == "ResourceGatherNd")
    (unique,) = (o for o in operations if o.type == "Unique")
    assert gather.inputs[1].op.type == "ExpandDims"
    assert gather.inputs[1].op.inputs[0] is unique.outputs[0]


def test_a_variable_whose_ps_does_not_answer_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable = testing.remote_variable([1.0])
    monkeypatch.setattr(chief_reads, "_PAUSES_SECONDS", ())

    def unreachable(*_: object) -> None:
        raise tf.errors.UnavailableError(None, None, "refused")

    monkeypatch.setattr(variable, "_read_variable_op", unreachable)
    for read in (variable.numpy, variable.read_value):
        with pytest.raises(errors.ParameterServerLostError) as raised:
            read()
        assert variable.device in str(raised.value)


def test_in_a_closure_the_error_is_left_to_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable = testing.remote_variable([1.0])
    attempts = []

    def unreachable(*_: object) -> None:
        attempts.append(1)
        raise tf.errors.UnavailableError(None, None, "refused")

    monkeypatch.setattr(variable, "_read_variable_op", unreachable)
    context = DispatchContext(0, 0, 0, testing.LOCAL_DEVICE)
    for read in (variable.numpy, variable.read_value):
        with (
            dispatch_context.dispatching(context),
            pytest.raises(tf.errors.UnavailableError),
        ):
            read()
    assert len(attempts) == 2, "each is read once"


def test_no_name_of_one_resource_is_anothers() -> None:
    """TensorFlow appends the resource's number without a separator."""
    number = re.compile(r'name="(.*?)(\d+)", device')
    names = []
    for name in ("part_1", "part_11"):
        handle = tensorflow_variables.uninitialized_handle(
            tf.TensorShape([1]), tf.float32, name
        )
        found = number.search(repr(handle))
        assert found
        names.append(found[1])
    assert names == ["part_1/handle", "part_11/handle"]
