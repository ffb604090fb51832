"""Tests of the referee and an applier together, in this process."""

import threading
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.synchronous.backup.referee import LEFT
from tfps_plugin.training.synchronous.backup.refereed_applier import (
    RefereedApplier,
)
from tfps_plugin.training.synchronous.global_step import GlobalStep
from tfps_plugin.training.synchronous.sums import example_weights
from tfps_plugin.variables import testing

_WORKERS = 3
_SECONDS = 20.0


class _Plain:
    """Stands for an optimizer: subtracts gradients."""

    name = "plain"
    variables: Sequence[Any] = ()
    global_clipnorm = clipnorm = None


def _on_ps(value: Any) -> keras.Variable:
    def create(next_creator: Any, **kwargs: Any) -> Any:
        del next_creator, kwargs
        return testing.remote_variable(value)

    with tf.variable_creator_scope(create):
        return keras.Variable(value)


class _Bench:
    """A ps, the referee, and workers that the test moves by hand.

    Attributes:
        weight: A weight; each gradient is the number that its worker sends.
        results: What the applier and the referee have returned, by their name.
    """

    def __init__(self, num_backup: int) -> None:
        self.weight = _on_ps(np.zeros([1], "float32"))
        self.state = testing.remote_variable(np.float32(7.0))
        self.step = GlobalStep([testing.LOCAL_DEVICE], _WORKERS, num_backup)
        optimizer = _Plain()

        def train(batch: tf.Tensor) -> None:
            self.step.assign(self.state, "assign", tf.reduce_mean(batch))
            self.step.push(
                optimizer, [tf.reduce_mean(batch, keepdims=True)], [self.weight]
            )

        self._make = tf.function(
            lambda data: self.step.traced(train, data), autograph=False
        ).get_concrete_function(tf.TensorSpec([None], tf.float32))
        referee = self.step.referee
        assert referee is not None
        self.applier = _Applier(self.step, 0, referee)
        self._decide = referee.function
        self._threads: list[threading.Thread] = []
        self.results: dict[str, Any] = {}

    def begin(self, num_steps: int, members: Sequence[int] = (0, 1, 2)) -> None:
        """Begins the calls of the ps and of the chief."""
        arguments = (
            tf.constant(0, tf.int64),
            tf.constant(num_steps, tf.int64),
            tf.constant([worker in members for worker in range(_WORKERS)]),
        )

        def run(name: str, function: Any, *more: Any) -> None:
            self.results[name] = function(*arguments, *more)

        self._threads = [
            threading.Thread(
                target=run, args=("applier", self.applier.function, [])
            ),
            threading.Thread(target=run, args=("referee", self._decide)),
        ]
        for thread in self._threads:
            thread.start()

    def make(self, worker: int, *values: float) -> None:
        """Makes a step of a worker, which waits for its token."""

        def run() -> None:
            with testing.lane(worker):
                self._make(tf.constant(values))

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()
        thread.join(_SECONDS)
        assert not thread.is_alive(), "The token has not come."

    def nothing(self) -> list[Any]:
        """Returns the parcel of a worker that leaves."""
        return [LEFT, 0.0, np.zeros([1], "float32"), np.float32(0.0)]

    def end(self) -> tuple[int, list[int], int]:
        """Returns the numbers of steps, of parts, and of examples."""
        for thread in self._threads:
            thread.join(_SECONDS)
            assert not thread.is_alive()
        number, parts, examples = self.results["applier"]
        assert int(self.results["referee"]) == int(number)
        return int(number), parts.numpy().tolist(), int(examples)

    def reset(self) -> None:
        """Replaces the queues, and sets variables to their first values."""
        self.step.renew_queues(0)
        self.weight.value.assign([0.0])
        self.state.assign(7.0)
        self.results = {}
        self._threads = []

    def close(self) -> None:
        """Ends the calls that still run, if a test has failed."""
        self.step.close_queues(0)
        for thread in self._threads:
            thread.join(_SECONDS)


class _Applier(RefereedApplier):
    """Subtracts means: Keras's optimizers need a strategy."""

    def _update(self, trace: Any, own: Any, total: Any) -> list[tf.Operation]:
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        mean, state = (
            tensor
            / example_weights.of(
                tf.maximum(total.num_examples, 1.0), tf.float32
            )
            for tensor in total.tensors
        )

        def run(
            optimizer: Any, gradients: Any, variables: Any, finite: Any
        ) -> None:
            del optimizer, finite
            variables[0].value.assign_sub(gradients[0])

        self._layout.apply(
            [mean, state], run, total.num_examples > 0, self._is_empty(total)
        )
        return [
            operation
            for operation in graph.get_operations()[before:]
            if operation.type != "Placeholder"
        ]


@pytest.fixture(scope="module")
def benches() -> dict[int, _Bench]:
    """Returns benches by their number of backup workers; tracing takes long."""
    return {}


@pytest.fixture
def bench(
    request: pytest.FixtureRequest, benches: dict[int, _Bench]
) -> Iterator[_Bench]:
    num_backup = getattr(request, "param", 1)
    if num_backup not in benches:
        benches[num_backup] = _Bench(num_backup)
    bench = benches[num_backup]
    bench.reset()
    yield bench
    bench.close()


def _value(bench: _Bench) -> float:
    return float(bench.weight.value.read_value()[0])


def test_the_first_to_arrive_count(bench: _Bench) -> None:
    bench.begin(2)
    bench.make(2, 1.0)
    bench.make(0, 2.0, 6.0)
    # The step is over: their next tokens have come.
    bench.make(0, 10.0)
    # Late, with the token of the first step.
    bench.make(1, 1000.0)
    bench.make(2, 20.0)
    assert bench.end() == (2, [2, 0, 2], 5)
    assert _value(bench) == pytest.approx(-(9 / 3 + 30 / 2))


def test_who_is_late_takes_part_in_the_next_step(bench: _Bench) -> None:
    bench.begin(3)
    bench.make(0, 1.0)
    bench.make(2, 1.0)
    bench.make(1, 1000.0)
    bench.make(0, 4.0)
    bench.make(2, 4.0)
    # It has been late for the first, and left out the second.
    bench.make(1, 8.0)
    bench.make(0, 16.0)
    assert bench.end() == (3, [3, 1, 2], 6)
    assert _value(bench) == pytest.approx(-(1.0 + 4.0 + 12.0))


def test_who_is_late_ends_by_a_token_of_its_own(bench: _Bench) -> None:
    bench.begin(3)
    for _ in range(3):
        bench.make(0, 1.0)
        bench.make(2, 1.0)
    assert bench.end() == (3, [3, 0, 3], 6)
    assert _sizes(bench, bench.step.tokens[0]) == [0, 2, 0]
    # It does not wait: the first token is that of the first step.
    bench.make(1, 1000.0)
    bench.make(1, 1000.0)
    stamps = [_mail(bench, 1)[0] for _ in range(2)]
    assert stamps == [0, 3]
    assert _sizes(bench, bench.step.tokens[0]) == [0, 0, 0]


def test_what_came_too_late_is_taken_out_at_the_end(bench: _Bench) -> None:
    bench.begin(2)
    for _ in range(2):
        bench.make(0, 1.0)
        bench.make(2, 1.0)
    bench.end()
    bench.make(1, 1000.0)
    bench.make(1, 1000.0)
    queues = [bench.step.mailboxes[0], bench.step.referee.arrivals]  # type: ignore[union-attr]
    assert [_sizes(bench, each) for each in queues] == [[0, 2, 0], [2]]
    bench.applier.empty()
    assert [_sizes(bench, each) for each in queues] == [[0, 0, 0], [0]]
    # The queues can be used again.
    bench.begin(1)
    bench.make(1, 3.0)
    bench.make(2, 3.0)
    assert bench.end() == (1, [0, 1, 1], 2)
    assert _value(bench) == pytest.approx(-(1.0 + 1.0 + 3.0))


def test_a_mailbox_holds_few_parcels_that_do_not_count(bench: _Bench) -> None:
    bench.begin(9)
    most = 0
    for _ in range(4):
        for _ in range(2):
            bench.make(0, 1.0)
            bench.make(2, 1.0)
        bench.make(1, 1000.0)
        most = max(most, *_sizes(bench, bench.step.mailboxes[0]))
    bench.make(0, 1.0)
    bench.make(2, 1.0)
    assert bench.end() == (9, [9, 0, 9], 18)
    assert most <= 2


def test_a_step_goes_on_without_who_leaves(bench: _Bench) -> None:
    bench.begin(2)
    bench.step.leave(2, 0)
    # One of two is enough.
    bench.make(1, 5.0)
    bench.make(1, 5.0)
    assert bench.end() == (2, [0, 2, 0], 2)


def test_who_leaves_after_it_has_sent_its_parcel_counts(bench: _Bench) -> None:
    bench.begin(2)
    bench.make(2, 5.0)
    bench.step.leave(2, 0)
    # This step has three parts, the next one has two.
    bench.make(1, 7.0)
    bench.make(1, 1.0)
    assert bench.end() == (2, [0, 2, 1], 3)
    assert _value(bench) == pytest.approx(-(6.0 + 1.0))


def test_the_late_help_out_when_the_others_have_left(bench: _Bench) -> None:
    bench.begin(3)
    bench.make(0, 1.0)
    bench.make(2, 1.0)
    bench.make(1, 1000.0)
    # It waits for the token of the third step. Nobody makes the second.
    bench.step.leave(0, 0)
    bench.step.leave(2, 0)
    bench.make(1, 3.0)
    bench.make(1, 4.0)
    assert bench.end() == (3, [1, 2, 1], 4)
    assert _value(bench) == pytest.approx(-(1.0 + 3.0 + 4.0))


def test_it_is_over_when_all_have_left(bench: _Bench) -> None:
    bench.begin(5)
    bench.make(0, 1.0)
    bench.make(2, 3.0)
    for worker in range(_WORKERS):
        bench.step.leave(worker, 0)
    assert bench.end() == (1, [1, 0, 1], 2)


def test_members_alone_are_waited_for(bench: _Bench) -> None:
    bench.begin(2, members=(1,))
    bench.make(1, 1.0)
    bench.make(1, 1.0)
    assert bench.end() == (2, [0, 2, 0], 2)


def _arrive(bench: _Bench, worker: int, stamp: int) -> None:
    referee = bench.step.referee
    assert referee is not None
    referee.arrivals.put_now(0, [worker, stamp])


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_a_ps_that_gets_no_parcel_changes_nothing_in_a_step(
    bench: _Bench,
) -> None:
    """Others have got that of the worker that was lost meanwhile."""
    bench.begin(2)
    _arrive(bench, 1, 0)
    bench.step.leave(1, 0)
    bench.make(0, 1.0)
    bench.make(0, 2.0)
    assert bench.end() == (2, [1, 0, 0], 1)
    assert _value(bench) == pytest.approx(-2.0)


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_a_variable_keeps_its_value_in_a_step_without_parcels(
    bench: _Bench,
) -> None:
    bench.begin(1)
    _arrive(bench, 1, 0)
    bench.step.leave(1, 0)
    assert bench.end() == (1, [0, 0, 0], 0)
    assert float(bench.state.read_value()) == 7.0


def test_who_has_left_while_it_was_late_is_not_waited_for(
    bench: _Bench,
) -> None:
    """It is lost, and says that it goes on all the same."""
    bench.begin(3)
    bench.make(0, 1.0)
    bench.make(2, 1.0)
    bench.make(1, 1000.0)
    # To the ps, but not yet to the referee.
    bench.step.mailboxes[0].put_now(1, bench.nothing())
    bench.make(0, 1.0)
    bench.make(2, 1.0)
    _arrive(bench, 1, 2)
    bench.make(0, 5.0)
    assert bench.end() == (3, [3, 0, 2], 5)


def _sizes(bench: _Bench, queues: Any) -> list[int]:
    del bench
    number = queues._number

    @tf.function(autograph=False)
    def sizes() -> list[tf.Tensor]:
        return [queues.size(n) for n in range(number)]

    return [int(size) for size in sizes()]


def _mail(bench: _Bench, worker: int) -> list[Any]:
    @tf.function(autograph=False)
    def take() -> list[tf.Tensor]:
        return bench.step.mailboxes[0].take(worker)

    return [tensor.numpy() for tensor in take()]
