"""Tests of explained steps. A function of one process sends nothing."""

import contextlib
import gc
import types
import weakref
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.strategy import explanations
from tfps_plugin.strategy.chief_runs import ChiefRuns
from tfps_plugin.strategy.explanations import Explanations
from tfps_plugin.strategy.options import CommunicationOptions

_PS = "/job:localhost/replica:0/task:0/device:CPU:0"


class _Owner:
    """An owner of steps."""


@tf.function
def _step(x: tf.Tensor) -> tf.Tensor:
    with tf.device(_PS):
        square = tf.square(x)
    return square + 1.0


def _strategy(scheduled_steps: Any = None) -> Any:
    return types.SimpleNamespace(
        scheduled_steps=scheduled_steps,
        scope=contextlib.nullcontext,
        extended=types.SimpleNamespace(chief_runs=ChiefRuns()),
        communication=CommunicationOptions(),
    )


def _explain(step: Any, known: Explanations | None = None) -> tuple[Any, str]:
    printed: list[str] = []
    explanation = explanations.explain(
        _strategy(),
        known or Explanations(),
        step,
        [tf.TensorSpec([3])],
        None,
        printed.append,
    )
    (table,) = printed
    return explanation, table


def test_a_function_is_explained_and_the_table_is_printed_once() -> None:
    explanation, printed = _explain(_step)
    assert printed == str(explanation)
    assert explanation.is_printed
    assert [len(body.sent) for body in explanation.bodies] == [2]
    with tf.device(None):
        concrete = _step.get_concrete_function(tf.TensorSpec([3]))
    assert _explain(concrete)[0].bodies[0].sent == explanation.bodies[0].sent


def test_nothing_is_printed_where_nobody_wants_it() -> None:
    explanation = explanations.explain(
        _strategy(), Explanations(), _step, [tf.TensorSpec([3])], None, None
    )
    assert explanation.bodies
    assert not explanation.is_printed


def test_all_steps_of_an_owner_are_explained_together() -> None:
    known = Explanations()
    owner = _Owner()
    with tf.device(None):
        concrete = _step.get_concrete_function(tf.TensorSpec([3]))
    for _ in range(2):
        known.note(owner, concrete)
    known.note(owner, concrete, "chief")
    bodies = _explain(owner, known)[0].bodies
    assert [body.runs_on for body in bodies] == ["worker", "worker", "chief"]


def test_an_owner_is_not_kept_alive() -> None:
    known = Explanations()
    owner = _Owner()
    with tf.device(None):
        known.note(owner, _step.get_concrete_function(tf.TensorSpec([3])))
    reference = weakref.ref(owner)
    del owner
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("step", [_Owner(), 3, lambda: None])
def test_what_has_not_run_is_refused(step: Any) -> None:
    with pytest.raises(ValueError, match="Run a few steps of the model first"):
        _explain(step)


def test_what_workers_run_in_place_of_a_step_is_explained() -> None:
    @tf.function
    def alone(x: tf.Tensor) -> tf.Tensor:
        return x + 1.0

    with tf.device(None):
        concrete = _step.get_concrete_function(tf.TensorSpec([3]))
    steps = types.SimpleNamespace(
        for_workers=lambda function: concrete,
        for_chief=lambda function: [concrete],
    )
    explanation = explanations.explain(
        _strategy(steps), Explanations(), alone, [tf.TensorSpec([3])], {}, None
    )
    assert [(body.runs_on, len(body.sent)) for body in explanation.bodies] == [
        ("worker", 2),
        ("chief", 2),
    ]
