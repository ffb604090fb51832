"""Tests of `StepTrace`, the knowledge that the functions of a step share."""

import gc
import threading
import weakref
from typing import Any

import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates.views import ValueView


def _view(value: float) -> ValueView:
    return ValueView("variable", tf.constant(value))


def test_functions_inside_of_a_step_are_part_of_it() -> None:
    found: list[StepTrace] = []

    def find() -> tf.Tensor:
        found.append(StepTrace.current())
        return tf.constant(0)

    def body(i: tf.Tensor) -> tuple[tf.Tensor]:
        find()
        return (i + 1,)

    inner = tf.function(find)

    @tf.function(autograph=False)
    def step(condition: tf.Tensor) -> None:
        find()
        inner()
        tf.cond(condition, find, inner)
        tf.while_loop(lambda i: i < 2, body, [0])

    step.get_concrete_function(tf.TensorSpec([], tf.bool))
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_each_outermost_function_is_another_step() -> None:
    found: list[StepTrace] = []

    @tf.function
    def step(number: int) -> None:
        with tf.init_scope():
            found.append(StepTrace.current())
        found.append(StepTrace.current())

    step(1)
    step(2)
    outside, first, still_outside, second = found
    assert outside is still_outside is StepTrace.current()
    assert len({id(outside), id(first), id(second)}) == 3


def test_a_step_ends_with_its_function() -> None:
    gone: list[weakref.ref[StepTrace]] = []
    table = testing.remote_variable([[1.0]])

    @tf.function
    def step() -> tf.Tensor:
        rows = tf.constant([[1.0]])
        StepTrace.current().add_lookup(table, tf.constant([0]), rows)
        gone.append(weakref.ref(StepTrace.current()))
        return rows

    step()
    assert gone[0]() is not None
    del step
    gc.collect()
    assert gone[0]() is None


def test_views_are_seen_in_their_context_alone() -> None:
    step = StepTrace()
    with step.viewing({"a": _view(1.0)}):
        with step.viewing({"a": _view(2.0), "b": _view(3.0)}):
            seen = [step.view_of(name) for name in ("a", "b", "c")]
            assert [v and float(v.read()) for v in seen] == [2.0, 3.0, None]
        a = step.view_of("a")
        assert a is not None
        assert float(a.read()) == 1.0
        assert step.view_of("b") is None
    assert step.view_of("a") is None


def test_a_view_sees_no_views() -> None:
    step = StepTrace()
    seen: list[Any] = []

    class Looking(ValueView):
        def read(self) -> tf.Tensor:
            seen.append(step.view_of("a"))
            return super().read()

        def assign(self, method: str, value: Any) -> None:
            seen.append(step.view_of("a"))

    with step.viewing({"a": Looking("a", tf.constant(1.0))}):
        view = step.view_of("a")
        assert view is not None
        view.read()
        view.assign("assign", 1.0)
        assert step.view_of("a") is not None
    assert seen == [None, None]


def test_threads_that_run_eagerly_do_not_see_each_other_s_views() -> None:
    found = []

    def find() -> None:
        found.append(StepTrace.current().view_of("a"))

    with StepTrace.current().viewing({"a": _view(1.0)}):
        assert StepTrace.current().view_of("a") is not None
        thread = threading.Thread(target=find)
        thread.start()
        thread.join()
    assert found == [None]


def test_locks_are_held_in_their_context_alone() -> None:
    step, function = StepTrace(), tf.Graph()
    assert not step.holds_a_lock
    with step.holding("a", function):
        assert step.holds_a_lock
        assert step.holder_of("a") is function
        assert step.holder_of("b") is None
    assert not step.holds_a_lock


def test_lookups_are_known_to_the_function_that_made_them() -> None:
    table = testing.remote_variable([[1.0], [2.0]])
    found: dict[str, int] = {}

    def look(place: str) -> None:
        found[place] = len(StepTrace.current().lookups_of(table))

    @tf.function
    def inner() -> tf.Tensor:
        look("inside, before")
        rows = tf.gather(table, [1])
        look("inside, after")
        return rows

    @tf.function
    def step() -> tf.Tensor:
        rows = tf.gather(table, [0])
        inner()
        look("around")
        return rows

    step()
    tf.gather(table, [0])
    look("eagerly")
    assert found == {
        "inside, before": 0,
        "inside, after": 1,
        "around": 1,
        "eagerly": 0,
    }
