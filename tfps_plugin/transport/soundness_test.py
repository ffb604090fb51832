"""Tests of the checks that a rewritten function can run."""

from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.transport import soundness


def _graph(function: Any, *specs: tf.TensorSpec) -> Any:
    return tf.function(function).get_concrete_function(*specs).graph


def test_operations_that_wait_for_each_other_are_named() -> None:
    graph = _graph(lambda x: tf.abs(x) + 1.0, tf.TensorSpec([2]))
    soundness.check(graph, graph)
    operations = {o.type: o for o in graph.get_operations()}
    compat.run_after(operations["Abs"], [operations["AddV2"]])
    with pytest.raises(
        errors.InternalError, match=r"wait.*=\['(Abs', 'add|add', 'Abs)'\]"
    ):
        soundness.check(graph, graph)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: tf.cast(x, tf.float64),
        lambda x: x[:1],
        lambda x: (x, x),
        lambda x: None,
    ],
)
def test_other_results_are_found(other: Any) -> None:
    old = _graph(lambda x: x + 1.0, tf.TensorSpec([2]))
    with pytest.raises(errors.InternalError, match="does not return"):
        soundness.check(_graph(other, tf.TensorSpec([2])), old)


def test_resources_of_two_tasks_are_found() -> None:
    operation = _graph(tf.abs, tf.TensorSpec([2])).get_operations()[1]
    homes = [f"/job:ps/task:{task}/device:CPU:0" for task in (0, 1)]
    soundness.check_device(operation, homes[0], homes[:1])
    with pytest.raises(errors.InternalError, match="resources of several"):
        soundness.check_device(operation, homes[0], homes)
