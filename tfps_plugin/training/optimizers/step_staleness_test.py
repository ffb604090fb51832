"""Tests of the staleness of updates, with steps that are held up."""

import threading
import types
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.monitoring.staleness import Staleness
from tfps_plugin.strategy import updates
from tfps_plugin.strategy.consistency import Async
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.training.optimizers import step_staleness
from tfps_plugin.training.optimizers import update_counts
from tfps_plugin.training.optimizers.step import OptimizerStep
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.sharding.inventory import Inventory
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates.update_lock import UpdateLock
from tfps_plugin.variables.updates.update_lock import UpdateLocks

_RATE = 0.25
_RANDOM = np.random.default_rng(0)
_TABLE = _RANDOM.normal(size=(5, 3)).astype("float32")
_WEIGHT = _RANDOM.normal(size=(3,)).astype("float32")
_PATIENCE_SECONDS = 20.0


def _sgd() -> Any:
    return keras.optimizers.SGD(_RATE)


class _Gate:
    """Holds up the one step that is given True, until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def passing(self, gradient: tf.Tensor, is_held: tf.Tensor) -> tf.Tensor:
        def wait(value: np.ndarray, is_held: np.ndarray) -> np.ndarray:
            if is_held:
                self.reached.set()
                assert self.opened.wait(_PATIENCE_SECONDS)
            return value

        passed = tf.numpy_function(wait, [gradient, is_held], gradient.dtype)
        passed.set_shape(gradient.shape)
        return passed


class _Training:
    """Variables of two locks, and steps that update them.

    Steps are given their gradients, or compute those of half the square.
    """

    def __init__(
        self,
        optimizer: Callable[[], Any],
        consistency: Any,
        *,
        by_rows: bool = False,
        in_fit: bool = True,
        form: str = "lazy",
    ) -> None:
        self.gate = _Gate()
        self._in_fit = in_fit
        self._by_rows = by_rows
        locks = [
            UpdateLock(testing.LOCAL_DEVICE, f"step_staleness_test/{number}")
            for number in range(2)
        ]
        made: list[Any] = []

        def create(next_creator: Any, **kwargs: Any) -> Any:
            value = kwargs["initial_value"]
            value = tf.convert_to_tensor(value() if callable(value) else value)
            if value.shape.rank == 0:
                scalar = MirroredScalar(
                    testing.LOCAL_DEVICE, value.dtype, "scalar"
                )
                scalar.assign(value)
                return scalar
            made.append(testing.remote_variable(value))
            return made[-1]

        with tf.variable_creator_scope(create):
            self.variables = [
                keras.Variable(_TABLE, name="table"),
                keras.Variable(_WEIGHT, name="weight"),
            ]
            self.optimizer = optimizer()
            self.optimizer.build(self.variables)
        for variable, lock in zip(self.variables, locks, strict=True):
            for each in made:
                if each.shape == variable.shape:
                    each.update_lock = lock
                    if each is not variable.value:
                        variable.value.join_family(each)
        self.optimizer._distribution_strategy = types.SimpleNamespace(
            sparse_update=form,
            consistency=consistency,
            extended=types.SimpleNamespace(update=_update),
            inventory=Inventory(UpdateLocks()),
        )
        self._step = tf.function(self._traced)

    def _traced(self, given: Any, is_held: tf.Tensor) -> None:
        trace = StepTrace.current()
        trace.chief_waits = self._in_fit
        weights = [v.value.read_value() for v in self.variables]
        if given is None:
            given = weights
        # Whatever the gradients are, the step has read its weights before.
        with tf.control_dependencies(weights):
            gradients = [self.gate.passing(g, is_held) for g in given]
        if self._by_rows:
            gradients[0] = _rows(gradients[0])
        OptimizerStep(self.optimizer, self.variables, trace).run(gradients)
        _reach_gates_last(gradients[1].graph)

    def step(self, gradients: Any = None, *, is_held: bool = False) -> None:
        self._step(gradients, tf.constant(is_held))

    def steps(self, gradients: Sequence[Any]) -> None:
        """Makes some steps, one after another."""
        for each in gradients:
            self.step(each)

    def held_step(self, gradients: Any, others: Sequence[Any]) -> None:
        """Makes a step, between whose reads and update others come."""
        # Traced on this thread.
        errors_of_thread: list[BaseException] = []

        def run() -> None:
            try:
                self.step(gradients, is_held=True)
            except BaseException as error:
                errors_of_thread.append(error)

        self._step.get_concrete_function(gradients, tf.constant(True))
        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert self.gate.reached.wait(_PATIENCE_SECONDS)
            self.steps(others)
        finally:
            self.gate.opened.set()
            thread.join(_PATIENCE_SECONDS)
        assert not errors_of_thread

    def taken(self) -> Staleness:
        return update_counts.of(self.optimizer).take()


def _reach_gates_last(graph: tf.Graph) -> None:
    """Lets a step read the number of steps and the like before its gates.

    Otherwise, it may read them when the other steps have already counted.
    """
    gates = [one for one in graph.get_operations() if one.type == "PyFunc"]
    later = set(gates)
    for one in graph.get_operations():
        earlier = [given.op for given in one.inputs] + one.control_inputs
        if not later.isdisjoint(earlier):
            later.add(one)
    reads = [
        one
        for one in graph.get_operations()
        if one not in later
        and any(given.dtype == tf.resource for given in one.inputs)
    ]
    for gate in gates:
        tensorflow_variables.run_after(gate, reads)


def _update(variable: Any, fn: Any, args: Any = (), **options: Any) -> Any:
    return updates.update(variable, fn, args, {}, exact=True)


def _rows(value: tf.Tensor) -> tf.IndexedSlices:
    """Returns the same gradient by rows, one of them in two parts."""
    ids = tf.constant([3, 1, 0, 3, 2, 4])
    halves = tf.constant([[0.5], [1.0], [1.0], [0.5], [1.0], [1.0]])
    return tf.IndexedSlices(
        tf.gather(value, ids) * halves, ids, tf.constant([5, 3])
    )


def _gradients(number: int) -> list[list[tf.Tensor]]:
    return [
        [
            tf.constant(_RANDOM.normal(size=v.shape).astype("float32"))
            for v in (_TABLE, _WEIGHT)
        ]
        for _ in range(number)
    ]


_SCALING = Async(staleness_scaling=True)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("num_others", [0, 1, 2, 5])
def test_a_step_is_divided_by_the_updates_that_came_between(
    num_others: int, by_rows: bool
) -> None:
    training = _Training(_sgd, _SCALING, by_rows=by_rows)

    training.held_step(None, [None] * num_others)
    # The gradient of half the square is the weight.
    for variable, start in zip(
        training.variables, (_TABLE, _WEIGHT), strict=True
    ):
        expected = start.astype("float64") * (1 - _RATE) ** num_others
        expected -= _RATE / max(1, num_others) * start
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)
    assert training.taken() == Staleness.of([0] * num_others + [num_others])


def test_without_scaling_it_is_only_measured() -> None:
    training = _Training(_sgd, Async())
    training.held_step(None, [None] * 3)
    for variable, start in zip(
        training.variables, (_TABLE, _WEIGHT), strict=True
    ):
        expected = start * ((1 - _RATE) ** 3 - _RATE)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5)
    assert training.taken() == Staleness.of([0, 0, 0, 3])
    assert training.taken() == Staleness()


_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: keras.optimizers.SGD(_RATE, 0.9, nesterov=True),
    "SGD decay": lambda: keras.optimizers.SGD(_RATE, weight_decay=0.1),
    "Adam": lambda: keras.optimizers.Adam(_RATE, amsgrad=True),
    "AdamW": lambda: keras.optimizers.AdamW(_RATE, weight_decay=0.1),
    "Adamax": lambda: keras.optimizers.Adamax(_RATE),
    "Adagrad": lambda: keras.optimizers.Adagrad(_RATE),
    "Adadelta": lambda: keras.optimizers.Adadelta(_RATE),
    "RMSprop": lambda: keras.optimizers.RMSprop(
        _RATE, momentum=0.5, centered=True
    ),
    "Nadam": lambda: keras.optimizers.Nadam(_RATE),
    "Lion": lambda: keras.optimizers.Lion(_RATE),
    "Lamb": lambda: keras.optimizers.Lamb(_RATE),
    "clipping, averages": lambda: keras.optimizers.SGD(
        _RATE, global_clipnorm=0.5, use_ema=True, ema_momentum=0.5
    ),
}


# Nadam's product is that of the steps in the order in which they began.
@pytest.mark.parametrize("form", ["dense", "lazy", "exact"])
@pytest.mark.parametrize("name", [n for n in _OPTIMIZERS if n != "Nadam"])
@pytest.mark.sample(cases=8)
def test_every_optimizer_updates_as_with_the_divided_rate(
    name: str, form: str
) -> None:
    if name == "Lamb" and form == "lazy":
        pytest.skip("Lamb needs whole matrices")
    training = _Training(
        _OPTIMIZERS[name],
        _SCALING,
        by_rows=form != "dense",
        form="exact" if form == "exact" else "lazy",
    )
    held, *others = _gradients(4)
    training.held_step(held, others)
    optimizer = _OPTIMIZERS[name]()
    variables = [keras.Variable(_TABLE), keras.Variable(_WEIGHT)]
    optimizer.build(variables)
    # The step that is held up has read its number before, but counts later.
    for gradients in others:
        optimizer.apply(gradients, variables)
    optimizer.iterations.assign(0)
    optimizer.learning_rate.assign(_RATE / 3)
    optimizer.apply(held, variables)
    optimizer.iterations.assign(4)
    for mine, theirs in zip(
        [*training.variables, *training.optimizer.variables],
        [*variables, *optimizer.variables],
        strict=True,
    ):
        if theirs is optimizer.learning_rate:
            continue
        np.testing.assert_allclose(
            mine.numpy(), theirs.numpy(), rtol=2e-5, atol=1e-6
        )


@pytest.mark.parametrize("name", _OPTIMIZERS)
@pytest.mark.sample(cases=3)
def test_steps_one_after_another_have_the_numbers_without_it(
    name: str,
) -> None:
    values = []
    given = _gradients(3)
    for consistency in (Async(), _SCALING):
        training = _Training(_OPTIMIZERS[name], consistency, by_rows=True)
        training.steps(given)
        values.append([v.numpy() for v in training.variables])
        assert training.taken() == Staleness.of([0] * 3)
    for without, with_it in zip(*values, strict=True):
        np.testing.assert_array_equal(with_it, without)


def test_a_schedule_is_divided_too() -> None:
    def optimizer() -> Any:
        return keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(_RATE, 2, 0.5)
        )

    training = _Training(optimizer, _SCALING)
    training.held_step(None, [None] * 2)
    # The step that is held up has read its number before, but counts later.
    weight = _WEIGHT.astype("float64")
    for step in (0, 1):
        weight = weight * (1 - _RATE * 0.5 ** (step / 2))
    weight -= _RATE / 2 * _WEIGHT
    np.testing.assert_allclose(training.variables[1].numpy(), weight, rtol=1e-5)


@pytest.mark.parametrize(
    ("consistency", "in_fit"), [(Sync(), True), (Async(), False)]
)
def test_where_nobody_asks_nothing_is_counted(
    consistency: Any, in_fit: bool
) -> None:
    training = _Training(_sgd, consistency, in_fit=in_fit)
    training.step()
    assert not update_counts.of(training.optimizer).variables
    assert training.taken() == Staleness()


def test_a_custom_loop_scales_and_measures_nothing() -> None:
    training = _Training(_sgd, _SCALING, in_fit=False)
    training.held_step(None, [None] * 2)
    np.testing.assert_allclose(
        training.variables[1].numpy(),
        _WEIGHT * ((1 - _RATE) ** 2 - _RATE / 2),
        rtol=1e-5,
    )
    assert training.taken() == Staleness()


def test_a_step_that_updates_twice_does_not_wait_for_itself() -> None:
    training = _Training(_sgd, _SCALING)

    @tf.function
    def twice() -> None:
        trace = StepTrace.current()
        trace.chief_waits = True
        for _ in range(3):
            gradients = [v.value.read_value() for v in training.variables]
            OptimizerStep(training.optimizer, training.variables, trace).run(
                gradients
            )

    twice()
    assert training.taken() == Staleness.of([0, 0, 0])
    np.testing.assert_allclose(
        training.variables[1].numpy(), _WEIGHT * (1 - _RATE) ** 3, rtol=1e-5
    )


class _OwnRate(keras.optimizers.Optimizer):
    """Optimizer that ignores the learning rate that it is given."""

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> None:
        variable.assign_sub(gradient * 0.1)


def test_an_optimizer_that_ignores_its_learning_rate_is_refused() -> None:
    training = _Training(lambda: _OwnRate(_RATE), _SCALING)
    with pytest.raises(
        errors.UnsupportedError,
        match=r"does not use it.*variable='table'.*_OwnRate\.update_step",
    ):
        training.step()


def test_updates_in_a_branch_are_refused() -> None:
    training = _Training(_sgd, _SCALING)

    @tf.function
    def step(is_due: tf.Tensor) -> None:
        def update() -> tf.Tensor:
            gradients = [v.value.read_value() for v in training.variables]
            OptimizerStep(
                training.optimizer, training.variables, StepTrace.current()
            ).run(gradients)
            return tf.constant(0)

        tf.cond(is_due, update, lambda: tf.constant(0))

    with pytest.raises(errors.UnsupportedError, match=r"outside of tf\.cond"):
        step(tf.constant(True))


class _OwnDecay(keras.optimizers.SGD):
    def _apply_weight_decay(self, variables: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (lambda: keras.optimizers.Ftrl(), "must not change"),
        (lambda: keras.optimizers.Adafactor(), "limits the learning rate"),
        (
            lambda: keras.optimizers.Adam(gradient_accumulation_steps=3),
            "gradient_accumulation_steps=3",
        ),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            "decides in each step",
        ),
        (lambda: _OwnDecay(weight_decay=0.1), "decays weights in its own way"),
    ],
)
def test_optimizers_that_cannot_be_scaled_are_refused_by_name(
    optimizer: Callable[[], Any], reason: str
) -> None:
    made = optimizer()
    for consistency in (Async(), Sync(), None):
        made._distribution_strategy = types.SimpleNamespace(
            consistency=consistency
        )
        step_staleness.require_supported(made)
    made._distribution_strategy = types.SimpleNamespace(consistency=_SCALING)
    with pytest.raises(errors.UnsupportedError, match=reason) as refused:
        step_staleness.require_supported(made)
    assert f"optimizer={type(made).__name__}" in str(refused.value)


def test_copies_of_an_optimizer_count_for_themselves() -> None:
    counts = update_counts.UpdateCounts()
    make, arguments = counts.__reduce__()
    assert isinstance(make(*arguments), update_counts.UpdateCounts)
    assert make(*arguments) is not counts
