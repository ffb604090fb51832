import inspect
from collections.abc import Callable
from concurrent import futures
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.methods import self_computation
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates import views
from tfps_plugin.variables.updates.update_lock import UpdateLock

_random = np.random.default_rng(0)
_VALUE = _random.uniform(0.5, 2.0, (3, 4)).astype("float32")
_DENSE = _random.uniform(0.5, 2.0, (3, 4)).astype("float32")
_ROW = _DENSE[:1]
_SCALAR = np.float32(0.3)

_THREADS = 4
_CALLS = 100
_PATIENCE_SECONDS = 30


def _guarded(value: Any) -> RemoteVariable:
    """Returns a variable as a strategy makes it."""
    variable = testing.remote_variable(value, trainable=False)
    variable.update_lock = UpdateLock(
        testing.LOCAL_DEVICE, "self_assignment_test"
    )
    return variable


def _types(function: Any, *arguments: Any) -> list[str]:
    graph = function.get_concrete_function(*arguments).graph
    return [operation.type for operation in graph.get_operations()]


Compute = Callable[[Any, tf.Tensor], tf.Tensor]

_ATOMIC: dict[str, Compute] = {
    "v + x": lambda v, x: v + x,
    "x + v": lambda v, x: x + v,
    "v - x": lambda v, x: v - x,
    "v + f(x)": lambda v, x: v + tf.reduce_sum(x * x),
    "identity": lambda v, x: tf.identity(tf.identity(v) + x),
    "keras": lambda v, x: keras.ops.add(v, x),
}
_REPEATED: dict[str, Compute] = {
    "average": lambda v, x: v * 0.99 + x * (1.0 - 0.99),
    "average by difference": lambda v, x: v - (v - x) * 0.01,
    "x - v": lambda v, x: x - v,
    "maximum": tf.maximum,
    "twice": lambda v, x: v * 2.0,
    "v * v": lambda v, x: v * v * x,
    "clipped": lambda v, x: tf.clip_by_value(v + x, 1.0, 2.5),
    "where": lambda v, x: tf.where(tf.math.is_finite(v / x), v / x, v),
    "modulo": lambda v, x: (v + 1.0) % 3.0,
    "cast": lambda v, x: tf.cast(
        tf.cast(v, tf.float16) * tf.cast(x, tf.float16), tf.float32
    ),
    "roots": lambda v, x: tf.sqrt(tf.square(v) + tf.exp(-tf.abs(v)) * x),
    "itself": lambda v, x: tf.identity(v),
}
_PLAIN: dict[str, Compute] = {
    "sum": lambda v, x: v + tf.reduce_sum(v),
    "matmul": lambda v, x: tf.matmul(tf.matmul(v, v, transpose_b=True), v),
    "independent": lambda v, x: x * tf.ones((3, 4)),
    "long": lambda v, x: sum([v * 1.01 for _ in range(60)], start=x),
}


def _assigner(
    variable: RemoteVariable, compute: Compute
) -> Callable[[tf.Tensor], None]:
    @tf.function(autograph=False)
    def assign(x: tf.Tensor) -> None:
        variable.assign(compute(variable, x))

    return assign


def _cases() -> list[Any]:
    kinds = {"atomic": _ATOMIC, "repeated": _REPEATED, "plain": _PLAIN}
    return [
        pytest.param(kind, compute, id=name)
        for kind, computations in kinds.items()
        for name, compute in computations.items()
    ]


@pytest.mark.parametrize("x", [_DENSE, _ROW, _SCALAR], ids=["", "row", "one"])
@pytest.mark.parametrize(("kind", "compute"), _cases())
def test_alone_the_numbers_are_those_of_the_program(
    kind: str, compute: Compute, x: np.ndarray
) -> None:
    guarded = _guarded(_VALUE)
    plain = tf.Variable(_VALUE)
    ours, theirs = _assigner(guarded, compute), _assigner(plain, compute)
    given = tf.constant(x)
    for _ in range(3):
        ours(given)
        theirs(given)
        np.testing.assert_array_equal(guarded.numpy(), plain.numpy())
    types = _types(ours, given)
    expected = {
        "atomic": {"AssignAddVariableOp", "AssignSubVariableOp"},
        "repeated": {"AssignVariableOp"},
        "plain": {"AssignVariableOp"},
    }[kind]
    assigns = {t for t in types if t.startswith("Assign")}
    assert assigns <= expected
    assert len(assigns) == 1
    # It is a table, whose rows updates write.
    assert types.count("MutexLock") == 1


def test_a_vector_is_added_to_without_the_lock() -> None:
    vector = _guarded(np.zeros(4, np.float32))
    add = _assigner(vector, _ATOMIC["v + x"])
    assert "MutexLock" not in _types(add, tf.ones(4))


@pytest.mark.parametrize("dtype", ["int32", "int64", "float16", "float64"])
def test_other_dtypes(dtype: str) -> None:
    value = tf.cast([1, 2, 3], dtype)
    for compute in (
        lambda v, x: v + x,
        lambda v, x: v - x,
        lambda v, x: tf.maximum(v * x, v),
    ):
        guarded, plain = _guarded(value), tf.Variable(value)
        _assigner(guarded, compute)(tf.cast(2, dtype))
        _assigner(plain, compute)(tf.cast(2, dtype))
        np.testing.assert_array_equal(guarded.numpy(), plain.numpy())


def test_what_others_assign_meanwhile_is_kept() -> None:
    """The value that the worker has read is never assigned."""
    variable = _guarded(1.0)

    def meanwhile(array: np.ndarray) -> np.ndarray:
        variable.assign(100.0)
        return array

    @tf.function
    def double() -> None:
        read = variable.read_value()
        # On the worker, after the read and before the assignment.
        one = tf.numpy_function(meanwhile, [read], tf.float32) * 0.0 + 1.0
        one.set_shape([])
        # Not a function of the read, unless one looks into the Python code.
        with tf.control_dependencies([one]):
            variable.assign(variable * 2.0)

    double()
    assert variable.numpy() == 200.0

    @tf.function
    def triple() -> None:
        tripled = variable * 3.0
        with tf.control_dependencies([tripled]):
            done = tf.numpy_function(meanwhile, [0.0], tf.float32)
        with tf.control_dependencies([done]):
            variable.assign(tripled)

    variable.assign(7.0)
    triple()
    assert variable.numpy() == 300.0


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("v + x", lambda v, x: v + x),
        ("v - x", lambda v, x: v - x),
        ("average", lambda v, x: (v * 2.0 + x * 2.0) / 2.0),
        ("maximum", lambda v, x: tf.maximum(v + x, x)),
    ],
)
def test_threads_lose_nothing(name: str, compute: Compute) -> None:
    # Whole numbers: the order does not matter.
    variable = _guarded(tf.zeros([1000]))
    assign = _assigner(variable, compute)
    one = tf.ones([1000])
    assign(one)

    def run() -> None:
        for _ in range(_CALLS):
            assign(one)

    with futures.ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(run) for _ in range(_THREADS)]:
            done.result(_PATIENCE_SECONDS)
    total = 1 + _THREADS * _CALLS
    expected = -total if name == "v - x" else total
    np.testing.assert_array_equal(variable.numpy(), expected)


def test_in_loops_and_branches() -> None:
    guarded, plain = _guarded(1.0), tf.Variable(1.0)

    def make(variable: Any) -> Any:
        def change(i: tf.Tensor) -> None:
            variable.assign(variable * 0.5 + tf.cast(i, tf.float32))
            variable.assign(variable + 1.0)

        @tf.function(autograph=False)
        def run(count: tf.Tensor) -> None:
            def body(i: tf.Tensor) -> tuple[tf.Tensor]:
                change(i)
                tf.cond(i > 0, lambda: change(i), lambda: None)
                return (i + 1,)

            tf.while_loop(lambda i: i < count, body, [0], parallel_iterations=1)

        return run

    ours = make(guarded)
    ours(tf.constant(3))
    make(plain)(tf.constant(3))
    assert guarded.numpy() == plain.numpy()
    definition = ours.get_concrete_function(tf.constant(3)).graph.as_graph_def()
    inner = [
        node.op
        for function in definition.library.function
        for node in function.node_def
    ]
    assert inner.count("MutexLock") == 2
    assert inner.count("AssignAddVariableOp") == 2


def test_reads_of_an_earlier_value_stay_reads_of_it() -> None:
    guarded, plain = _guarded(1.0), tf.Variable(1.0)

    def make(variable: Any) -> Any:
        @tf.function
        def run() -> None:
            old = variable.read_value()
            variable.assign(10.0)
            variable.assign(old + 1.0)

        return run

    make(guarded)()
    make(plain)()
    assert guarded.numpy() == plain.numpy() == 2.0


def test_a_read_of_the_function_around() -> None:
    """The branch cannot see where its value came from, so it is assigned."""
    variable = _guarded(1.0)

    @tf.function(autograph=False)
    def run(go: tf.Tensor) -> None:
        doubled = variable * 2.0
        tf.cond(go, lambda: variable.assign(doubled) * 0.0, lambda: 0.0)

    run(tf.constant(True))
    assert variable.numpy() == 2.0
    assert "MutexLock" not in _types(run, tf.constant(True))


def test_the_result_is_the_variable_after_it() -> None:
    variable = _guarded(1.0)

    @tf.function
    def run() -> tuple[tf.Tensor, tf.Tensor]:
        first = tf.convert_to_tensor(variable.assign(variable * 3.0))
        return first, tf.convert_to_tensor(variable.assign(variable + 1.0))

    assert [t.numpy() for t in run()] == [3.0, 4.0]


def test_a_wrong_shape_is_refused_as_always() -> None:
    variable = _guarded([1.0, 2.0])

    @tf.function
    def run() -> None:
        variable.assign(variable + tf.ones([3, 2]))

    with pytest.raises(ValueError, match="Shape mismatch"):
        run()

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def unknown(x: tf.Tensor) -> None:
        variable.assign(variable + x)

    unknown(tf.ones([]))
    unknown(tf.ones([1]))
    assert variable.numpy().tolist() == [3.0, 4.0]
    with pytest.raises(tf.errors.InvalidArgumentError):
        unknown(tf.ones([3, 2]))


def test_under_a_lock_and_under_a_view_nothing_is_changed() -> None:
    variable = _guarded([1.0, 2.0])

    @tf.function
    def locked() -> None:
        assert variable.update_lock is not None
        with variable.update_lock.holding():
            variable.assign(variable + 1.0)

    assert "AssignVariableOp" in _types(locked)

    rows = testing.remote_variable([[1.0]])

    @tf.function
    def viewed() -> None:
        view = views.RowsView(rows, tf.constant([0]))
        with StepTrace.current().viewing({variable._unique_id: view}):
            variable.assign(variable + 1.0)

    types = _types(viewed)
    assert "ResourceScatterUpdate" in types
    assert not any(t.startswith("Assign") for t in types)


def test_gradients_are_those_of_the_program() -> None:
    variable = _guarded([1.0, 2.0])

    @tf.function
    def run() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(variable)
            scaled = variable * 3.0
            variable.assign(scaled)
            loss = tf.reduce_sum(scaled * variable)
        return tape.gradient(loss, variable)

    # Of scaled * variable: 3 * variable + scaled, with variable = [3, 6].
    assert run().numpy().tolist() == [12.0, 24.0]


def test_eager_assignments_are_untouched() -> None:
    variable = _guarded(1.0)
    variable.assign(variable * 2.0)
    assert variable.numpy() == 2.0


def test_each_repeated_operation_can_be_made_by_its_names() -> None:
    @tf.function
    def make_all(x: tf.Tensor) -> None:
        for kind in sorted(self_computation._REPEATED):
            raw = getattr(tf.raw_ops, kind)
            names = list(inspect.signature(raw).parameters)
            takes_bool = kind.startswith("Logical")
            given = tf.cast(x, tf.bool) if takes_bool else x
            attributes = {"DstT": tf.int32} if kind == "Cast" else {}
            arguments = {
                name: given
                for name in names
                if name not in ("name", "Truncate", *attributes)
                and not name.startswith("incompatible")
            }
            if kind == "SelectV2":
                arguments["condition"] = tf.cast(x, tf.bool)
            if kind == "BiasAdd":
                del arguments["data_format"]
                arguments["value"] = tf.ones([2, 1])
                arguments["bias"] = tf.ones([1])
            made = raw(**arguments, **attributes).op
            assert made.type == kind
            assert [a.name for a in made.op_def.input_arg] == list(arguments)
            others = {a.name for a in made.op_def.attr} - {"T", "SrcT"}
            expected = self_computation._ATTRIBUTES.get(kind, ())
            assert others == set(expected), kind

    make_all.get_concrete_function(tf.TensorSpec([]))


def test_batch_normalization_and_counters_of_layers() -> None:
    """Assignments of Keras become one operation each, or hold the lock."""

    class Counting(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.assigned = self.add_weight(
                shape=(), dtype="int32", initializer="zeros", trainable=False
            )
            self.added = self.add_weight(
                shape=(), dtype="int32", initializer="zeros", trainable=False
            )

        def call(self, x: Any) -> Any:
            self.assigned.assign(self.assigned + 1)
            self.added.assign_add(1)
            return x

    def create(**kwargs: Any) -> RemoteVariable:
        initial = kwargs["initial_value"]
        return _guarded(initial() if callable(initial) else initial)

    def build() -> keras.Model:
        model = keras.Sequential(
            [keras.layers.BatchNormalization(), Counting()]
        )
        model.build((None, 4))
        return model

    with tf.variable_creator_scope(lambda _, **kwargs: create(**kwargs)):
        ours = build()
    alone = build()
    batch = tf.constant(_DENSE)

    def call(model: keras.Model) -> Any:
        return tf.function(lambda x: model(x, training=True))

    traced, expected = call(ours), call(alone)
    for _ in range(3):
        traced(batch)
        expected(batch)
    for mine, theirs in zip(
        ours.non_trainable_weights, alone.non_trainable_weights, strict=True
    ):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    types = _types(traced, batch)
    assert types.count("MutexLock") == 2, "the mean and the variance"
    # Only a strategy hooks keras.Variable.assign_add.
    assert types.count("AssignAddVariableOp") == 2


@pytest.mark.parametrize("method", ["assign_add", "assign_sub"])
def test_a_difference_from_a_state_is_added_to_what_it_is_then(
    method: str,
) -> None:
    """Test of `mean.assign_add(rate * (x - mean))` with a step in between."""
    mean = _guarded(np.float32(2.0))
    sign = 1.0 if method == "assign_add" else -1.0

    @tf.function
    def update(x: tf.Tensor) -> None:
        getattr(mean, method)(sign * 0.5 * (x - mean))

    update(tf.constant(6.0))
    assert mean.numpy() == 4.0
    types = _types(update, tf.TensorSpec([], tf.float32))
    assert "MutexLock" in types
    assert "AssignVariableOp" in types


def test_a_weight_goes_down_by_a_gradient_of_its_own() -> None:
    """It is not assigned, so the changes of others stay."""
    weight = testing.remote_variable(_VALUE)
    weight.update_lock = UpdateLock(testing.LOCAL_DEVICE, "descend")
    x = tf.constant(_DENSE)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, weight, transpose_a=True) ** 2)
        weight.assign(weight - 0.01 * tape.gradient(loss, weight))

    types = _types(step)
    assert "AssignVariableOp" not in types
    assert "AssignSubVariableOp" in types
    alone = tf.Variable(_VALUE)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(x, alone, transpose_a=True) ** 2)
    alone.assign_sub(0.01 * tape.gradient(loss, alone))
    step()
    np.testing.assert_allclose(weight.numpy(), alone.numpy(), rtol=1e-6)


def test_a_weight_that_has_changed_since_it_was_read_is_assigned() -> None:
    weight = testing.remote_variable(3.0)
    weight.update_lock = UpdateLock(testing.LOCAL_DEVICE, "descend")

    @tf.function
    def step(x: tf.Tensor) -> None:
        before = weight.read_value()
        weight.assign_add(100.0)
        weight.assign(before - x * tf.linalg.norm([before, 0.0]))

    step(tf.constant(0.5))
    assert weight.numpy() == 1.5


@pytest.mark.sample(cases=36)
@pytest.mark.parametrize("compute", [*_ATOMIC.values(), *_REPEATED.values()])
@pytest.mark.parametrize("argument", [_DENSE, _ROW, _SCALAR])
@pytest.mark.parametrize("trainable", [False, True])
def test_shards_are_assigned_as_the_whole_is(
    compute: Compute, argument: Any, trainable: bool
) -> None:
    """Each shard computes from its own rows, under its lock or atomically."""
    table = testing.sharded_variable(_VALUE, 2)
    table._trainable = trainable
    for index, shard in enumerate(table.variables):
        shard._trainable = trainable
        shard.update_lock = UpdateLock(testing.LOCAL_DEVICE, f"shard_{index}")
    x = tf.constant(argument)

    @tf.function
    def step(x: tf.Tensor) -> None:
        table.assign(compute(table, x))

    expected = tf.function(compute)(tf.constant(_VALUE), x)
    step(x)
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)
    types = _types(step, x)
    assert (
        types.count("MutexLock")
        + types.count("AssignAddVariableOp")
        + types.count("AssignSubVariableOp")
        >= 2
    )
