"""Tests of a worker that joins late where workers wait for each other.

`late_workers_test` is about asynchronous training.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import shared_rows
import shared_shares
import tensorflow as tf
from shared_shares import NUM_STEPS
from shared_shares import NUM_WORKERS
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin.monitoring import events
from tfps_plugin.training.synchronous.span import Span

pytestmark = [
    pytest.mark.cluster(num_workers=NUM_WORKERS, num_ps=2),
    pytest.mark.sample(cases=2, group="consistency_rules"),
]

_LATE = NUM_WORKERS - 1
# The number of steps after which it joins.
_JOINS = 8
_SPLITS = 15
_ROWS = _SPLITS * 12 * shared_rows.BATCH

Make = Callable[..., tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    """Yields a maker of strategies that start without the last worker."""
    made = []

    def make(consistency: Any) -> tfps.ParameterServerStrategy:
        cluster.kill("worker", _LATE)
        # Connecting to other tasks ends an existing connection.
        fewer = cluster.cluster_spec.as_dict()
        fewer["worker"] = fewer["worker"][:_LATE]
        tfps.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(fewer), task_type="chief", task_id=0
            )
        )
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            consistency=consistency,
            sparse_update="exact",
            startup=tfps.StartupOptions(min_workers=_LATE),
        )
        made.append(strategy)
        return strategy

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Returns the members of each span, once it has begun."""
    found: list[list[int]] = []
    start = Span.start

    def start_and_note(span: Span) -> None:
        found.append(span.members)
        start(span)

    monkeypatch.setattr(Span, "start", start_and_note)
    return found


class _Join:
    """Starts the missing worker, and waits until it takes part."""

    def __init__(
        self, cluster: tfps.LocalCluster, strategy: tfps.ParameterServerStrategy
    ) -> None:
        self._cluster = cluster
        self._coordinator = tfps.ClusterCoordinator(strategy)
        self._seen = Seen(self._coordinator)

    def __call__(self) -> None:
        assert list(self._coordinator.absent_workers) == [_LATE]
        self._cluster.start("worker", _LATE)
        self._seen.wait_for(events.WorkerJoined)
        self._seen.wait_for_all_workers()

    def assert_joined(self) -> None:
        """Checks that it has joined once, and that nobody was lost."""
        (event,) = self._seen.of(events.WorkerJoined)
        assert event.worker_index == _LATE
        assert not self._coordinator.absent_workers
        assert self._coordinator.counters.value("workers_joined") == 1
        assert self._coordinator.counters.value("workers_lost") == 0


@pytest.mark.parametrize(
    "source", [shared_shares.of_workers, shared_shares.of_the_chief]
)
@pytest.mark.parametrize("num_backup", [0, 1])
def test_its_share_counts_from_when_it_joins(
    cluster: tfps.LocalCluster,
    make: Make,
    members: list[list[int]],
    source: Callable[[], Any],
    num_backup: int,
) -> None:
    strategy = make(tfps.Sync(backup_workers=num_backup))
    with strategy.scope():
        model = shared_shares.make_model(shared_shares.of_step())
    join = _Join(cluster, strategy)

    def after_some_steps() -> None:
        assert int(model.optimizer.iterations) == _JOINS
        assert members[-1] == [*range(_LATE)]
        members.clear()
        join()

    model.fit(
        **source(),
        steps_per_epoch=NUM_STEPS,
        callbacks=[At({_JOINS: after_some_steps})],
        verbose=0,
    )
    join.assert_joined()
    assert members[0] == [*range(NUM_WORKERS)]
    if source is shared_shares.of_workers:
        steps = shared_shares.steps_of(model)
        assert len(steps) == NUM_STEPS
        if not num_backup:
            assert steps == [
                *([(s, w) for w in range(_LATE)] for s in range(_JOINS)),
                *(
                    # It begins its input.
                    [*((s, w) for w in range(_LATE)), (s - _JOINS, _LATE)]
                    for s in range(_JOINS, NUM_STEPS)
                ),
            ]
        assert [len(shares) for shares in steps] == [
            *[_LATE - num_backup] * _JOINS,
            *[NUM_WORKERS - num_backup] * (NUM_STEPS - _JOINS),
        ]
    elif num_backup:
        return
    else:
        # Batches are cut for those who are there, and trained on as a whole.
        steps = [[(s, w) for w in range(NUM_WORKERS)] for s in range(NUM_STEPS)]
    shared_shares.assert_same(
        model, shared_shares.in_one_process(shared_shares.of_step, steps)
    )


@pytest.mark.parametrize(
    "consistency",
    [tfps.Sync(), tfps.BoundedStaleness(2), tfps.Async(local_steps=4)],
    ids=["sync", "bounded", "local"],
)
def test_every_row_is_trained_on_once_before_and_after_it_joins(
    cluster: tfps.LocalCluster, make: Make, consistency: Any
) -> None:
    strategy = make(consistency)
    model, steps = shared_rows.model(strategy, _ROWS)
    # The others read its share, too.
    model.fit(shared_rows.of_workers(NUM_WORKERS, _ROWS), verbose=0)
    assert {*shared_rows.counts(model)} == {1.0}
    join = _Join(cluster, strategy)
    model.fit(
        shared_rows.of_splits(_SPLITS, _ROWS),
        callbacks=[At({_JOINS: join})],
        verbose=0,
    )
    join.assert_joined()
    assert {*shared_rows.counts(model)} == {2.0}
    made = [int(value) for value in steps.read_all()]
    assert all(made), made
    model.fit(shared_rows.of_workers(NUM_WORKERS, _ROWS), verbose=0)
    assert {*shared_rows.counts(model)} == {3.0}
    num_batches = 3 * _ROWS // shared_rows.BATCH
    made = [int(value) for value in steps.read_all()]
    assert sum(made) == num_batches
    if isinstance(consistency, tfps.BoundedStaleness):
        assert int(model.optimizer.iterations) == num_batches
