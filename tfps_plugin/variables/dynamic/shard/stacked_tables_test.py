"""Tests of tables that are stacked: each is as if it were alone."""

import functools
import uuid
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables.dynamic.ids import keys
from tfps_plugin.variables.dynamic.initial_rows import InitialRows
from tfps_plugin.variables.dynamic.initial_rows import StackedInitialRows
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import admitter
from tfps_plugin.variables.dynamic.shard import evictor
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.hash_index import HashIndex
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.shard.tallies import Tallies

_LOWEST = -(2**63)
_NAMES = ("small", "large")
_ROOMS = (8, 20)
# So few that most steps need the rows of other ids.
_SCARCE = (2, 4)
_INITIAL = (
    InitialRows("uniform", (-1.0, 1.0), 5, 3, tf.float32),
    InitialRows("constant", (0.25, 0.25), 0, 3, tf.float32),
)
_FIRST_SLOT = 0.5
# The same ids in all tables, the lowest ones among them.
_POOL = [*range(_LOWEST, _LOWEST + 5), -1, *range(1100)]


class _Shard:
    """Variables of all buckets of some tables, and their directory."""

    def __init__(
        self,
        tables: Sequence[int],
        policies: tuple[Any, Any],
        rooms: Sequence[int] = _ROOMS,
    ) -> None:
        admission, eviction = policies
        self._is_alone = len(tables) == 1
        initial = tuple(_INITIAL[table] for table in tables)
        self._rules = Rules(
            tuple(_NAMES[table] for table in tables),
            RowSpace(tuple(RowSpace.RESERVED + rooms[t] for t in tables)),
            initial[0] if self._is_alone else StackedInitialRows(initial),
            admission,
            eviction,
        )
        size = self._rules.space.num_rows
        self._name = uuid.uuid4().hex
        self._slot = tf.Variable(tf.fill([size, 1], _FIRST_SLOT))
        self._rows = tf.Variable(tf.zeros([size, 3]))
        self._records = tf.Variable(tf.zeros([size, 2], tf.int64))
        usage = tf.Variable(
            tf.zeros([size, max(1, evictor.usage_columns(eviction))], tf.int64)
        )
        of_counters = admitter.counters_of(admission)
        counters = None
        if of_counters is not None:
            _, columns, dtype = of_counters
            counters = tf.Variable(tf.zeros([size, columns], dtype))
        self._parts = ShardParts(
            self._rows,
            self._records,
            None if eviction is None else usage,
            counters,
            (self._slot,),
        )
        directory = ShardDirectory(
            self._name, range(size), self._parts, self._rules
        )

        def find(asker: Asker, given: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with mock.patch.object(evictor, "PROTECTED_LOOKUPS", 3):
                return directory.find(given, asker).tensors

        shape = [None] if self._is_alone else [None, 2]
        self._find = {
            asker: tf.function(
                functools.partial(find, asker),
                [tf.TensorSpec(shape, tf.int64)],
                autograph=False,
            )
            for asker in Asker
        }

    def restart(self) -> None:
        """Has the directory built anew from the records."""
        first = RowSpace.ABSENT
        self._records[first].assign(tf.zeros([2], tf.int64))

    def find(
        self, ids: Sequence[Sequence[int]], asker: Asker
    ) -> list[list[tuple[float, ...] | None]]:
        """Returns row and slot of each id of each table; None: no row."""
        flat = tf.constant([one for each in ids for one in each], tf.int64)
        if not self._is_alone:
            tables = np.repeat(range(len(ids)), [len(each) for each in ids])
            flat = keys.joined(flat, tf.constant(tables, tf.int64))
        rows, are_present = (each.numpy() for each in self._find[asker](flat))
        if asker is not Asker.READER:
            # A step of an optimizer.
            self._write(self._rows, rows[are_present], -0.5)
            self._write(self._slot, rows[are_present], 1.0)
        contents = np.concatenate(
            [self._rows.numpy()[rows], self._slot.numpy()[rows]], 1
        ).tolist()
        found = [
            tuple(row) if is_present else None
            for row, is_present in zip(contents, are_present, strict=True)
        ]
        ends = np.cumsum([len(each) for each in ids]).tolist()
        return [
            found[start:end]
            for start, end in zip([0, *ends], ends, strict=False)
        ]

    def _write(self, variable: tf.Variable, rows: Any, change: float) -> None:
        shape = [len(rows), variable.shape[1]]
        variable.scatter_add(tf.IndexedSlices(tf.fill(shape, change), rows))

    def index(self) -> HashIndex:
        """Returns the hash tables that are there, by their names."""
        return HashIndex(self._name, [1] * len(self._rules.tables))

    def nums_places(self) -> list[int]:
        """Returns the number of places that each hash table has."""
        exported = [
            tf.raw_ops.LookupTableExportV2(
                table_handle=handle, Tkeys=tf.int64, Tvalues=tf.int32
            )
            for handle in self.index().handles()
        ]
        return [int(each.keys.shape[0]) for each in exported]

    def versions(self) -> np.ndarray:
        """Returns the version of the records of each table."""
        starts = np.array(self._rules.space.offsets)
        return self._records.numpy()[starts + RowSpace.ABSENT, 0]

    def tallies(self) -> np.ndarray:
        counts = Tallies(self._name, self._rules.space.num_tables)
        return counts.read().numpy()


_POLICIES = {
    "plain": (None, None),
    "exact": (
        Admission(min_lookups=3, counts="exact"),
        Eviction("least_recent", unseen_steps=9),
    ),
    "filter": (Admission(min_lookups=2), Eviction("least_frequent")),
    "norm": (None, Eviction("smallest_norm")),
}


@pytest.mark.parametrize("policies", _POLICIES.values(), ids=_POLICIES)
def test_stacked_tables_are_as_if_each_were_alone(
    policies: tuple[Any, Any],
) -> None:
    evicts = policies[1] is not None
    rooms = _SCARCE if evicts else _ROOMS
    alone = [_Shard([table], policies, rooms) for table in range(len(_NAMES))]
    stack = _Shard(range(len(_NAMES)), policies, rooms)
    random = np.random.default_rng(11)
    # Without eviction, more ids would find no room.
    pool = _POOL[: 700 if evicts else 160]

    def drawn() -> list[list[int]]:
        return [
            random.choice(pool, random.integers(0, 150), replace=False).tolist()
            for _ in _NAMES
        ]

    for number in range(40):
        if number in (17, 30):
            for shard in (stack, *alone):
                shard.restart()
        asker = Asker.READER if number % 5 == 4 else Asker.STEP
        ids = drawn()
        if 11 <= number < 17:
            # Its latest rows are older than those of the other table.
            ids[0] = []
        expected = [
            shard.find([of_table], asker)[0]
            for shard, of_table in zip(alone, ids, strict=True)
        ]
        assert stack.find(ids, asker) == expected
    everything = [list(pool) for _ in _NAMES]
    expected = [shard.find([pool], Asker.READER)[0] for shard in alone]
    assert stack.find(everything, Asker.READER) == expected
    assert any(row is not None for row in expected[0])
    counts = stack.tallies()
    assert np.all(counts[tallies.MADE] > 0)
    if evicts:
        assert np.all(counts[tallies.EVICTED] > 0)
    np.testing.assert_array_equal(
        np.delete(counts, tallies.EPOCH, 0),
        np.delete(
            np.concatenate([shard.tallies() for shard in alone], 1),
            tallies.EPOCH,
            0,
        ),
    )


def test_one_table_alone_makes_room() -> None:
    policies = (None, Eviction("smallest_norm"))
    stack = _Shard(range(len(_NAMES)), policies)
    for number in range(70):
        ids = list(range(number * 10, number * 10 + 10))
        assert None not in stack.find([ids, []], Asker.STEP)[0]
    evicted = stack.tallies()[tallies.EVICTED]
    assert (evicted[0] > 0, evicted[1]) == (True, 0)


def test_one_index_alone_is_filled_anew_when_its_places_run_out() -> None:
    policies = (None, Eviction("least_recent"))
    stack, alone = _Shard(range(len(_NAMES)), policies), _Shard([1], policies)
    kept = [_LOWEST, -3, 4, 5]
    for shard, asked in ((stack, [[], kept]), (alone, [kept])):
        shard.find(asked, Asker.STEP)
    # Of no record: it would be gone if its table were filled anew.
    foreign = tf.constant([[77, 0], [77, 1]], tf.int64)
    stack.index().insert(foreign, tf.constant([1, 1]))
    places = stack.nums_places()
    versions = stack.versions()
    for number in range(240):
        ids = list(range(100 + number * 20, 120 + number * 20))
        # Others of the same bucket may be too recent.
        assert stack.find([ids, []], Asker.STEP)[0].count(None) < 3
        if number % 20 == 0:
            expected = alone.find([kept], Asker.READER)
            assert stack.find([[], kept], Asker.READER)[1:] == expected
    # Twice as many as there are places for.
    made, keys_now = stack.tallies()[[tallies.MADE, tallies.KEYS]]
    assert made[0] > 2 * places[0] > keys_now[0]
    assert stack.nums_places() == places
    assert stack.index().look_up(foreign)[0].numpy().tolist() == [-1, 1]
    # Nothing was built anew from the records: versions only went up.
    assert np.all(stack.versions() - versions < 1000)


def test_a_full_table_of_a_stack_is_named() -> None:
    stack = _Shard(range(len(_NAMES)), (None, None))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"large.* is full"
    ):
        stack.find([[1], list(range(3000))], Asker.STEP)
    # The others are as before.
    assert stack.find([[1], []], Asker.READER) == [[None], []]


def test_an_import_into_one_table_changes_no_other() -> None:
    policies = (None, Eviction("least_recent"))
    stack = _Shard(range(len(_NAMES)), policies)
    stack.find([[1, 2], [1, 2]], Asker.STEP)
    before = stack.find([[1, 2, 7], []], Asker.READER)
    found = stack.find([[], [2, 7]], Asker.IMPORT)
    assert all(row is not None for row in found[1])
    assert stack.find([[1, 2, 7], []], Asker.READER) == before
