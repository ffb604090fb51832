"""Tests of per-worker values."""

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.calls.dispatch_context import dispatching
from tfps_plugin.inputs.per_worker_values import PerWorkerValues


def test_each_worker_and_generation_has_its_own() -> None:
    built: list[DispatchContext] = []

    def build(context: DispatchContext) -> int:
        built.append(context)
        return len(built)

    values = PerWorkerValues(build)
    first = DispatchContext(0, 0, 0, "/device:CPU:0")
    other_lane = DispatchContext(0, 1, 0, "/device:CPU:0")
    other_worker = DispatchContext(1, 2, 0, "/device:CPU:0")
    came_back = DispatchContext(0, 0, 1, "/device:CPU:0")
    for context, expected in [
        (first, 1),
        (other_lane, 1),
        (other_worker, 2),
        (came_back, 3),
    ]:
        with dispatching(context):
            assert values.current() == expected
    assert built == [first, other_worker, came_back]


def test_needs_a_worker() -> None:
    with pytest.raises(errors.InternalError):
        PerWorkerValues(lambda _: 1).current()


def test_is_one_leaf_of_a_structure() -> None:
    values = PerWorkerValues(lambda _: 1, type_spec=tf.TensorSpec([]))
    assert tf.nest.flatten({"a": [values]}) == [values]
    assert values.type_spec == tf.TensorSpec([])
