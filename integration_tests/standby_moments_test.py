"""Tests of copies of tables without a vocabulary that change meanwhile.

The truth is what each row was at the moments between the changes.
"""

import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_copies
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.recovery import transfers
from tfps_plugin.recovery.locked_reads import LockedReads

# Each test loses a task.
pytestmark = pytest.mark.sample(cases=1, group="standby")

_WIDTH = 8
_DEADLINE_SECONDS = 60.0
_BATCH = 8
# The table is full with some 450 ids: those of seven rows in each bucket.
_CAPACITY = 7
_RANDOM = np.random.default_rng(5)
_EARLY = _RANDOM.integers(-(2**63), 2**63 - 1, 360)
# They take the rows of early ones, and lose them while the copies are updated.
_BETWEEN = _RANDOM.integers(-(2**63), 2**63 - 1, 120)
_LATER = _RANDOM.integers(-(2**63), 2**63 - 1, 300)
# No lookup evicts rows that one of the last 64 has seen.
_LOOKUPS = 70
_FIRST_SLOT = 0.25
_LOST = 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=1, num_ps=3) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _tables_may_be_small(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_copies.let_tables_be_small(monkeypatch)


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(3),
        # After the first steps, only these tests update the copies.
        recovery=tfps.RecoveryOptions(
            replicate="ps", replicate_every_steps=1_000_000
        ),
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int64"),
                tfps.layers.DynamicEmbedding(
                    _WIDTH,
                    capacity=_CAPACITY,
                    eviction=tfps.layers.Eviction(),
                    name="table",
                ),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(
            keras.optimizers.Adagrad(
                0.1, initial_accumulator_value=_FIRST_SLOT
            ),
            "mse",
        )
        model.optimizer.build(model.trainable_variables)
    return model


def _train(model: keras.Model, ids: np.ndarray) -> None:
    ids = ids.reshape([-1, 4])
    targets = _RANDOM.normal(size=(len(ids), 1)).astype("float32")
    model.fit(ids, targets, batch_size=_BATCH, verbose=0)


def _look_up(model: keras.Model, ids: np.ndarray) -> None:
    """Makes rows of ids, without updates."""
    model.get_layer("table")(tf.constant(ids), training=True)


def _look_up_often(model: keras.Model, ids: np.ndarray) -> None:
    """Lets other ids lose their rows to new ones."""
    for _ in range(_LOOKUPS):
        _look_up(model, ids)


@dataclasses.dataclass(frozen=True)
class _Moment:
    """Rows of the lost parameter server at one moment.

    Attributes:
        ids: The ids of the rows.
        are_used: Whether the rows belong to the ids.
        values: Of each row, its numbers, its slot, and when it was seen.
    """

    ids: np.ndarray
    are_used: np.ndarray
    values: np.ndarray

    @classmethod
    def now(cls, model: keras.Model) -> "_Moment":
        layer = model.get_layer("table")
        rows, records, usage = (
            each.value.shards[_LOST].numpy() for each in layer.weights
        )
        (slot,) = (
            each.value.shards[_LOST].numpy()
            for each in model.optimizer.variables
            if tuple(each.shape) == tuple(layer.weights[0].shape)
        )
        return cls(
            records[:, 0],
            records[:, 1] > 0,
            np.concatenate([rows, slot, usage], 1),
        )

    @property
    def slots(self) -> np.ndarray:
        slots: np.ndarray = self.values[:, _WIDTH : 2 * _WIDTH]
        return slots

    def of(self, row: int) -> tuple[int, bytes]:
        """Returns the id of a row, and all that belongs to it."""
        return int(self.ids[row]), self.values[row].tobytes()


class _Pause:
    """A call that waits, once, until the test goes on."""

    def __init__(
        self,
        call: Callable[..., Any],
        *,
        is_due: Callable[..., bool],
        comes_first: bool,
    ) -> None:
        self._call = call
        self._is_due = is_due
        self._comes_first = comes_first
        self.is_reached = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, *args: Any) -> Any:
        is_due = not self.is_reached.is_set() and self._is_due(*args)
        if is_due and self._comes_first:
            self._wait()
        result = self._call(*args)
        if is_due and not self._comes_first:
            self._wait()
        return result

    def _wait(self) -> None:
        self.is_reached.set()
        assert self.may_go_on.wait(_DEADLINE_SECONDS)


def _pause_after_records(monkeypatch: pytest.MonkeyPatch) -> _Pause:
    """Pauses between what the records say, and the copies of the rows."""
    read = LockedReads.fingerprints
    pause = _Pause(
        read,
        is_due=lambda _, shard: f"/task:{_LOST}/" in shard.device,
        comes_first=False,
    )
    monkeypatch.setattr(
        LockedReads,
        "fingerprints",
        lambda self, shard: pause(self, shard),
    )
    return pause


def _pause_after_rows(monkeypatch: pytest.MonkeyPatch) -> _Pause:
    """Pauses when rows have been copied, but not yet all that is beside."""
    pause = _Pause(
        transfers.scatter,
        is_due=lambda target, rows, values: (
            f"/part_{_LOST}" in target.path
            and not target.path.endswith(f"table/embeddings/part_{_LOST}")
            and not target.path.endswith(f"table/part_{_LOST}")
        ),
        comes_first=True,
    )
    monkeypatch.setattr(transfers, "scatter", pause)
    return pause


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize(
    "pause_at",
    [_pause_after_records, _pause_after_rows],
    ids=["records", "rows"],
)
def test_ids_have_their_own_rows_and_slots_of_one_moment(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    monkeypatch: pytest.MonkeyPatch,
    pause_at: Callable[[pytest.MonkeyPatch], _Pause],
    is_first: bool,
) -> None:
    model = _model(strategy)
    _train(model, _EARLY)
    shared_copies.wait_for_copies(strategy)
    copies = shared_copies.copies_of(strategy)
    copies.update()
    moments = [_Moment.now(model)]
    if is_first:
        copies._copies.clear()
    # Some rows change before the next update.
    _train(model, _EARLY[:120])
    _look_up_often(model, _EARLY[:120])
    _look_up(model, _BETWEEN)
    moments.append(_Moment.now(model))
    pause = pause_at(monkeypatch)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        updated = pool.submit(copies.update)
        try:
            assert pause.is_reached.wait(_DEADLINE_SECONDS)
            # Ids lose their rows to others.
            _look_up_often(model, _EARLY[:100])
            _look_up(model, _LATER)
            moments.append(_Moment.now(model))
            _train(model, np.concatenate([_EARLY[:80], _LATER[:160]]))
            moments.append(_Moment.now(model))
        finally:
            pause.may_go_on.set()
        updated.result(_DEADLINE_SECONDS)
    cluster.kill("ps", _LOST)
    cluster.start("ps", _LOST, wait=True)
    restored = _Moment.now(model)
    _assert_is_of(restored, moments)
    _assert_goes_on(model, restored, moments)


def _assert_is_of(restored: _Moment, moments: list[_Moment]) -> None:
    """Checks the rows that were restored.

    Args:
        restored: The rows.
        moments: What they were; the second when the update began.
    """
    began, ended = moments[1], moments[-1]
    has_kept = began.are_used & ended.are_used & (began.ids == ended.ids)
    has_gone = began.are_used & ended.are_used & (began.ids != ended.ids)
    is_new = ~began.are_used & ended.are_used
    # Otherwise this is no test.
    assert min(map(np.sum, (has_kept, has_gone, is_new))) > 5
    before = moments[0]
    assert np.any(has_gone & before.are_used & (before.ids != began.ids))
    assert np.any(has_kept & np.any(began.values != ended.values, 1))
    for row in np.flatnonzero(restored.are_used):
        assert restored.of(int(row)) in [
            each.of(int(row)) for each in moments if each.are_used[row]
        ], row
    # An id that the copy has met keeps its row, others begin anew.
    assert np.all(restored.are_used[has_kept])
    assert not np.any(restored.are_used[is_new])
    known = restored.ids[restored.are_used]
    assert len({*known}) == len(known)
    assert {*known} <= {*began.ids[began.are_used]}
    np.testing.assert_array_equal(
        restored.slots[~restored.are_used], np.float32(_FIRST_SLOT)
    )


def _assert_goes_on(
    model: keras.Model, restored: _Moment, moments: list[_Moment]
) -> None:
    """Checks that ids without rows get those that any new id gets."""
    known = {*restored.ids[restored.are_used]}
    # They had their first values then.
    made = moments[2]
    first = {
        id_: made.values[row, : 2 * _WIDTH]
        for row, id_ in enumerate(made.ids)
        if made.are_used[row] and id_ in {*_LATER} - known
    }
    assert len(first) > 5
    _look_up(model, np.array([*first][:5]))
    now = _Moment.now(model)
    for id_ in [*first][:5]:
        (row,) = np.flatnonzero(now.are_used & (now.ids == id_))
        np.testing.assert_array_equal(now.values[row, : 2 * _WIDTH], first[id_])
