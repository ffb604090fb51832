"""Tests that steps of one iteration have the effect of separate steps.

As in `fusion_test`, the parameter server is this process, under its full name.
"""

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin.transport import fusion
from tfps_plugin.transport.passes import step_order
from tfps_plugin.transport.passes.inlining import flatten
from tfps_plugin.transport.waves import Output
from tfps_plugin.variables.lookup import graph_checks

_PS = "/job:localhost/replica:0/task:0/device:CPU:0"
_Step = Callable[[tf.Tensor], tf.Tensor]


def _on_ps(function: Callable[..., Any], *args: Any) -> Any:
    with tf.device(_PS):
        return function(*args)


def _loop(step: Any, steps_of_a_round: int) -> Any:
    """Returns a function that runs a given number of iterations."""

    def rounds(count: tf.Tensor) -> tf.Tensor:
        def body(done: tf.Tensor, result: tf.Tensor) -> Any:
            for number in range(steps_of_a_round):
                which = steps_of_a_round * done + number
                result = step(tf.cast(which, tf.float32))
            return done + 1, result

        return tf.while_loop(
            lambda done, _: done < count,
            body,
            (tf.constant(0), tf.constant(0.0)),
            parallel_iterations=1,
        )[1]

    with tf.device(None):
        return tf.function(rounds).get_concrete_function(
            tf.TensorSpec([], tf.int32)
        )


def _training(source: random.Random, variables: list[tf.Variable]) -> _Step:
    """Returns a step that reads and changes some variables in some order."""
    which = source.sample(range(len(variables)), 4)
    looked_at, changed = which[:3], which[1:]
    factors = [source.choice((0.5, -0.75, 1.25)) for _ in changed]

    @tf.function
    def step(number: tf.Tensor) -> tf.Tensor:
        read = [_at(variables[n], variables[n].read_value) for n in looked_at]
        gradient = tf.tanh(tf.add_n(read) + number)
        for n, factor in zip(changed, factors, strict=True):
            variable = variables[n]
            # The numbers depend on the order of the steps.
            _at(
                variable,
                functools.partial(_change, variable, factor, gradient),
            )
        last = variables[changed[-1]]
        return tf.reduce_sum(gradient + _at(last, last.read_value))

    return step


def _change(variable: tf.Variable, factor: float, gradient: tf.Tensor) -> None:
    variable.assign(factor * variable + gradient)
    variable.assign_sub(0.1 * gradient * variable)


def _at(variable: tf.Variable, function: Callable[[], Any]) -> Any:
    return _on_ps(function) if "ps" in variable.name else function()


@pytest.mark.parametrize("seed", range(6))
def test_steps_of_one_round_are_steps_one_after_the_other(seed: int) -> None:
    source = random.Random(seed)
    variables = [
        tf.Variable(tf.zeros(3), name="ps" if source.random() < 0.7 else "here")
        for _ in range(6)
    ]
    step = _training(source, variables)
    results: list[list[Any]] = []
    for function in (
        _loop(step, 1),
        _loop(step, 4),
        fusion.fuse(_loop(step, 1)),
        fusion.fuse(_loop(step, 4)),
    ):
        for number, variable in enumerate(variables):
            variable.assign(tf.range(3.0) / 4.0 - number)
        num_rounds = 12 if len(results) % 2 == 0 else 3
        results.append([function(num_rounds), *variables])
        results[-1] = [np.array(each) for each in results[-1]]
    first, *others = results
    assert np.isfinite(first[0])
    for other in others:
        for theirs, mine in zip(first, other, strict=True):
            # TensorFlow fuses other operations where a variable is read once.
            # Another order of the steps changes the first digits.
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@tf.function
def _doubled(x: tf.Tensor) -> tf.Tensor:
    return 2.0 * x


def test_a_step_s_gradients_leave_with_the_next_one_s_ids() -> None:
    table = tf.Variable(tf.reshape(tf.range(12.0), [6, 2]))

    @tf.function
    def step(number: tf.Tensor) -> tf.Tensor:
        ids = (tf.cast(number, tf.int32) + tf.constant([1, 4])) % 6
        rows = _on_ps(tf.gather, table, ids)
        gradient = tf.IndexedSlices(0.1 * rows, ids)
        _on_ps(lambda: table.scatter_sub(gradient))
        return tf.reduce_sum(rows)

    def messages(steps_of_a_round: int) -> int:
        explained = fusion.explain(_loop(step, steps_of_a_round))
        (body,) = explained.bodies
        assert all(sent.num_parcels == 1 for sent in body.sent)
        return body.num_parcels

    assert messages(1) == 3
    # Ids, rows, and gradients; gradients travel with the next step's ids.
    assert messages(2) == 5
    assert messages(4) == 9


def test_a_step_does_not_wait_for_the_ids_of_the_next() -> None:
    table = tf.Variable(tf.zeros([6, 2]))

    @tf.function
    def step(number: tf.Tensor) -> tf.Tensor:
        sums = []
        for name in ("one", "other"):
            ids = tf.cast(number, tf.int32) + tf.constant([0, 1])
            ids = graph_checks.require_inside(ids, 6, name)
            sums.append(tf.reduce_sum(_on_ps(tf.gather, table, ids)))
        return tf.add_n(sums)

    def checks(steps_of_a_round: int) -> int:
        fused: Any = fusion.fuse(_loop(step, steps_of_a_round))
        return sum(
            operation.type == "Assert"
            for operation in compat.operations_within(fused.graph)
        )

    # One check for each table of a step.
    assert [checks(1), checks(2), checks(4)] == [2, 4, 8]


def test_what_is_printed_stays_in_order(
    capfd: pytest.CaptureFixture[str],
) -> None:
    table = tf.Variable(0.0)

    @tf.function
    def step(number: tf.Tensor) -> tf.Tensor:
        value = _on_ps(table.assign_add, number)
        tf.print("before", number)
        tf.print("after", number, value)
        return value * 2.0

    fused: Any = fusion.fuse(_loop(step, 3))
    fused(2)
    lines = [line.split()[:2] for line in capfd.readouterr().err.splitlines()]
    printed = [line for line in lines if line[:1] in (["before"], ["after"])]
    assert printed == [
        [word, str(number)]
        for number in range(6)
        for word in ("before", "after")
    ]


def test_who_uses_a_variable_waits_for_who_changed_it() -> None:
    variables = [tf.Variable(tf.zeros(2), name="ps") for _ in range(4)]
    step = _training(random.Random(3), variables)
    (loop,) = (
        operation
        for operation in _loop(step, 3).graph.get_operations()
        if operation.type in ("While", "StatelessWhile")
    )
    flat = flatten(compat.functions_of(loop)["body"], steps_apart=True)
    ordered = step_order.in_order(flat, [""] * len(flat.operations))
    operations = ordered.operations
    assert {one.step for one in operations} == {0, 1, 2, 3}

    after: list[set[int]] = []
    for one in operations:
        before = {output.node for output in one.inputs} | set(one.controls)
        after.append(before.union(*(after[number] for number in before)))

    def used(number: int) -> set[Output]:
        one = operations[number]
        return {
            output
            for output in one.inputs
            if operations[output.node].operation.outputs[output.number].dtype
            == tf.resource
        }

    pairs = [
        (early, late)
        for late, one in enumerate(operations)
        for early in range(late)
        if used(early) & used(late)
        and 0 < operations[early].step < one.step
        and {operations[early].operation.type, one.operation.type}
        != {"ReadVariableOp"}
    ]
    assert len(pairs) > 50
    for early, late in pairs:
        assert early in after[late]


def test_other_calls_wait_for_each_other() -> None:
    table = tf.Variable(1.0)

    def twice(x: tf.Tensor) -> tf.Tensor:
        first = _doubled(x)
        table.assign_add(first)
        return _doubled(first) + table

    with tf.device(None):
        function = tf.function(twice).get_concrete_function(tf.TensorSpec([]))
    assert {o.step for o in flatten(function.graph).operations} == {0}
    steps_apart = flatten(function.graph, steps_apart=True)
    assert {o.step for o in steps_apart.operations} == {0, 1, 2}
    assert float(fusion.fuse(function)(3.0)) == 12.0 + 7.0
