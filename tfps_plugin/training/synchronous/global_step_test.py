"""Tests of a worker's part of a step, and of the steps that it refuses."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.training.synchronous import global_step
from tfps_plugin.training.synchronous.global_step import LEFT
from tfps_plugin.training.synchronous.global_step import GlobalStep
from tfps_plugin.training.synchronous.sums import example_weights
from tfps_plugin.transport import fusion
from tfps_plugin.variables import testing

_WORKERS = 2
# Optimizers have variables, so they are not made in functions.
_SGD = keras.optimizers.SGD()


def _on_ps(value: Any) -> keras.Variable:
    def create(next_creator: Any, **kwargs: Any) -> Any:
        del next_creator, kwargs
        return testing.remote_variable(value)

    with tf.variable_creator_scope(create):
        return keras.Variable(value)


def _traced(
    step: GlobalStep, function: Callable[[Any], Any], spec: Any = None
) -> Any:
    """Traces a step of a batch `(B,)`."""
    return tf.function(
        lambda data: step.traced(function, data), autograph=False
    ).get_concrete_function(spec or tf.TensorSpec([None], tf.float32))


@pytest.fixture
def weight() -> keras.Variable:
    return _on_ps(np.array([2.0, 3.0], "float32"))


@pytest.fixture
def step(weight: keras.Variable) -> GlobalStep:
    """Queues of one ps, which has the weight."""
    del weight
    return GlobalStep([testing.LOCAL_DEVICE], _WORKERS)


def _mail(step: GlobalStep, worker: int) -> list[Any]:
    """Takes a parcel of a worker."""

    @tf.function(autograph=False)
    def take() -> list[tf.Tensor]:
        return step.mailboxes[0].take(worker)

    return [tensor.numpy() for tensor in take()]


def test_a_parcel_has_the_stamp_of_the_token(
    step: GlobalStep, weight: keras.Variable
) -> None:
    optimizer = keras.optimizers.SGD()

    def train(batch: tf.Tensor) -> tf.Tensor:
        step.push(optimizer, [weight * tf.reduce_mean(batch)], [weight])
        return tf.reduce_sum(batch)

    function = _traced(step, train)
    for worker, token in ((1, 5), (0, 7)):
        step.tokens[0].put_now(worker, [token])
        with testing.lane(worker):
            output = function(tf.constant([1.0, 2.0, 6.0]))
        assert float(output) == 9.0
        stamp, num_examples, gradient = _mail(step, worker)
        assert (stamp, num_examples) == (token, 3.0)
        np.testing.assert_allclose(
            gradient / example_weights.of(3, tf.float32), [6.0, 9.0]
        )


def test_a_variable_is_read_after_the_token_has_come(
    step: GlobalStep, weight: keras.Variable
) -> None:
    def train(batch: tf.Tensor) -> None:
        del batch
        step.push(_SGD, [tf.identity(weight.value)], [weight])

    graph = _traced(step, train).graph
    (take,) = [
        operation
        for operation in graph.get_operations()
        if operation.type == "QueueDequeueV2"
    ]
    reads = [
        operation
        for operation in graph.get_operations()
        if operation.type == "ReadVariableOp"
    ]
    assert reads
    assert all(take in read.control_inputs for read in reads)


def test_a_worker_arrives_after_it_has_sent_its_parcel(
    weight: keras.Variable,
) -> None:
    step = GlobalStep([testing.LOCAL_DEVICE], _WORKERS, num_backup=1)

    def train(batch: tf.Tensor) -> None:
        step.push(_SGD, [batch[:2]], [weight])

    graph = _traced(step, train).graph
    sent, arrived = (
        operation
        for operation in graph.get_operations()
        if operation.type == "QueueEnqueueV2"
    )
    # The operation itself: fusion may move what it gets the queue from.
    assert sent in arrived.control_inputs
    assert step.number is not None


def test_who_leaves_sends_a_parcel_of_zeros(
    step: GlobalStep, weight: keras.Variable
) -> None:
    table = _on_ps(np.ones((4, 2), "float32"))
    rows = tf.IndexedSlices(
        tf.ones([1, 2]), tf.constant([3]), tf.constant([4, 2])
    )

    def train(batch: tf.Tensor) -> None:
        del batch
        step.push(
            _SGD,
            [weight * 1.0, rows],
            [weight, table],
        )

    _traced(step, train)
    step.leave(1, 0)
    stamp, num_examples, gradient, ids, values = _mail(step, 1)
    assert (stamp, num_examples) == (LEFT, 0.0)
    np.testing.assert_array_equal(gradient, [0.0, 0.0])
    assert ids.shape == (0,)
    assert values.shape == (0, 2)


def _queue_operations(
    graph: Any, kind: str, *dtypes: tf.DType
) -> list[tf.Operation]:
    """Returns operations of queues whose elements begin with some dtypes."""
    attribute = {
        "QueueEnqueueV2": "Tcomponents",
        "QueueDequeueV2": "component_types",
    }[kind]
    return [
        operation
        for operation in graph.get_operations()
        if operation.type == kind
        and tuple(operation.get_attr(attribute)[: len(dtypes)]) == dtypes
    ]


def _runs_after(later: tf.Operation, earlier: tf.Operation) -> bool:
    stack = [later]
    before = {later}
    while stack:
        operation = stack.pop()
        found = {t.op for t in operation.inputs} | {*operation.control_inputs}
        stack += found - before
        before |= found
    return earlier in before


@pytest.mark.parametrize("is_fused", [False, True])
def test_sums_are_made_between_the_token_and_the_parcel(
    step: GlobalStep, weight: keras.Variable, is_fused: bool
) -> None:
    """Though the step needs none of them, nor their gradients."""
    operation = tf.distribute.ReduceOp.SUM

    def train(batch: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch) * weight
            (total,) = step.all_reduce(operation, [loss])
        tape.gradient(total, weight.value)
        step.push(_SGD, [weight * 1.0], [weight])
        # After the update, too.
        step.all_reduce(operation, [tf.reduce_mean(batch)])

    function = _traced(step, train)
    if is_fused:
        fused: Any = fusion.fuse(function)
        function = fused.__wrapped__
    graph = function.graph
    (token,) = _queue_operations(graph, "QueueDequeueV2", tf.int64)
    (parcel,) = _queue_operations(graph, "QueueEnqueueV2", tf.int64)
    parts = _queue_operations(graph, "QueueEnqueueV2", tf.float32, tf.float32)
    totals = _queue_operations(graph, "QueueDequeueV2", tf.int32, tf.float32)
    assert (len(parts), len(totals)) == (3, 3)
    assert all(_runs_after(part, token) for part in parts)
    assert all(_runs_after(parcel, total) for total in totals)
    assert all(
        any(_runs_after(total, part) for part in parts) for total in totals
    )


def test_who_leaves_leaves_all_sums(
    step: GlobalStep, weight: keras.Variable
) -> None:
    def train(batch: tf.Tensor) -> None:
        step.all_reduce(tf.distribute.ReduceOp.SUM, [batch[0], batch[1]])
        step.all_reduce(tf.distribute.ReduceOp.SUM, [batch[:2] * weight])
        step.push(_SGD, [weight * 1.0], [weight])

    _traced(step, train)
    step.leave(1, 0)
    first, second = step.sums.on(0)

    @tf.function(autograph=False)
    def take(queues: Any) -> list[tf.Tensor]:
        return queues.take(1)

    # In place of the number of examples.
    for shared, expected in (
        (first, [-1.0, 0.0, 0.0]),
        (second, [-1.0, [0.0, 0.0]]),
    ):
        found = take(shared._parts)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("place", ["value", "gradient"])
def test_a_sum_in_a_condition_is_refused(
    step: GlobalStep, weight: keras.Variable, place: str
) -> None:
    def train(batch: tf.Tensor) -> None:
        def total() -> tf.Tensor:
            operation = tf.distribute.ReduceOp.SUM
            return step.all_reduce(operation, [weight * 1.0])[0]

        with tf.GradientTape() as tape:
            outer = total() if place == "gradient" else tf.constant(0.0)

        def inner() -> tf.Tensor:
            return (
                tape.gradient(outer, weight.value)
                if place == "gradient"
                else total()
            )

        tf.cond(batch[0] > 0, inner, lambda: tf.zeros([2]))
        step.push(_SGD, [weight * 1.0], [weight])

    with pytest.raises(
        errors.UnsupportedError,
        match=r"outside of conditions.*all_reduce\(\), or its gradient, inside",
    ):
        _traced(step, train)


def test_sums_with_backup_workers_are_refused(step: GlobalStep) -> None:
    with_backup = GlobalStep(step.devices, _WORKERS, num_backup=1)
    with pytest.raises(
        errors.UnsupportedError, match=r"cannot be right.*backup_workers=1"
    ):
        with_backup.all_reduce(tf.distribute.ReduceOp.SUM, [tf.ones([])])


def test_values_of_workers_one_by_one_are_refused(step: GlobalStep) -> None:
    with pytest.raises(
        errors.UnsupportedError, match=r"Expected all_reduce.*all_gather"
    ):
        step.all_gather()


def _first_value(batch: tf.Tensor, weight: Any) -> tf.Tensor:
    return batch[0] * weight.value


def test_a_step_without_gradients_is_refused(
    step: GlobalStep, weight: keras.Variable
) -> None:
    with pytest.raises(
        errors.UnsupportedError, match=r"has to apply gradients.*optimizer\.app"
    ):
        _traced(step, lambda batch: _first_value(batch, weight))


def test_gradients_in_a_condition_are_refused(
    step: GlobalStep, weight: keras.Variable
) -> None:
    optimizer = keras.optimizers.SGD(name="mine")

    def train(batch: tf.Tensor) -> None:
        def apply() -> tf.Tensor:
            step.push(optimizer, [weight * 1.0], [weight])
            return tf.constant(0)

        tf.cond(batch[0] > 0, apply, lambda: tf.constant(0))

    with pytest.raises(
        errors.UnsupportedError,
        match=r"outside of conditions.*apply\(\) of 'mine' inside of one",
    ):
        _traced(step, train)


def test_an_assignment_in_a_loop_is_refused(
    step: GlobalStep, weight: keras.Variable
) -> None:
    def train(batch: tf.Tensor) -> None:
        def body(number: tf.Tensor) -> tuple[tf.Tensor]:
            step.assign(weight.value, "assign", batch[:2])
            return (number + 1,)

        tf.while_loop(lambda n: n < 2, body, (tf.constant(0),))

    with pytest.raises(
        errors.UnsupportedError, match=r"assign of 'variable.*inside of one"
    ):
        _traced(step, train)


def test_a_read_after_the_update_is_refused(
    step: GlobalStep, weight: keras.Variable
) -> None:
    def train(batch: tf.Tensor) -> tf.Tensor:
        step.push(_SGD, [batch[:2]], [weight])
        return weight.value.read_value()

    with pytest.raises(
        errors.UnsupportedError, match=r"in the next step only.*Received: the"
    ):
        _traced(step, train)


def _table() -> Any:
    return testing.sharded_variable(np.ones((4, 2), "float32"), 2)


def _whole() -> Any:
    return testing.remote_variable(np.ones((4, 2), "float32"))


_KINDS = pytest.mark.parametrize("make", [_table, _whole])


@_KINDS
def test_a_second_assignment_of_a_variable_is_refused(
    make: Callable[[], Any], step: GlobalStep, weight: keras.Variable
) -> None:
    state, other = make(), make()

    def train(batch: tf.Tensor) -> None:
        state.assign(tf.fill([4, 2], batch[0]))
        # Another variable may be assigned as well.
        other.assign(tf.fill([4, 2], batch[0]))
        step.push(_SGD, [batch[:2]], [weight])
        state.assign(tf.fill([4, 2], batch[1]))

    with pytest.raises(
        errors.UnsupportedError,
        match=r"assigns each variable once.*second assignment to '(table|var)",
    ):
        _traced(step, train)


@_KINDS
def test_a_read_after_an_assignment_is_refused(
    make: Callable[[], Any], step: GlobalStep, weight: keras.Variable
) -> None:
    state = make()

    def train(batch: tf.Tensor) -> tf.Tensor:
        state.assign(tf.fill([4, 2], batch[0]))
        value = tf.reduce_sum(state)
        step.push(_SGD, [batch[:2]], [weight])
        return value

    with pytest.raises(
        errors.UnsupportedError,
        match=r"after an assignment to it.*Received: the operation '.*Read",
    ):
        _traced(step, train)


@_KINDS
def test_a_read_before_an_assignment_is_not(
    make: Callable[[], Any], step: GlobalStep, weight: keras.Variable
) -> None:
    state, other = make(), make()

    def train(batch: tf.Tensor) -> tf.Tensor:
        value = tf.reduce_sum(state)
        state.assign(tf.fill([4, 2], batch[0]))
        # It has not been assigned.
        value += tf.reduce_sum(other)
        step.push(_SGD, [batch[:2]], [weight])
        return value

    _traced(step, train)
    (layout,) = step.layouts
    shards = getattr(state, "variables", None) or [state]
    assert [id(each) for each in layout.assigned] == [
        id(each) for each in shards
    ]


@_KINDS
@pytest.mark.parametrize(
    "method", ["scatter_add", "scatter_update", "scatter_nd_max"]
)
def test_a_change_of_single_rows_is_refused(
    method: str, make: Callable[[], Any], step: GlobalStep
) -> None:
    state = make()

    def train(batch: tf.Tensor) -> None:
        del batch
        if method.startswith("scatter_nd"):
            getattr(state, method)([[1]], tf.ones([1, 2]))
        else:
            rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]))
            getattr(state, method)(rows)

    with pytest.raises(
        errors.UnsupportedError,
        match=rf"a part of '.*' by {method},.*Received: {method}\.",
    ):
        _traced(step, train)


def _state(**options: Any) -> Any:
    """Returns a state of a layer, of two streams."""
    return testing.remote_variable(
        np.ones((2, 2), "float32"), trainable=False, **options
    )


def _carrying(step: GlobalStep, state: Any, weight: Any) -> Any:
    """Returns a step that carries a state from batch to batch."""

    def train(batch: tf.Tensor) -> tf.Tensor:
        value = tf.tanh(tf.linalg.matmul(state, state) + batch[0])
        state.assign(value)
        step.push(_SGD, [weight * 1.0], [weight])
        return value

    return train


@pytest.mark.parametrize("is_fit", [False, True])
def test_a_state_that_passes_to_the_next_batch_is_refused(
    step: GlobalStep, weight: keras.Variable, *, is_fit: bool
) -> None:
    train = _carrying(step, _state(), weight)

    def scheduled(batch: tf.Tensor) -> tf.Tensor:
        return step.traced_if_it_applies(
            lambda: train(batch), step, lambda: tf.ones([])
        )

    def in_fit(batch: tf.Tensor) -> tf.Tensor:
        return step.traced(train, batch)

    function = tf.function(in_fit if is_fit else scheduled, autograph=False)
    with pytest.raises(
        errors.UnsupportedError,
        match=r"to the next,.*'variable', computed by 'Tanh';.* 2 workers ",
    ):
        function.get_concrete_function(tf.TensorSpec([None], tf.float32))


def test_one_worker_passes_a_state_to_its_next_batch(
    weight: keras.Variable,
) -> None:
    step = GlobalStep([testing.LOCAL_DEVICE], 1)
    _traced(step, _carrying(step, _state(), weight))
    assert len(step.layouts[0].assigned) == 1


@pytest.mark.parametrize(
    "aggregation",
    [
        tf.VariableAggregation.MEAN,
        tf.VariableAggregation.ONLY_FIRST_REPLICA,
    ],
)
def test_a_state_that_says_how_is_put_together(
    step: GlobalStep, weight: keras.Variable, aggregation: Any
) -> None:
    state = _state(aggregation=aggregation)
    _traced(step, _carrying(step, state, weight))
    assert len(step.layouts[0].assigned) == 1


def test_an_average_that_the_step_uses_is_put_together(
    step: GlobalStep, weight: keras.Variable
) -> None:
    """Also one whose value is of a smaller shape."""
    state = _state()

    def train(batch: tf.Tensor) -> tf.Tensor:
        state.assign(state * 0.9 + 0.1 * tf.reduce_mean(batch))
        step.push(_SGD, [weight * 1.0], [weight])
        return tf.reduce_mean(batch)

    _traced(step, train)
    assert len(step.layouts[0].assigned) == 1


def test_a_variable_elsewhere_is_refused(step: GlobalStep) -> None:
    local = keras.Variable([1.0, 2.0], name="local")

    def train(batch: tf.Tensor) -> None:
        step.push(_SGD, [batch[:2]], [local])

    with pytest.raises(
        errors.UnsupportedError, match=r"strategy\.scope.*variable='local'"
    ):
        _traced(step, train)


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (tf.zeros([5, 2]), 5),
        ((tf.zeros([]), {"a": tf.zeros([3])}), 3),
        ({"r": tf.ragged.constant([[1], [], [2, 3], []])}, 4),
        ((tf.sparse.from_dense([[0, 1], [2, 0]]), tf.zeros([])), 2),
        (tf.zeros([]), 1),
        ((None, tf.zeros([6])), 6),
    ],
)
def test_the_examples_are_along_the_first_axis(data: Any, number: int) -> None:
    assert float(global_step.num_examples(data)) == number
