"""Tests of steps with backup workers whose tasks fail.

Whatever fails, the weights are those of one process that trains with the shares
that have counted; the model tells which these are, see `shared_shares`.
"""

import os
import pathlib
import re
import signal
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import pytest
import shared_cluster
import shared_shares
import shared_spans
import shared_training
from shared_gate import Gate
from shared_losses import LostPs
from shared_losses import LostWorker
from shared_losses import StoppedPs
from shared_losses import StoppedWorker
from shared_shares import NUM_STEPS
from shared_shares import NUM_WORKERS
from shared_training import At

import tfps_plugin as tfps
from tfps_plugin.monitoring import events

# Each test loses tasks, and takes long.
pytestmark = [
    pytest.mark.sample(cases=4, group="faults_backup"),
    # A worker that hangs is given up after twenty seconds.
    pytest.mark.timeout(150),
]

_SLOW = 2
# Numbers of steps: of a call of `fit` that leaves some input, after which the
# model is saved, and after which a task is lost.
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
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    """Yields a strategy; checks that no span has left anything."""
    earlier = shared_spans.queues()
    strategy = shared_shares.make_strategy(cluster)
    yield strategy
    try:
        shared_spans.assert_nothing_is_left(earlier)
    finally:
        tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def gates(tmp_path: pathlib.Path) -> Iterator[list[Gate]]:
    """Yields a gate for the slow worker, and one for another."""
    gates = []
    for number in range(2):
        folder = tmp_path / f"gate_{number}"
        folder.mkdir()
        gates.append(Gate(folder))
    yield gates
    for gate in gates:
        gate.close()


_both_sources = pytest.mark.parametrize(
    "source", [shared_shares.of_workers, shared_shares.of_the_chief]
)


def _model(
    strategy: tfps.ParameterServerStrategy, gates: list[Gate], **options: Any
) -> keras.Model:
    with strategy.scope():
        return shared_shares.make_model(
            shared_shares.of_step(), gates, **options
        )


def _held_at(step: int) -> dict[shared_shares.Share, int]:
    """Returns shares that are held: that of the slow worker in a step.

    Until then another one is held, so that the slow one is never late.
    """
    return {(0, 0): 2, (step, _SLOW): 1} if step else {(0, _SLOW): 1}


def _all_held_from(step: int) -> dict[shared_shares.Share, int]:
    """Returns shares that are held: those of all workers, from a step on."""
    return {
        (each, worker): 1
        for each in range(step, NUM_STEPS)
        for worker in range(NUM_WORKERS)
    }


def _assert_exact(model: keras.Model, steps: list[Any]) -> None:
    shared_shares.assert_same(
        model, shared_shares.in_one_process(shared_shares.of_step, steps)
    )


def _open_all(gates: Sequence[Gate]) -> None:
    for gate in gates:
        gate.open()


def _when_held(gates: Sequence[Gate], how: LostWorker) -> None:
    """Loses the slow worker when it is held up, and lets the others go on."""

    def lose() -> None:
        how.happen()
        gates[1].open()

    gates[0].once_reached(lose)


@_both_sources
@pytest.mark.parametrize("loss", [LostWorker, StoppedWorker])
@pytest.mark.parametrize("held", [0, _HELD])
def test_steps_go_on_when_a_worker_is_lost(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gates: list[Gate],
    source: Callable[..., Any],
    loss: type[LostWorker],
    held: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is late already, or not; it has sent nothing of its step."""
    model = _model(strategy, gates, steps_per_execution=NUM_STEPS)
    how = loss(cluster, gates[0], _SLOW)
    _when_held(gates, how)
    try:
        model.fit(
            **source(_held_at(held)), steps_per_epoch=NUM_STEPS, verbose=0
        )
    finally:
        how.end()
    gates[0].assert_acted()
    steps = shared_shares.steps_of(model)
    assert len(steps) == NUM_STEPS
    counts = [len(shares) for shares in steps]
    assert {*counts} <= {1, 2}
    # Once it has left, one of the other two is enough.
    assert counts == sorted(counts, reverse=True)
    assert all(s < held for shares in steps for s, w in shares if w == _SLOW)
    _assert_exact(model, steps)
    if source is shared_shares.of_the_chief:
        (told,) = re.findall(
            r"(\d+) examples .*was lost, or was late", caplog.text
        )
        num_shares = NUM_WORKERS * NUM_STEPS - sum(map(len, steps))
        assert int(told) == shared_shares.NUM_EXAMPLES * num_shares
    shared_training.Seen(
        tfps.ClusterCoordinator(strategy)
    ).wait_for_all_workers()


@pytest.mark.parametrize("loss", [LostWorker, StoppedWorker])
def test_a_lost_worker_that_is_back_takes_part_again(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gates: list[Gate],
    loss: type[LostWorker],
) -> None:
    seen = shared_training.Seen(tfps.ClusterCoordinator(strategy))
    model = _model(strategy, gates)
    how = loss(cluster, gates[0], _SLOW)
    _when_held(gates, how)

    def bring_back() -> None:
        # Reading it waits for the end of all steps so far.
        assert int(model.optimizer.iterations) == _HELD
        how.end()
        seen.wait_for(events.WorkerReadmitted)
        seen.wait_for_all_workers()

    # It has had a part in nothing yet, and starts its input over.
    model.fit(
        **shared_shares.of_workers({(0, _SLOW): 1}),
        steps_per_epoch=_MADE,
        callbacks=[At({_HELD: bring_back})],
        verbose=0,
    )
    gates[0].assert_acted()
    steps = shared_shares.steps_of(model)
    assert len(steps) == _MADE
    assert all(w != _SLOW for shares in steps[:_HELD] for _, w in shares)
    # One of the three is too late again: not always the same one.
    assert [len(shares) for shares in steps[_HELD:]] == [2] * (_MADE - _HELD)
    assert any(w == _SLOW for shares in steps[_HELD:] for _, w in shares)
    _assert_exact(model, steps)


@_both_sources
@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("loss", [LostPs, StoppedPs])
def test_all_variables_go_back_together_when_a_ps_is_lost(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gates: list[Gate],
    tmp_path: pathlib.Path,
    source: Callable[..., Any],
    is_held: bool,
    lost: int,
    loss: type[LostPs],
) -> None:
    """Workers arrive on the first one, which the referee needs."""
    seen = shared_training.Seen(tfps.ClusterCoordinator(strategy))
    model = _model(strategy, gates)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path / "saved"
    )

    def save() -> None:
        assert int(model.optimizer.iterations) == _SAVED
        manager.save()
        manager.sync()

    how = loss(cluster, seen, lost)

    def lose() -> None:
        how.happen()
        # A worker that is held up has sent nothing, and then sends its part.
        _open_all(gates)

    def lose_between_steps() -> None:
        assert int(model.optimizer.iterations) == _HELD
        lose()

    actions = {_SAVED: save}
    if is_held:
        gates[0].once_reached(lose)
    else:
        actions[_HELD] = lose_between_steps
    # Undone steps are made with other shares, or with the same ones again.
    data = source(_all_held_from(_HELD) if is_held else None, is_constant=True)
    try:
        model.fit(
            **data, steps_per_epoch=_MADE, callbacks=[At(actions)], verbose=0
        )
    finally:
        how.end()
    if is_held:
        gates[0].assert_acted()
    assert seen.recovered() == [lost]
    # Steps between the checkpoint and the loss are undone, on both ps.
    made = int(model.optimizer.iterations)
    least = _MADE - (_HELD - _SAVED)
    if is_held:
        # The earlier steps of the call that was broken off are made again.
        assert least <= made <= _MADE
    else:
        assert made == least
    _assert_exact(model, [[(0, 0)]] * made)
    seen.wait_for_all_workers()


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Yields a function that does what Ctrl-C does.

    A process that a shell has started in the background ignores the signal.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@_both_sources
def test_an_interrupt_while_workers_are_held_leaves_the_model_usable(
    strategy: tfps.ParameterServerStrategy,
    gates: list[Gate],
    ctrl_c: Callable[[], None],
    source: Callable[..., Any],
) -> None:
    model = _model(strategy, gates)
    start = model.get_weights()

    def interrupt() -> None:
        ctrl_c()
        _open_all(gates)

    gates[0].once_reached(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            **source(_all_held_from(_HELD)),
            steps_per_epoch=NUM_STEPS,
            verbose=0,
        )
    gates[0].assert_acted()
    assert not shared_spans.threads()
    # The table has to tell the steps of the next call only.
    model.set_weights(start)
    model.optimizer.iterations.assign(0)
    model.fit(**source(), steps_per_epoch=NUM_STEPS, verbose=0)
    steps = shared_shares.steps_of(model)
    assert [len(shares) for shares in steps] == [2] * NUM_STEPS
    _assert_exact(model, steps)
