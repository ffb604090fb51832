import pathlib
import threading
import time
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.per_worker import lane_copies
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates import views


def _counter(dtype: Any = tf.int64) -> MirroredScalar:
    scalar = MirroredScalar(
        testing.LOCAL_DEVICE, dtype, "counter", trainable=False
    )
    scalar.assign(0)
    return scalar


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every call one of the first calls."""
    monkeypatch.setattr(lane_copies, "_FIRST_CALLS", 10**9)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts training under way, with copies that are never too old."""
    monkeypatch.setattr(lane_copies, "_FIRST_CALLS", 0)
    monkeypatch.setattr(lane_copies, "_MAX_AGE_SECONDS", 3600.0)


def _step(counter: MirroredScalar) -> Any:
    @tf.function
    def step() -> tf.Tensor:
        counter.assign_add(1)
        return counter.read_value()

    return step


def test_a_lane_reads_what_it_added(late: None) -> None:
    counter = _counter()
    step = _step(counter)
    with testing.lane(0):
        assert [int(step()) for _ in range(3)] == [1, 2, 3]
    assert int(counter.numpy()) == 3


def test_lanes_count_apart_and_the_sum_is_exact(late: None) -> None:
    counter = _counter()
    step = _step(counter)
    with testing.lane(0):
        step()
    with testing.lane(1):
        # Its copy is new: it begins with the value on the ps.
        assert int(step()) == 2
    with testing.lane(0):
        assert int(step()) == 2
    assert int(counter.numpy()) == 3


def test_lanes_hear_of_each_other(early: None) -> None:
    counter = _counter()
    step = _step(counter)
    for number in range(1, 7):
        with testing.lane(number % 3):
            assert int(step()) == number


def test_no_addition_is_lost_between_lanes() -> None:
    counter = _counter()
    step = _step(counter)

    def run(index: int) -> None:
        with testing.lane(index):
            for _ in range(200):
                step()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(counter.numpy()) == 800


def test_every_number_is_taken_once() -> None:
    counter = _counter()
    taken: list[int] = []

    @tf.function
    def take() -> tf.Tensor:
        return counter.take()

    def run(index: int) -> None:
        with testing.lane(index):
            for _ in range(100):
                taken.append(int(take()))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(400))
    assert int(counter.numpy()) == 400


def test_taking_counts_for_the_lane_too(late: None) -> None:
    counter = _counter()

    @tf.function
    def take_and_read() -> tuple[tf.Tensor, tf.Tensor]:
        return counter.take(), counter.read_value()

    with testing.lane(0):
        assert [tuple(map(int, take_and_read())) for _ in range(2)] == [
            (0, 1),
            (1, 2),
        ]
    assert int(counter.take()) == 2


def test_an_assignment_on_the_chief_reaches_every_lane_at_once(
    late: None,
) -> None:
    rate = MirroredScalar(
        testing.LOCAL_DEVICE, tf.float32, "rate", trainable=False
    )
    rate.assign(0.5)
    read = tf.function(lambda: rate.read_value() * 2)
    for index in (0, 1):
        with testing.lane(index):
            assert float(read()) == 1.0
    rate.assign(0.25)
    for index in (0, 1):
        with testing.lane(index):
            assert float(read()) == 0.5


def test_an_assignment_in_a_step_reaches_other_lanes_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_copies, "_FIRST_CALLS", 0)
    rate = MirroredScalar(
        testing.LOCAL_DEVICE, tf.float32, "rate", trainable=False
    )
    rate.assign(0.5)
    read = tf.function(lambda: rate.read_value())
    halve = tf.function(lambda: rate.assign(0.25))
    with testing.lane(0):
        assert float(read()) == 0.5
    with testing.lane(1):
        halve()
        assert float(read()) == 0.25
    assert float(rate.numpy()) == 0.25
    deadline = time.monotonic() + 10
    with testing.lane(0):
        while float(read()) != 0.25:
            assert time.monotonic() < deadline


def test_a_value_that_shrinks_is_not_held_up(early: None) -> None:
    scalar = _counter()
    scalar.assign(10)
    shrink = tf.function(lambda: scalar.assign_sub(4))
    read = tf.function(lambda: scalar.read_value())
    with testing.lane(0):
        assert int(read()) == 10
    with testing.lane(1):
        shrink()
    with testing.lane(0):
        assert int(read()) == 6


def test_functions_of_the_chief_see_the_exact_value(late: None) -> None:
    counter = _counter()
    step = _step(counter)
    read = tf.function(lambda: counter.read_value())
    assert int(read()) == 0
    with testing.lane(0):
        step()
    assert int(read()) == 1
    assert int(step()) == 2
    assert int(counter.numpy()) == 2


def test_functions_of_the_chief_ask_the_ps_only_for_what_may_have_changed(
    late: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = _counter()
    rate = MirroredScalar(
        testing.LOCAL_DEVICE, tf.float32, "rate", trainable=False
    )
    rate.assign(0.5)

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        number = counter.read_exactly()
        counter.assign_add(1)
        return number, rate.read_value()

    assert [float(value) for value in step()] == [0, 0.5]
    asked = []
    read_resource = tensorflow_variables.read_resource

    def counted(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        asked.append(handle)
        return read_resource(handle, dtype)

    monkeypatch.setattr(tensorflow_variables, "read_resource", counted)
    assert [float(value) for value in step()] == [1, 0.5]
    assert not asked
    # Functions do not miss an assignment of the chief.
    rate.assign(0.25)
    counter.assign(7)
    assert [float(value) for value in step()] == [7, 0.25]


def test_under_a_view_the_value_belongs_to_the_step() -> None:
    counter = _counter()
    view = views.ValueView("counter", tf.constant(7, tf.int64))
    with StepTrace.current().viewing({counter._unique_id: view}):
        assert int(tf.convert_to_tensor(counter) + 1) == 8
        with pytest.raises(errors.UnsupportedError, match="counter"):
            counter.assign_add(1)


def test_a_step_asks_the_ps_for_nothing() -> None:
    """The ps gets one addition; the step reads the copy."""
    counter = _counter()
    graph = _step(counter).get_concrete_function().graph
    captured = graph._function_captures.by_ref_internal
    uses = {
        key[0]: sorted(op.type for op in placeholder.consumers())
        for key, placeholder in captured.items()
    }
    assert uses == {
        "tfps": ["AssignAddVariableOp"],
        "tfps-copy": ["AssignAddVariableOp", "ReadVariableOp"],
        "tfps-tally": ["AssignAddVariableOp"],
    }


def test_a_step_that_asks_the_ps_hears_of_all_at_once(late: None) -> None:
    counter = _counter()

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        before = counter.read_exactly()
        counter.assign_add(1)
        return before, counter.read_value()

    read = tf.function(lambda: counter.read_value())
    for number in range(6):
        with testing.lane(number % 3):
            before, after = step()
            assert [int(before), int(after)] == [number, number + 1]
            # Other functions of this lane read the ps's answer from the copy.
            assert int(read()) == number + 1
    with testing.lane(0):
        assert int(read()) == 4
    assert int(counter.numpy()) == 6


def test_what_a_lane_was_told_does_not_stay_for_ever(early: None) -> None:
    counter = _counter()

    @tf.function
    def step() -> tf.Tensor:
        before = counter.read_exactly()
        counter.assign_add(1)
        return before

    read = tf.function(lambda: counter.read_value())
    for lane in (0, 1):
        with testing.lane(lane):
            step()
    with testing.lane(0):
        assert int(read()) == 2


@pytest.mark.parametrize("nested", [False, True])
def test_reads_around_it_are_in_their_order(late: None, nested: bool) -> None:
    counter = _counter()

    def apply() -> None:
        counter.read_exactly()
        counter.assign_add(1)

    if nested:
        apply = tf.function(apply)

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        before = counter.read_value()
        for _ in tf.range(3):
            apply()
        return before, counter.read_value()

    with testing.lane(0):
        for number in range(0, 60, 3):
            assert [int(n) for n in step()] == [number, number + 3]


def test_a_helper_of_a_step_is_up_to_date_by_itself(early: None) -> None:
    counter = _counter()
    helper = tf.function(lambda: counter.read_value())

    @tf.function
    def step() -> tf.Tensor:
        counter.read_exactly()
        counter.assign_add(1)
        return helper()

    for lane in (0, 1, 1):
        with testing.lane(lane):
            step()
    with testing.lane(0):
        assert int(helper()) == 3


def test_a_step_that_did_not_ask_is_up_to_date_after_a_while(
    late: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_copies, "_MAX_AGE_OF_ASKING_SECONDS", 0.0)
    counter = _counter()

    @tf.function
    def steps(number: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(number):
            counter.read_exactly()
            counter.assign_add(1)
        return counter.read_value()

    for lane in (0, 1):
        with testing.lane(lane):
            steps(tf.constant(3))
    with testing.lane(0):
        assert int(steps(tf.constant(0))) == 6


def test_in_a_branch_nobody_waits_for_the_ps(late: None) -> None:
    counter = _counter()
    found = []

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        def branch() -> tf.Tensor:
            value = counter.read_exactly()
            found.append(value.graph)
            return value

        return tf.cond(x > 0, branch, lambda: tf.constant(-1, tf.int64))

    with testing.lane(0):
        assert int(step(tf.constant(1))) == 0
    (graph,) = found
    keys = {
        key[0] for key in graph.outer_graph._function_captures.by_ref_internal
    }
    assert keys == {"tfps-copy"}


def test_what_a_program_adds_by_assigning_is_added(late: None) -> None:
    counter = _counter()

    @tf.function
    def step() -> None:
        counter.assign(counter + 1)

    @tf.function
    def back() -> None:
        counter.assign(counter - 2)

    for _ in range(5):
        for lane in (0, 1):
            with testing.lane(lane):
                step()
    assert int(counter.numpy()) == 10
    with testing.lane(0):
        back()
    assert int(counter.numpy()) == 8


def test_what_shrinks_by_additions_is_not_held_up(early: None) -> None:
    counter = _counter()
    add = tf.function(lambda x: counter.assign_add(x))
    read = tf.function(lambda: counter.read_value())
    with testing.lane(0):
        add(tf.constant(7, tf.int64))
        assert int(read()) == 7
    with testing.lane(1):
        add(tf.constant(-5, tf.int64))
    with testing.lane(0):
        assert int(read()) == 2


def test_a_lane_hears_of_what_a_function_of_the_chief_changes() -> None:
    rate = MirroredScalar(
        testing.LOCAL_DEVICE, tf.float32, "rate", trainable=False
    )
    rate.assign(0.1)
    read = tf.function(lambda: rate.read_value())
    change = tf.function(lambda: rate.assign(0.5))
    with testing.lane(0):
        assert float(read()) == pytest.approx(0.1)
    change()
    with testing.lane(0):
        assert float(read()) == 0.5


@pytest.mark.parametrize("traced", [True, False])
def test_a_checkpoint_restores_the_exact_value_and_all_copies(
    late: None, tmp_path: pathlib.Path, traced: bool
) -> None:
    counter = _counter()
    step = _step(counter)
    with testing.lane(0):
        for _ in range(7):
            step()
    path = tf.train.Checkpoint(counter=counter).save(tmp_path / "checkpoint")
    with testing.lane(0):
        step()

    def restore() -> None:
        # TensorFlow restores in a function if several tasks are involved.
        tensors = {"VARIABLE_VALUE": tf.constant(7, tf.int64)}
        counter._restore_from_tensors(tensors)

    if traced:
        tf.function(restore)()
    else:
        tf.train.Checkpoint(counter=counter).restore(path)
    assert int(counter.numpy()) == 7
    with testing.lane(0):
        assert int(step()) == 8


@pytest.mark.parametrize("late_lane", [0, 1])
def test_after_a_loss_the_copy_of_the_latest_step_counts(
    late: None, late_lane: int
) -> None:
    """The value may have fallen since another lane's only step."""
    scalar = MirroredScalar(
        testing.LOCAL_DEVICE, tf.float64, "potential", trainable=False
    )
    scalar.outlives_ps = True
    scalar.assign(0.0)

    @tf.function
    def step(value: tf.Tensor, number: tf.Tensor) -> None:
        scalar.assign(value)
        scalar.note_step(number)

    def run(lane: int, value: float, number: int) -> None:
        with testing.lane(lane):
            step(
                tf.constant(value, tf.float64), tf.constant(number, tf.float64)
            )

    run(1 - late_lane, 1.0, 1)
    run(late_lane, 0.5, 2)
    run(late_lane, 0.01, 3)
    # Reads do not count, nor do lanes that have not set it in any step.
    read = tf.function(lambda: scalar.read_value())
    for lane in (1 - late_lane, 2):
        with testing.lane(lane):
            read()
    newest = scalar.newest_copy()
    assert newest is not None
    assert float(newest) == 0.01
    # As if an earlier checkpoint had been restored.
    scalar._change("assign", tf.raw_ops.AssignVariableOp, 0.7)
    scalar.catch_up(newest)
    assert float(scalar.numpy()) == 0.01
    assert scalar.newest_copy() is None


def test_without_steps_the_copy_that_was_made_last_counts(late: None) -> None:
    scalar = MirroredScalar(
        testing.LOCAL_DEVICE, tf.float64, "potential", trainable=False
    )
    scalar.outlives_ps = True
    read = tf.function(lambda: scalar.read_value())
    for lane, value in enumerate((3.0, 1.0, 2.0)):
        # As another lane's step does, which this lane's copy does not see.
        tf.raw_ops.AssignVariableOp(
            resource=scalar.own_handle, value=tf.constant(value, tf.float64)
        )
        with testing.lane(lane):
            assert float(read()) == value
    newest = scalar.newest_copy()
    assert newest is not None
    assert float(newest) == 2.0
