"""Tests of the checks that a rewritten function can run."""

from typing import Any

import hypothesis
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.transport import soundness


def _graph(function: Any, *specs: tf.TensorSpec) -> Any:
    return tf.function(function).get_concrete_function(*specs).graph


@hypothesis.given(
    st.lists(st.sets(st.integers(0, 7), max_size=4), min_size=8, max_size=8)
)
def test_a_cycle_is_one(needs: list[set[int]]) -> None:
    found = soundness.cycle(needs)
    if found:
        behind = [*found[1:], found[0]]
        assert all(
            two in needs[one] for one, two in zip(found, behind, strict=True)
        )
        return
    # Without a cycle, all can run, one after the other.
    left = set(range(len(needs)))
    while left:
        ready = {one for one in left if not needs[one] & left}
        assert ready
        left -= ready


def test_long_chains_are_no_matter() -> None:
    needs = [[number + 1] for number in range(20_000)]
    assert soundness.cycle([*needs, []]) == []
    assert len(soundness.cycle([*needs, [0]])) == 20_001


def test_operations_that_wait_for_each_other_are_named() -> None:
    graph = _graph(lambda x: tf.abs(x) + 1.0, tf.TensorSpec([2]))
    soundness.check(graph, graph)
    operations = {o.type: o for o in graph.get_operations()}
    compat.run_after(operations["Abs"], [operations["AddV2"]])
    with pytest.raises(errors.InternalError, match=r"wait.*'Abs'"):
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
