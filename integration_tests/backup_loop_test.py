"""Tests of custom loops whose steps do without the workers that arrive last.

Their model tells which shares of workers have counted, see `shared_shares`.
"""

import functools
import os
import pathlib
import signal
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_cluster
import shared_shares
import shared_spans
import shared_training
import tensorflow as tf
from shared_gate import Gate
from shared_losses import LostPs
from shared_losses import LostWorker
from shared_losses import StoppedPs
from shared_losses import StoppedWorker
from shared_shares import NUM_STEPS
from shared_shares import NUM_WORKERS
from shared_shares import Share

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring import events
from tfps_plugin.training.steps.scheduled import numbered_functions

pytestmark = [
    pytest.mark.sample(cases=4, group="backup_loop"),
    pytest.mark.timeout(150),
]

_SLOW = 2
_SECONDS = 60.0
# Numbers of steps: of a loop that leaves some input, after which the model is
# saved, and after which a task is lost.
_MADE, _SAVED, _HELD = 16, 3, 6


@pytest.fixture(scope="module")
def living_cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=NUM_WORKERS, num_ps=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(living_cluster: tfps.LocalCluster) -> tfps.LocalCluster:
    """Returns the cluster of the module, with all its tasks."""
    return shared_cluster.with_all_tasks(living_cluster)


@pytest.fixture
def make(
    cluster: tfps.LocalCluster,
) -> Iterator[Callable[..., tfps.ParameterServerStrategy]]:
    """Yields a function that makes strategies.

    Checks that no span has left anything.
    """
    earlier = shared_spans.queues()
    coordinators = []

    def make(**options: Any) -> tfps.ParameterServerStrategy:
        strategy = shared_shares.make_strategy(cluster, **options)
        coordinators.append(tfps.ClusterCoordinator(strategy))
        return strategy

    yield make
    try:
        shared_spans.assert_nothing_is_left(earlier)
    finally:
        for coordinator in coordinators:
            coordinator.close()


@pytest.fixture
def strategy(
    make: Callable[..., tfps.ParameterServerStrategy],
) -> tfps.ParameterServerStrategy:
    return make()


@pytest.fixture
def gates(tmp_path: pathlib.Path) -> Iterator[list[Gate]]:
    """Yields three gates."""
    gates = []
    for number in range(3):
        folder = tmp_path / f"gate_{number}"
        folder.mkdir()
        gates.append(Gate(folder))
    yield gates
    for gate in gates:
        gate.close()


def _open_all(gates: list[Gate]) -> None:
    for gate in gates:
        gate.open()


def _batches(**options: Any) -> Callable[[Any], tf.data.Dataset]:
    """Returns a dataset function of the shares of a worker."""
    function: Callable[[Any], tf.data.Dataset] = shared_shares.of_workers(
        **options
    )["x"].dataset_fn
    return function


class _Loop:
    """A custom loop.

    Attributes:
        model: The model that it trains.
        coordinator: The coordinator.
        step: The scheduled function. It returns the first row of the share,
            which tells the share.
        iterator: Its argument.
        results: The future results of all steps.
    """

    def __init__(
        self,
        strategy: tfps.ParameterServerStrategy,
        dataset_fn: Callable[[Any], tf.data.Dataset],
        gates: list[Gate] | None = None,
    ) -> None:
        with strategy.scope():
            model = shared_shares.make_model(shared_shares.of_step(), gates)
        self.model = model
        self.coordinator = tfps.ClusterCoordinator(strategy)
        self.iterator = iter(
            self.coordinator.create_per_worker_dataset(dataset_fn)
        )
        self.results: list[Any] = []

        def train(x: Any, target: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x, target, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return {"row": x["rows"][0, 0], "loss": loss}

        @tf.function
        def step(iterator: Any) -> Any:
            return strategy.run(train, args=next(iterator))

        self.step = step

    def schedule(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.results.append(
                self.coordinator.schedule(self.step, args=(self.iterator,))
            )

    def run(self, num_steps: int) -> None:
        self.schedule(num_steps)
        self.coordinator.join()

    @property
    def num_dropped(self) -> int:
        return self.coordinator.counters.value("gradients_dropped")

    def computed(self) -> list[list[Share]]:
        """Returns the shares of the results of each step that was made."""
        made = [each for each in self.results if each.error is None]
        return [
            [divmod(int(row), NUM_WORKERS) for row in each["row"].values]
            for each in self.coordinator.fetch(made)
        ]


def _assert_exact(model: keras.Model, steps: list[list[Share]]) -> None:
    shared_shares.assert_same(
        model, shared_shares.in_one_process(shared_shares.of_step, steps)
    )


def _assert_told(loop: _Loop, steps: list[list[Share]]) -> None:
    """Checks that results are of those who have counted, and of the late."""
    computed = loop.computed()
    assert len(computed) == len(steps)
    for shares, told in zip(steps, computed, strict=True):
        assert set(shares) <= set(told)
        # In the order of the workers, each at most once.
        assert [w for _, w in told] == sorted({w for _, w in told})
    for worker in range(NUM_WORKERS):
        own = [s for told in computed for s, w in told if w == worker]
        assert own == sorted({*own})


@pytest.mark.parametrize("fusion", [True, False])
def test_the_weights_are_those_of_the_shares_that_have_counted(
    make: Callable[..., tfps.ParameterServerStrategy], fusion: bool
) -> None:
    strategy = make(communication=tfps.CommunicationOptions(fusion=fusion))
    loop = _Loop(strategy, _batches())
    # Spans end in between.
    loop.run(NUM_STEPS // 3)
    loop.run(NUM_STEPS - NUM_STEPS // 3)
    steps = shared_shares.steps_of(loop.model)
    assert [len(shares) for shares in steps] == [NUM_WORKERS - 1] * NUM_STEPS
    _assert_exact(loop.model, steps)
    _assert_told(loop, steps)
    num_told = sum(map(len, loop.computed()))
    num_counted = NUM_STEPS * (NUM_WORKERS - 1)
    # Others were in vain.
    most = NUM_STEPS * NUM_WORKERS
    assert num_told <= num_counted + loop.num_dropped <= most


def test_others_do_not_wait_for_a_worker_that_is_slow(
    strategy: tfps.ParameterServerStrategy, gates: list[Gate]
) -> None:
    """It is held in a step until the others come to their last one."""
    last = NUM_STEPS - 1
    held = {(0, 0): 1, (1, _SLOW): 2, (last, 0): 3}
    loop = _Loop(strategy, _batches(gates=held), gates)
    # The first step is held until all others wait: these become one span.
    is_held = threading.Event()
    gates[0].once_reached(is_held.set)
    gates[2].once_reached(functools.partial(_open_all, gates))
    loop.schedule(1)
    assert is_held.wait(_SECONDS)
    loop.schedule(last)
    gates[0].open()
    loop.coordinator.join()
    gates[2].assert_acted()
    steps = shared_shares.steps_of(loop.model)
    assert steps == [
        [(0, 1), (0, 2)],
        *([(step, 0), (step, 1)] for step in range(1, NUM_STEPS)),
    ]
    _assert_exact(loop.model, steps)
    # Results are of all who have computed, whether they count or not.
    assert loop.computed() == [
        [(0, 0), (0, 1), (0, 2)],
        [(1, 0), (1, 1), (1, 2)],
        *([(step, 0), (step, 1)] for step in range(2, NUM_STEPS)),
    ]
    # Both that were held; and one more, in vain, after the last step.
    assert loop.num_dropped == 3


def test_steps_end_when_the_input_of_all_has_ended(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    sizes = [NUM_STEPS, NUM_STEPS // 2, NUM_STEPS // 3]
    batches = _batches()
    loop = _Loop(
        strategy,
        lambda context: batches(context).take(sizes[context.input_pipeline_id]),
    )
    with pytest.raises(tf.errors.OutOfRangeError):
        loop.run(2 * NUM_STEPS)
    steps = shared_shares.steps_of(loop.model)
    _assert_exact(loop.model, steps)
    _assert_told(loop, steps)
    # No batch is lost but those that came too late.
    assert sum(map(len, steps)) + loop.num_dropped == sum(sizes)
    for each in loop.results[len(steps) :]:
        with pytest.raises(errors.ClosureCancelledError):
            each.fetch()


def test_an_error_is_raised_once_and_the_loop_goes_on_after(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    batches = _batches()

    def dataset_fn(context: Any) -> tf.data.Dataset:
        worker = context.input_pipeline_id

        def checked(number: Any, batch: Any) -> Any:
            is_good = (number != 3) | (worker != _SLOW)
            check = tf.debugging.Assert(is_good, ["bad"])
            with tf.control_dependencies([check]):
                return tf.nest.map_structure(tf.identity, batch)

        return batches(context).enumerate().map(checked)

    loop = _Loop(strategy, dataset_fn)
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        loop.run(NUM_STEPS // 2)
    loop.coordinator.join()
    # Iterators go on.
    loop.run(NUM_STEPS // 2)
    steps = shared_shares.steps_of(loop.model)
    assert len(steps) >= NUM_STEPS // 2
    assert (3, _SLOW) not in [share for shares in steps for share in shares]
    _assert_exact(loop.model, steps)


def test_sums_over_workers_are_refused(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    loop = _Loop(strategy, _batches())
    optimizer = loop.model.optimizer
    variables = loop.model.trainable_variables

    def train(x: Any, target: Any) -> Any:
        context = tf.distribute.get_replica_context()
        total = context.all_reduce("sum", tf.reduce_sum(target))
        optimizer.apply([tf.zeros_like(each) for each in variables], variables)
        return total

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(train, args=next(iterator))

    with pytest.raises(errors.UnsupportedError, match="backup_workers=1"):
        loop.coordinator.schedule(step, args=(loop.iterator,))
    assert int(optimizer.iterations) == 0


def test_without_late_workers_a_step_sends_no_more_messages(
    make: Callable[..., tfps.ParameterServerStrategy],
) -> None:
    sent, of_chief = [], []
    for num_backup in (0, 1):
        strategy = make(num_backup=num_backup)
        loop = _Loop(strategy, _batches())
        loop.run(2)
        bodies = strategy.explain(
            loop.step, (loop.iterator.type_spec,), print_fn=None
        ).bodies
        sent.append(shared_shares.sent_by_workers(bodies))
        of_chief.append(shared_shares.sent_by_chief(bodies))
    assert sent[0] == sent[1]
    assert sum(sent[0])
    assert of_chief == [{}, shared_shares.RULING]


def test_the_number_of_a_step_comes_with_the_answer_of_a_worker(
    cluster: tfps.LocalCluster, strategy: tfps.ParameterServerStrategy
) -> None:
    """It is known when the worker can send nothing any more."""
    coordinator = tfps.ClusterCoordinator(strategy)
    seen = shared_training.Seen(coordinator)

    @tf.function
    def told(number: Any) -> Any:
        return tf.zeros(tf.stack([number, 0]), tf.bool)

    result = coordinator.schedule_on(_SLOW, told, args=(tf.constant(7),))
    coordinator.join()
    cluster.kill("worker", _SLOW)
    number = numbered_functions.result_of((None, result.get())).number
    assert number == 7
    cluster.start("worker", _SLOW)
    seen.wait_for(events.WorkerReadmitted)
    seen.wait_for_all_workers()


@pytest.mark.parametrize("loss", [LostWorker, StoppedWorker])
def test_a_lost_worker_that_is_back_takes_part_again(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gates: list[Gate],
    loss: type[LostWorker],
) -> None:
    seen = shared_training.Seen(tfps.ClusterCoordinator(strategy))
    how = loss(cluster, gates[0], _SLOW)
    gates[0].once_reached(how.happen)
    # It has had a part in nothing yet, and starts its input over.
    loop = _Loop(strategy, _batches(gates={(0, _SLOW): 1}), gates)
    try:
        loop.run(_HELD)
    finally:
        how.end()
    gates[0].assert_acted()
    seen.wait_for(events.WorkerReadmitted)
    seen.wait_for_all_workers()
    loop.run(_MADE - _HELD)
    steps = shared_shares.steps_of(loop.model)
    assert len(steps) == _MADE
    assert all(w != _SLOW for shares in steps[:_HELD] for _, w in shares)
    # One of the three is too late again: not always the same one.
    assert [len(shares) for shares in steps[_HELD:]] == [2] * (_MADE - _HELD)
    assert any(w == _SLOW for shares in steps[_HELD:] for _, w in shares)
    _assert_exact(loop.model, steps)
    _assert_told(loop, steps)


def _all_held_from(step: int) -> dict[Share, int]:
    """Returns shares that are held: those of all workers, from a step on."""
    return {
        (each, worker): 1
        for each in range(step, NUM_STEPS)
        for worker in range(NUM_WORKERS)
    }


@pytest.mark.parametrize("loss", [LostPs, StoppedPs])
@pytest.mark.parametrize("lost", [0, 1])
def test_all_variables_go_back_together_when_a_ps_is_lost(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gates: list[Gate],
    tmp_path: pathlib.Path,
    lost: int,
    loss: type[LostPs],
) -> None:
    """Workers arrive on the first one, which the referee needs."""
    seen = shared_training.Seen(tfps.ClusterCoordinator(strategy))
    # Undone steps are made with other shares.
    loop = _Loop(
        strategy,
        _batches(gates=_all_held_from(_HELD), is_constant=True),
        gates,
    )
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=loop.model), tmp_path / "saved"
    )
    loop.run(_SAVED)
    manager.save()
    manager.sync()

    how = loss(cluster, seen, lost)

    def lose() -> None:
        how.happen()
        # A worker that is held up has sent nothing, and then sends its part.
        gates[0].open()

    gates[0].once_reached(lose)
    try:
        loop.run(_MADE - _SAVED)
    finally:
        how.end()
    gates[0].assert_acted()
    assert seen.recovered() == [lost]
    # Steps between the checkpoint and the loss are undone; those of the calls
    # that were broken off are made again.
    made = int(loop.model.optimizer.iterations)
    assert _MADE - (_HELD - _SAVED) <= made <= _MADE
    _assert_exact(loop.model, [[(0, 0)]] * made)
    for each in loop.coordinator.fetch(loop.results):
        assert len(each["loss"].values) >= NUM_WORKERS - 1
        assert np.all(np.isfinite(each["loss"].values))
    seen.wait_for_all_workers()


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Yields a function that does what Ctrl-C does.

    A process that a shell has started in the background ignores the signal.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("then", ["goes on", "closes"])
def test_an_interrupt_while_workers_are_held_leaves_nothing_behind(
    strategy: tfps.ParameterServerStrategy,
    gates: list[Gate],
    ctrl_c: Callable[[], None],
    then: str,
) -> None:
    loop = _Loop(strategy, _batches(gates=_all_held_from(_HELD)), gates)
    gates[0].once_reached(ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        loop.run(_MADE)
    gates[0].assert_acted()
    if then == "closes":
        # It waits for what runs, and cancels what waits.
        threading.Thread(target=gates[0].open).start()
        loop.coordinator.close()
        for each in loop.results:
            assert isinstance(
                each.error, errors.ClosureCancelledError | None
            ), each.error
        return
    gates[0].open()
    loop.run(NUM_STEPS - _MADE)
    steps = shared_shares.steps_of(loop.model)
    assert [len(shares) for shares in steps] == [2] * NUM_STEPS
    _assert_exact(loop.model, steps)
    _assert_told(loop, steps)
