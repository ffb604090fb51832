"""Tests of rounds of local steps of two workers, of which one is lost.

Weights count how often the gradients of each batch were applied, on each
parameter server.
"""

import signal
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import pytest
import shared_cluster
import shared_counting
import tensorflow as tf
from shared_gate import Gate
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin.monitoring import events

# Each test loses a worker, and takes long.
pytestmark = pytest.mark.sample(cases=2, group="faults_local_steps")

_WORKERS, _PS = 2, 2
_LOCAL = 4
# Each of one example; half of them are the share of a worker.
_BATCHES = 24
_SHARE = _BATCHES // _WORKERS
# In the second round of the first worker, or of all batches.
_HELD = 5
_HELD_ROUND = slice(_LOCAL, 2 * _LOCAL)
_PATIENCE_SECONDS = 2.0


@pytest.fixture(scope="module")
def living_cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=_WORKERS, num_ps=_PS) as cluster:
        yield cluster


@pytest.fixture
def cluster(living_cluster: tfps.LocalCluster) -> tfps.LocalCluster:
    """Returns the cluster of the module, with all its tasks."""
    return shared_cluster.with_all_tasks(living_cluster)


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    """Yields a strategy; a call of a worker has one round."""
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(_PS),
        consistency=tfps.Async(local_steps=_LOCAL),
        scheduling=tfps.SchedulingOptions(
            max_closures_in_flight_per_worker=1, steps_per_closure=_LOCAL
        ),
    )
    tfps.ClusterCoordinator(strategy, patience_seconds=_PATIENCE_SECONDS)
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


class _Counting(NamedTuple):
    """A model whose weights count.

    Attributes:
        model: The model.
        held_on: Number of steps that each worker had to hold up.
    """

    model: keras.Model
    held_on: Any

    def holder(self) -> int:
        """Returns the index of the worker that holds up a step."""
        (index,) = np.flatnonzero([int(n) for n in self.held_on.read_all()])
        return int(index)

    def counts(self) -> np.ndarray:
        """Returns how often each batch was applied, by ps and batch."""
        weights = keras.ops.convert_to_numpy(self.model.layers[0].weight)
        return weights.reshape(_PS, _BATCHES)


def _counting(strategy: tfps.ParameterServerStrategy, gate: Gate) -> _Counting:
    """Returns a model with a weight for each batch on each ps."""
    with strategy.scope():
        held_on = tf.Variable(0, per_worker_variable=True)

        def loss(target: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
            is_held = tf.reduce_any(target > 0)
            held_on.assign_add(tf.cast(is_held, tf.int32))
            with tf.control_dependencies([predicted]):
                passing = gate.passing(is_held)
            with tf.control_dependencies([passing]):
                predicted = tf.identity(predicted)
            # The gradient has to wait, too.
            one = tf.cast(tf.reduce_min(predicted) >= 0, tf.float32)
            return -tf.reduce_sum(predicted * one, axis=-1)

        model = keras.Sequential(
            [keras.Input((_PS * _BATCHES,)), shared_counting.Weighing()]
        )
        model.compile(keras.optimizers.SGD(1.0), loss)
        model.optimizer.build(model.trainable_variables)
    return _Counting(model, held_on)


def _rows(is_held: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns all batches: those that count, and whether they are held up."""
    targets = np.zeros((_BATCHES, 1), "float32")
    targets[_HELD] = is_held
    return np.tile(np.eye(_BATCHES, dtype="float32"), _PS), targets


def _of_the_chief(*, is_held: bool) -> dict[str, Any]:
    x, y = _rows(is_held)
    return {"x": x, "y": y, "batch_size": 1, "shuffle": False}


def _of_workers(*, is_held: bool) -> dict[str, Any]:
    rows = _rows(is_held)

    def dataset_fn(context: Any) -> tf.data.Dataset:
        begin = context.input_pipeline_id * _SHARE
        own = tuple(part[begin : begin + _SHARE] for part in rows)
        return tf.data.Dataset.from_tensor_slices(own).batch(1)

    return {"x": tfps.DatasetCreator(dataset_fn)}


class _Kill:
    """A worker that is killed, and comes back after training."""

    # How often its round may be applied late.
    most_late = 0
    # Whether its call may end before it is made again.
    may_be_in_time = False

    def __init__(
        self, cluster: tfps.LocalCluster, gate: Gate, seen: Seen
    ) -> None:
        self.cluster = cluster
        self.gate = gate
        self.seen = seen

    def happen(self, worker: int) -> None:
        self.worker = worker
        self.cluster.kill("worker", worker)

    def end(self) -> None:
        self.cluster.start("worker", self.worker, wait=True)


class _Stop(_Kill):
    """A worker that hangs, is given up, and goes on after training."""

    most_late = 1

    def happen(self, worker: int) -> None:
        self.process = self.cluster.process("worker", worker)
        self.process.send_signal(signal.SIGSTOP)
        # Its round goes on with the process.
        self.gate.open()

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class _StopForAWhile(_Stop):
    """A worker that hangs, and goes on as soon as it is given up."""

    may_be_in_time = True

    def happen(self, worker: int) -> None:
        self.seen.on_event = self._go_on
        super().happen(worker)

    def _go_on(self, event: events.Event) -> None:
        if isinstance(event, events.WorkerLost):
            super().end()


@pytest.mark.parametrize("loss", [_Kill, _Stop, _StopForAWhile])
@pytest.mark.parametrize("source", [_of_the_chief, _of_workers])
def test_another_worker_makes_the_round_of_a_lost_one(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gate: Gate,
    source: Callable[..., dict[str, Any]],
    loss: type[_Kill],
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    seen = Seen(coordinator)
    counting = _counting(strategy, gate)
    model = counting.model
    how = loss(cluster, gate, seen)

    def lose() -> None:
        gate.let_others_pass()
        how.happen(counting.holder())

    gate.once_reached(lose)
    model.fit(**source(is_held=True), verbose=0)
    gate.assert_acted()
    seen.wait_for(events.WorkerLost)
    expected = np.ones((_PS, _BATCHES), int)
    if source is _of_workers:
        # What was read of the share before is read again.
        expected[:, :_LOCAL] += 1
    done, again = _steps(coordinator)
    num_steps = expected[0].sum()
    if not how.may_be_in_time:
        assert (done, again) == (num_steps, _LOCAL)
    elif not _has_failed_again(coordinator, how):
        assert again in (0, _LOCAL)
        # Its share is read again all the same.
        assert done - num_steps in (0, _LOCAL * (source is _of_workers))
    _assert_counts(coordinator, counting, how, expected)
    how.end()
    seen.wait_for(events.WorkerReadmitted)
    seen.wait_for_all_workers()
    model.fit(**source(is_held=False), verbose=0)
    _assert_counts(coordinator, counting, how, expected + 1)
    if not _has_failed_again(coordinator, how):
        assert _steps(coordinator) == (done + _BATCHES, again)


def _steps(coordinator: tfps.ClusterCoordinator) -> tuple[int, int]:
    """Returns the numbers of steps that were made, and begun again."""
    value = coordinator.counters.value
    return value("steps_done"), value("steps_again")


def _has_failed_again(coordinator: tfps.ClusterCoordinator, how: _Kill) -> bool:
    """Returns whether a worker that is back has failed once more.

    After it has hung, its earlier connection may break the new one.
    """
    return how.most_late > 0 and (
        coordinator.counters.value("closures_retried") > 0
    )


def _assert_counts(
    coordinator: tfps.ClusterCoordinator,
    counting: _Counting,
    how: _Kill,
    expected: np.ndarray,
) -> None:
    """Checks how often each batch was applied.

    Args:
        coordinator: The coordinator.
        counting: The model.
        how: The loss.
        expected: How often, apart from the round that was given up.
    """
    iterations = int(counting.model.optimizer.iterations)
    late = counting.counts() - expected
    num_rounds = expected[0].sum() // _LOCAL
    assert np.all(late >= 0), late
    assert iterations >= num_rounds
    if _has_failed_again(coordinator, how):
        return
    # A round has one sum on each ps, which is applied or not.
    of_round = late[:, _HELD_ROUND]
    assert np.all(of_round == of_round[:, :1]), of_round
    assert np.all(of_round <= how.most_late), of_round
    late[:, _HELD_ROUND] = 0
    np.testing.assert_array_equal(late, 0)
    assert iterations <= num_rounds + how.most_late
