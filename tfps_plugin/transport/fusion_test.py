"""Tests of steps that send few messages.

The parameter server of these tests is this process, under its full name. The
worker is the caller's process, which is the same. So functions run here, but
everything that would travel is packed.
"""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_graphs as compat
from tfps_plugin._compat.graph import tensorflow_variables as variables_compat
from tfps_plugin.transport import fusion
from tfps_plugin.transport import places
from tfps_plugin.transport.emission import Emission
from tfps_plugin.variables import testing

_PS = "/job:localhost/replica:0/task:0/device:CPU:0"


def _sends(function: Any) -> list[tuple[str, int, int]]:
    """Returns the source, number of tensors and number of parcels of each."""
    return [
        (sent.source or "worker", sent.num_tensors, sent.num_parcels)
        for body in fusion.explain(function).bodies
        for sent in body.sent
    ]


def _concrete(function: Callable[..., Any], *specs: Any) -> Any:
    with tf.device(None):
        return tf.function(function).get_concrete_function(*specs)


def _on_ps(function: Callable[..., Any], *args: Any) -> Any:
    with tf.device(_PS):
        return function(*args)


def test_tensors_of_one_wave_travel_as_one() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        parts = [_on_ps(tf.square, x + float(i)) for i in range(5)]
        return tf.add_n([part * 2.0 for part in parts])

    function = _concrete(step, tf.TensorSpec([3, 2]))
    x = tf.random.stateless_normal([3, 2], [1, 2])
    np.testing.assert_array_equal(fusion.fuse(function)(x), function(x))
    assert [sent[1:] for sent in _sends(function)] == [(5, 1), (5, 1)]


def test_sizes_that_nobody_knows_before_travel_too() -> None:
    def step(x: tf.Tensor, n: tf.Tensor) -> list[tf.Tensor]:
        rows = [x[: n + i] for i in range(3)]
        names = tf.strings.as_string(x[:, 0])
        found = [_on_ps(lambda r: r * 2.0, r) for r in rows]
        counts = [_on_ps(tf.shape, r) for r in rows]
        joined = _on_ps(lambda t: tf.strings.join([t, t]), names)
        return [*found, tf.add_n(counts), joined + "!"]

    function = _concrete(
        step, tf.TensorSpec([None, 2]), tf.TensorSpec([], tf.int32)
    )
    fused: Any = fusion.fuse(function)
    assert fused is not function
    for size in (0, 1, 4):
        x = tf.reshape(tf.range(20.0), [10, 2])
        for mine, theirs in zip(fused(x, size), function(x, size), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_what_a_variable_is_given_arrives() -> None:
    variables = [tf.Variable(tf.fill([4], float(i))) for i in range(4)]

    def step(x: tf.Tensor) -> tf.Tensor:
        total = tf.add_n([v.read_value() for v in variables]) * x
        for v in variables:
            v.assign_sub(total)
        return tf.reduce_sum(total)

    function = _concrete(step, tf.TensorSpec([]))
    fused: Any = fusion.fuse(function)
    first = [float(fused(x)) for x in (0.5, 0.25)]
    ours = [v.numpy() for v in variables]
    for i, v in enumerate(variables):
        v.assign(tf.fill([4], float(i)))
    assert [float(function(x)) for x in (0.5, 0.25)] == first
    np.testing.assert_array_equal(ours, [v.numpy() for v in variables])


def test_order_of_the_program_is_kept() -> None:
    v = tf.Variable(0.0)

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        seen = []
        for i in range(4):
            v.assign(v * 2.0 + x)
            seen.append(v + float(i))
        return seen

    function = _concrete(step, tf.TensorSpec([]))
    expected = [t.numpy() for t in function(1.0)]
    v.assign(0.0)
    assert [t.numpy() for t in fusion.fuse(function)(1.0)] == expected


@tf.function
def _called(x: tf.Tensor, v: tf.Variable) -> tf.Tensor:
    v.assign_add(tf.reduce_sum(x))
    return [_on_ps(tf.square, x + float(i)) for i in range(3)]


def test_functions_that_are_called_are_seen_through() -> None:
    v = tf.Variable(0.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        first = _called(x, v)
        second = _called(x + 1.0, v)
        return tf.add_n([*first, *second]) + v

    function = _concrete(step, tf.TensorSpec([2]))
    expected = function(tf.ones([2])).numpy()
    v.assign(0.0)
    fused: Any = fusion.fuse(function)
    np.testing.assert_array_equal(fused(tf.ones([2])), expected)
    assert float(v) == 6.0
    calls = [o for o in fused.graph.get_operations() if "Call" in o.type]
    assert not calls


@pytest.mark.parametrize("go_on", [True, False])
def test_branches_and_loops_pack_what_is_in_them(go_on: bool) -> None:
    v = tf.Variable([1.0, 2.0])

    def step(x: tf.Tensor, go_on: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> Any:
            parts = [_on_ps(tf.square, total + float(k)) for k in range(3)]
            v.assign_add(parts[0])
            return i + 1, tf.add_n(parts) * 0.1 + v

        _, total = tf.while_loop(lambda i, _: i < 3, body, (0, x))
        return tf.cond(
            go_on,
            lambda: tf.add_n(
                [_on_ps(tf.abs, total - float(k)) for k in range(3)]
            ),
            lambda: v * 2.0,
        )

    function = _concrete(step, tf.TensorSpec([2]), tf.TensorSpec([], tf.bool))
    expected = function(tf.ones([2]), go_on).numpy()
    v.assign([1.0, 2.0])
    fused: Any = fusion.fuse(function)
    np.testing.assert_array_equal(fused(tf.ones([2]), go_on), expected)
    assert any(sent[1] >= 3 and sent[2] == 1 for sent in _sends(function))


def test_gradients_and_structures_are_as_before() -> None:
    v = tf.Variable([[1.0, 2.0]])
    w = tf.Variable([[3.0], [4.0]])

    def step(data: dict[str, tf.Tensor]) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(data["x"] * v, w))
        gradients = tape.gradient(loss, [v, w])
        return {"loss": loss, "gradients": gradients, "nothing": None}

    function = _concrete(step, {"x": tf.TensorSpec([None, 2])})
    data = {"x": tf.constant([[1.0, -1.0], [0.5, 2.0]])}
    mine, theirs = fusion.fuse(function)(data), function(data)
    tf.nest.map_structure(np.testing.assert_array_equal, mine, theirs)
    assert mine["nothing"] is None


def test_reads_that_nobody_needs_are_left_out() -> None:
    v = tf.Variable(tf.zeros([1000]))

    def step(x: tf.Tensor) -> tf.Tensor:
        v.read_value()
        return _on_ps(tf.negative, x * 1.0) + 1.0

    fused: Any = fusion.fuse(_concrete(step, tf.TensorSpec([])))
    types = [operation.type for operation in fused.graph.get_operations()]
    assert "ReadVariableOp" not in types


def test_what_is_computed_several_times_is_computed_once() -> None:
    variables = [tf.Variable(tf.fill([2], float(i))) for i in range(3)]

    def step(x: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
        for v in variables:
            rate = 1.0 - tf.pow(0.9, tf.cast(n, tf.float32))
            v.assign_sub(tf.fill([2], rate * x))
        # The two operations look the same, but draw different numbers.
        noise = [tf.random.uniform([]) for _ in range(2)]
        return tf.stack(noise)

    function = _concrete(step, tf.TensorSpec([]), tf.TensorSpec([], tf.int32))
    fused: Any = fusion.fuse(function)
    types = [operation.type for operation in fused.graph.get_operations()]
    assert types.count("Pow") == 1
    assert types.count("Sub") == 1
    assert types.count("RandomUniform") == 2
    noise = fused(0.5, 3)
    assert noise[0] != noise[1]
    ours = [v.numpy() for v in variables]
    for i, v in enumerate(variables):
        v.assign(tf.fill([2], float(i)))
    function(0.5, 3)
    np.testing.assert_array_equal(ours, [v.numpy() for v in variables])


def test_a_function_may_have_been_differentiated_before() -> None:
    v = tf.Variable([2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def called(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.sin(x) * v) * v

    x = tf.constant([0.5, -0.5])
    concrete = called.get_concrete_function()
    # From then on, its graph has more outputs.
    with tf.GradientTape() as tape:
        y = concrete(x)
    tape.gradient(y, v)

    def step(x: tf.Tensor) -> tf.Tensor:
        sent = [_on_ps(tf.abs, x - float(k)) for k in range(3)]
        return concrete(tf.add_n(sent))

    function = _concrete(step, tf.TensorSpec([2]))
    fused: Any = fusion.fuse(function)
    assert fused is not function
    np.testing.assert_array_equal(fused(x), function(x))


def test_a_constant_may_be_waited_for() -> None:
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        one = tf.constant(1.0)
        with tf.control_dependencies([one]):
            sent = [_on_ps(tf.abs, x - float(k)) for k in range(3)]
        tf.compat.v1.get_default_graph().control_outputs.append(one.op)
        return [tf.add_n(sent) + one, one]

    function = _concrete(step, tf.TensorSpec([]))
    fused: Any = fusion.fuse(function)
    assert fused is not function
    for mine, theirs in zip(
        fused(tf.constant(5.0)), function(tf.constant(5.0)), strict=True
    ):
        assert mine == theirs


def test_what_does_not_travel_stays_as_it_is() -> None:
    function = _concrete(lambda x: x + 1.0, tf.TensorSpec([]))
    assert fusion.fuse(function) is function
    assert str(fusion.explain(function)) == "Nothing travels between tasks."


def test_it_is_rewritten_once() -> None:
    function = _concrete(
        lambda x: _on_ps(tf.square, x) + _on_ps(tf.abs, x * 2.0),
        tf.TensorSpec([]),
    )
    assert fusion.fuse(function) is fusion.fuse(function)


def test_what_is_compiled_stays_whole() -> None:
    v = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(x) * v

    def step(x: tf.Tensor) -> tf.Tensor:
        sent = [_on_ps(tf.abs, x - float(k)) for k in range(3)]
        return compiled(tf.add_n(sent))

    x = tf.ones([2])
    for function in (step, compiled.python_function):
        whole = tf.function(function, jit_compile=function is not step)
        concrete = whole.get_concrete_function(tf.TensorSpec([2]))
        fused = fusion.fuse(concrete)
        np.testing.assert_array_equal(fused(x), concrete(x))
        assert (fused is concrete) == (function is not step)
        assert _devices_of_calls(fused) == _devices_of_calls(concrete)


def _devices_of_calls(function: Any) -> list[str]:
    return [
        operation.device
        for operation in function.graph.get_operations()
        if "Call" in operation.type
    ]


def test_what_cannot_be_rewritten_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("unheard of")

    monkeypatch.setattr(fusion, "Rewriting", fail)
    function = _concrete(lambda x: _on_ps(tf.abs, x) + 1.0, tf.TensorSpec([]))
    assert fusion.fuse(function) is function
    assert "CommunicationOptions(fusion=False)" in caplog.text
    assert "unheard of" in caplog.text


def test_errors_show_the_users_line() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        y = _on_ps(tf.square, x) + _on_ps(tf.abs, x * 2.0)
        return tf.debugging.check_numerics(y, "not finite")  # here

    fused = fusion.fuse(_concrete(step, tf.TensorSpec([])))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        fused(float("inf"))
    assert "fusion_test.py" in str(caught.value)
    assert "check_numerics" in str(caught.value)


def test_the_explanation_is_a_table() -> None:
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return _on_ps(tf.square, x * 1.0) + _on_ps(tf.reduce_sum, y * 1.0)

    function = _concrete(step, tf.TensorSpec([]), tf.TensorSpec([None]))
    text = str(fusion.explain(function))
    assert "4 values travel between tasks, in 2 messages" in text
    assert "4 + 1 of unknown size" in text
    assert "localhost 0" in text


@pytest.mark.compat
@pytest.mark.parametrize("parallel", [1, 10])
def test_a_loops_rounds_do_not_wait_for_updates(parallel: int) -> None:
    tables = [tf.Variable(tf.zeros(4)) for _ in range(3)]

    @tf.function
    def step(number: tf.Tensor) -> tf.Tensor:
        total = tf.add_n([_on_ps(table.read_value) for table in tables])
        for table in tables:
            _on_ps(lambda t=table: t.assign(2.0 * t + number))
            # Exact in any order of additions.
            _on_ps(lambda t=table: t.assign_sub(0.5 * total))
        return tf.reduce_sum(total)

    def steps(count: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda done, result: done < count,
            lambda done, result: (done + 1, step(tf.cast(done, tf.float32))),
            (tf.constant(0), tf.constant(0.0)),
            parallel_iterations=parallel,
        )

    function = _concrete(steps, tf.TensorSpec([], tf.int32))
    fused: Any = fusion.fuse(function)
    results = []
    for one in (function, fused):
        for number, table in enumerate(tables):
            table.assign(tf.range(4.0) + number)
        _, result = one(6)
        results.append([result, *tables])
    for theirs, mine in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    # Values that were read travel, but no notice of the write.
    answers = [name for name, _, _ in _sends(function) if name != "worker"]
    assert len(answers) == 1


def test_what_follows_a_loop_sees_what_it_did() -> None:
    table = tf.Variable(0.0)

    @tf.function
    def step(number: tf.Tensor) -> tf.Tensor:
        _on_ps(lambda: table.assign_add(tf.sin(number)))
        return number + 1.0

    def steps(count: tf.Tensor) -> tf.Tensor:
        tf.while_loop(
            lambda done, _: done < count,
            lambda done, number: (done + 1, step(number)),
            (tf.constant(0), tf.constant(0.0)),
            parallel_iterations=1,
        )
        return _on_ps(table.read_value)

    function = _concrete(steps, tf.TensorSpec([], tf.int32))
    expected = np.sin(np.arange(50.0, dtype=np.float32)).sum()
    for one in (function, fusion.fuse(function)):
        table.assign(0.0)
        np.testing.assert_allclose(one(50), expected, rtol=1e-5)
    # Each iteration reports its end.
    sends = _sends(function)
    assert [name for name, _, _ in sends if name != "worker"]


def test_handles_of_parameter_servers_are_no_arguments() -> None:
    table, bias = (
        testing.remote_variable(tf.ones([3])),
        testing.remote_variable(2.0),
    )

    def step(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> Any:
            rows = _on_ps(
                lambda row: tf.gather(table.read_value(), row),
                tf.cast(x, tf.int32),
            )
            gradient = rows * total + bias
            bias.assign_add(gradient * 0.125)
            return i + 1, total + gradient

        return tf.while_loop(
            lambda i, _: i < 3, body, (0, x), parallel_iterations=1
        )[1]

    function = _concrete(step, tf.TensorSpec([]))
    expected = float(function(1.0))
    changed = float(bias)
    bias.assign(2.0)
    fused: Any = fusion.fuse(function)
    assert float(fused(1.0)) == expected
    assert float(bias) == changed
    graph = fused.__wrapped__.graph
    assert [tensor.dtype for tensor in graph.inputs] == [tf.float32]
    # Each parameter server learns of an iteration by its own message only.
    (loop,) = (o for o in graph.get_operations() if o.type == "While")
    body = compat.functions_of(loop)["body"]
    first = [
        o
        for o in body.get_operations()
        if places.job(o.device) and not o.inputs and o.type != "Placeholder"
    ]
    assert any(
        o.type == "ReadVariableOp" and o.outputs[0].dtype == tf.variant
        for o in body.get_operations()
    )
    assert first
    assert all(o.control_inputs for o in first)


def test_a_variable_that_is_gone_is_told_of() -> None:
    kept = [testing.remote_variable(1.0)]

    def step(x: tf.Tensor) -> tf.Tensor:
        return x * kept[0] + _on_ps(tf.square, x)

    function = _concrete(step, tf.TensorSpec([]))
    fused = fusion.fuse(function)
    assert float(fused(3.0)) == 12.0
    kept.clear()
    gc.collect()
    with pytest.raises(errors.VariableCreationError, match="Keep a reference"):
        fused(3.0)


def test_a_loop_in_a_loop_may_look_at_variables() -> None:
    table = testing.remote_variable(tf.reshape(tf.range(12.0), [4, 3]))
    total = testing.remote_variable(tf.zeros([3]))

    def round_of(i: tf.Tensor, x: tf.Tensor) -> Any:
        # The inner loop takes a handle, and its result travels to the parameter
        # server that holds the handle.
        _, rows = tf.while_loop(
            lambda j, _: j < 3,
            lambda j, rows: (j + 1, rows + _on_ps(tf.gather, table, j)),
            (tf.constant(0), x),
        )
        scaled = _on_ps(lambda r: r * tf.fill([3], 0.5) + 1.0, rows)
        total.assign_add(scaled)
        chosen = tf.cond(
            tf.reduce_sum(x) > 40.0,
            lambda: _on_ps(tf.gather, table, i),
            lambda: tf.zeros([3]),
        )
        return i + 1, scaled + _on_ps(lambda c: c * tf.fill([3], 2.0), chosen)

    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda i, _: i < 4, round_of, (0, x), parallel_iterations=1
        )[1]

    function = _concrete(step, tf.TensorSpec([3]))
    expected = [function(tf.ones([3])).numpy(), total.numpy()]
    total.assign(tf.zeros([3]))
    fused: Any = fusion.fuse(function)
    assert fused is not function
    np.testing.assert_array_equal(fused(tf.ones([3])), expected[0])
    np.testing.assert_array_equal(total, expected[1])


@pytest.mark.parametrize("is_right", [True, False])
def test_a_body_that_cannot_be_rewritten_stays_as_it_is(
    is_right: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, y: tf.Tensor) -> Any:
            sent = [_on_ps(tf.abs, y - float(k)) for k in range(3)]
            return i + 1, tf.add_n(sent)

        y = tf.while_loop(lambda i, _: i < 3, body, (0, x))[1]
        return tf.add_n([_on_ps(tf.square, y + float(k)) for k in range(3)])

    begin = Emission._begin_with_messages

    def wait_for_itself(emission: Any) -> None:
        begin(emission)
        last = emission.graph.get_operations()[-1]
        if not is_right and emission._is_inner and last.inputs:
            variables_compat.run_after(last.inputs[0].op, [last])

    monkeypatch.setattr(Emission, "_begin_with_messages", wait_for_itself)
    function = _concrete(step, tf.TensorSpec([2]))
    fused: Any = fusion.fuse(function)
    x = tf.constant([0.5, 3.0])
    np.testing.assert_array_equal(fused(x), function(x))
    assert fused is not function
    names = [body.name for body in fusion.explain(function).bodies]
    assert any("While body" in name for name in names) == is_right
    # The function around it still sends fewer messages.
    assert any(sent[1:] == (3, 1) for sent in _sends(function))
    assert ("While body" in caplog.text) != is_right
    assert ("wait for each other" in caplog.text) != is_right


def test_a_loop_elsewhere_sends_nothing_for_each_round() -> None:
    """Its first values go there, and its last ones come back."""

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device(_PS):
            (y,) = tf.while_loop(
                lambda y: tf.reduce_sum(y) < 100.0,
                lambda y: (y * 2.0,),
                (tf.identity(x),),
            )
        return y + 1.0

    function = _concrete(step, tf.TensorSpec([2]))
    x = tf.constant([1.0, 2.0])
    np.testing.assert_array_equal(fusion.fuse(function)(x), function(x))
    (body,) = fusion.explain(function, "chief").bodies
    assert body.runs_on == "chief"
    assert [(sent.source, sent.num_tensors) for sent in body.sent] == [
        ("", 1),
        ("/job:localhost/replica:0/task:0", 1),
    ]
