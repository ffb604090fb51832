"""Tests of whole histories of a table against a plain dict.

Steps look ids up and change rows and slots; rows are made, admitted, evicted
and imported; the table is saved, restored and cut anew. After each of these,
every row and every slot is that of the dict.
"""

import copy
import dataclasses
import functools
import itertools
import uuid
from collections.abc import Sequence
from typing import Any
from unittest import mock

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import stateful
from hypothesis import strategies as st

from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.initial_rows import InitialRows
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.dynamic.row_space import NUM_BUCKETS
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import evictor
from tfps_plugin.variables.dynamic.shard import waiting_counts
from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts

# Most of it makes functions of the directories.
pytestmark = pytest.mark.timeout(300)

_LOWEST = -(2**63)
_FIRST_SLOT = 0.5
_VECTOR = [tf.TensorSpec([None], tf.int64)]
# So few that histories are longer.
_PROTECTED = 3
_CUTS = {1: (0, 64), 2: (0, 21, 64), 3: (0, 20, 43, 64)}
# Ids of each of two buckets, of different shards.
_PER_BUCKET = 7
_INITIAL = InitialRows("normal", (0.0, 1.0), 5, 2, tf.float32)


def _pool() -> dict[int, int]:
    """Returns ids and their buckets."""
    ids = np.concatenate([_LOWEST + np.arange(4), np.arange(-600, 600)])
    buckets = id_hashing.buckets_of(tf.constant(ids)).numpy()
    chosen = list(range(4))
    for bucket in (20, 63):
        chosen += np.flatnonzero(buckets == bucket)[-_PER_BUCKET:].tolist()
    return {int(ids[place]): int(buckets[place]) for place in chosen}


_BUCKETS = _pool()
_POOL = list(_BUCKETS)
_FIRST = dict(
    zip(_POOL, _INITIAL.of(tf.constant(_POOL, tf.int64)).numpy(), strict=True)
)
_IDS = st.lists(st.sampled_from(_POOL), max_size=10, unique=True)
_versions = itertools.count(2)


@dataclasses.dataclass
class _Row:
    """A row of the dict; the number counts from the start of the table."""

    number: int
    value: np.ndarray
    slot: float
    seen: int
    count: int = 1


class _Dict:
    """Rows by id, changed by the rules as they are documented."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.rows: dict[int, _Row] = {}
        self.waiting: dict[int, int] = {}
        # Of each bucket, the time at which one of its rows was last seen.
        self.latest = [0] * NUM_BUCKETS

    def step(self, ids: Sequence[int], now: int) -> list[int]:
        """Looks ids of one shard up; returns those that have rows then."""
        known = [
            one for one in ids if one in self.rows and not self._old(one, now)
        ]
        for one in known:
            self._see(one, now)
        admitted = [
            one for one in ids if one not in known and self._is_admitted(one)
        ]
        begun = [one for one in admitted if one in self.rows]
        for one in begun:
            self._see(one, now)
        needy = [one for one in admitted if one not in self.rows]
        self._make_room([one for one in needy if not _has_fixed_row(one)], now)
        for one in needy:
            if _has_fixed_row(one) or self.num_free(_BUCKETS[one]) > 0:
                self.make(one, now)
                begun.append(one)
        for one in begun:
            self.waiting.pop(one, None)
            number = self.rows[one].number
            self.rows[one] = _Row(number, _FIRST[one], _FIRST_SLOT, now)
        return [one for one in ids if one in (*known, *begun)]

    def import_(self, ids: Sequence[int], now: int) -> None:
        """Gives ids of one shard rows."""
        for one in ids:
            self.waiting.pop(one, None)
            if one in self.rows:
                self._see(one, now)
            else:
                self.make(one, now)

    def make(self, one: int, now: int) -> None:
        """Makes a row, whose number is yet to be found out."""
        self.rows[one] = _Row(-1, _FIRST[one], _FIRST_SLOT, now)
        self._note(one, now)

    def num_free(self, bucket: int) -> int:
        """Returns the number of free rows of a bucket."""
        return self._room - len(self._of_bucket(bucket))

    def _make_room(self, needy: Sequence[int], now: int) -> None:
        eviction = self.rules.eviction
        if eviction is None:
            return
        buckets = [_BUCKETS[one] for one in needy]
        short = {
            bucket: buckets.count(bucket) - self.num_free(bucket)
            for bucket in buckets
        }
        most = max(
            max(short.values(), default=0), int(self._room * evictor.SHARE)
        )
        for bucket, num_short in short.items():
            if num_short <= 0:
                continue
            may_go = [
                one
                for one in self._of_bucket(bucket)
                if self.rows[one].seen < now - _PROTECTED
            ]
            for one in sorted(may_go, key=self._order)[:most]:
                del self.rows[one]

    def _order(self, one: int) -> tuple[int, int]:
        row, eviction = self.rows[one], self.rules.eviction
        is_frequency = (
            eviction is not None
            and eviction.beyond_capacity == "least_frequent"
        )
        return (row.count if is_frequency else row.seen), row.number

    @property
    def _room(self) -> int:
        return self.rules.space.rows_per_bucket - RowSpace.RESERVED

    def _of_bucket(self, bucket: int) -> list[int]:
        return [
            one
            for one in self.rows
            if _BUCKETS[one] == bucket and not _has_fixed_row(one)
        ]

    def _old(self, one: int, now: int) -> bool:
        eviction = self.rules.eviction
        return (
            eviction is not None
            and eviction.unseen_steps is not None
            and self.rows[one].seen < now - eviction.unseen_steps
        )

    def _is_admitted(self, one: int) -> bool:
        admission = self.rules.admission
        if admission is None:
            return True
        self.waiting[one] = self.waiting.get(one, 0) + 1
        return self.waiting[one] >= admission.min_lookups

    def _see(self, one: int, now: int) -> None:
        self.rows[one].seen = now
        self.rows[one].count += 1
        self._note(one, now)

    def _note(self, one: int, now: int) -> None:
        self.latest[_BUCKETS[one]] = max(self.latest[_BUCKETS[one]], now)


class _Shard:
    """Variables of some buckets, and their directory."""

    def __init__(self, rules: Rules, buckets: range) -> None:
        stride = rules.space.rows_per_bucket
        self.buckets = buckets
        self.numbers = range(buckets.start * stride, buckets.stop * stride)
        size = len(self.numbers)
        self.variables = {
            "rows": tf.Variable(tf.zeros([size, 2])),
            "records": tf.Variable(tf.zeros([size, 2], tf.int64)),
            "slots": tf.Variable(tf.zeros([size, 1])),
        }
        if rules.eviction is not None:
            columns = evictor.usage_columns(rules.eviction)
            usage = tf.Variable(tf.zeros([size, columns], tf.int64))
            self.variables["usage"] = usage
        if rules.admission is not None:
            columns = waiting_counts.NUM_COLUMNS
            waiting = tf.Variable(tf.zeros([size, columns], tf.int64))
            self.variables["waiting"] = waiting
        directory = ShardDirectory(
            uuid.uuid4().hex,
            self.numbers,
            ShardParts(
                self.variables["rows"],
                self.variables["records"],
                self.variables.get("usage"),
                self.variables.get("waiting"),
                (self.variables["slots"],),
            ),
            rules,
        )

        def find(asker: Asker, ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Traced once.
            with mock.patch.object(evictor, "PROTECTED_LOOKUPS", _PROTECTED):
                return directory.find(ids, asker).tensors

        self._find = {
            asker: tf.function(
                functools.partial(find, asker), _VECTOR, autograph=False
            )
            for asker in Asker
        }

    def find(self, ids: Sequence[int], asker: Asker) -> dict[int, int]:
        """Returns the rows of those ids that have one, as the table counts."""
        rows, are_present = self._find[asker](tf.constant(ids, tf.int64))
        return {
            one: self.numbers.start + int(row)
            for one, row, is_present in zip(
                ids, rows.numpy(), are_present.numpy(), strict=True
            )
            if is_present
        }

    def write(self, name: str, number: int, value: Any) -> None:
        """Writes one row of a variable."""
        variable = self.variables[name]
        shape = [1, variable.shape[1]]
        variable.scatter_update(
            tf.IndexedSlices(
                tf.broadcast_to(tf.cast(value, variable.dtype), shape),
                [number - self.numbers.start],
            )
        )


@functools.cache
def _shards(rules: Rules, num_shards: int) -> list[_Shard]:
    cuts = _CUTS[num_shards]
    return [
        _Shard(rules, range(start, stop))
        for start, stop in itertools.pairwise(cuts)
    ]


class _Histories(stateful.RuleBasedStateMachine):
    """A table of some shards, and the dict that is the truth of it."""

    of_table: Rules
    layouts: tuple[int, ...]

    def __init__(self) -> None:
        super().__init__()
        self.shards = _shards(self.of_table, self.layouts[0])
        self.truth = _Dict(self.of_table)
        self.clocks = [0] * len(self.shards)
        for shard in self.shards:
            for name, variable in shard.variables.items():
                first = _FIRST_SLOT if name == "slots" else 0
                variable.assign(
                    tf.fill(variable.shape, tf.cast(first, variable.dtype))
                )
        self._begin_anew()
        self.saved = self._contents(), copy.deepcopy(self.truth)

    @stateful.rule(ids=_IDS, value=st.integers(-9, 9))
    def train(self, ids: list[int], value: int) -> None:
        for index, shard, of_shard in self._by_shard(ids):
            expected = self.truth.step(of_shard, self.clocks[index])
            self.clocks[index] += 1
            found = shard.find(of_shard, Asker.STEP)
            assert list(found) == expected
            self._take_numbers(found)
            self._check(found)
            for one, number in found.items():
                row = self.truth.rows[one]
                row.value, row.slot = np.full(2, value), value + 0.25
                shard.write("rows", number, row.value)
                shard.write("slots", number, row.slot)

    @stateful.rule(count=st.integers(1, 6))
    def pause(self, count: int) -> None:
        """Makes steps on other ids."""
        for index, shard in enumerate(self.shards):
            for _ in range(count):
                shard.find([], Asker.STEP)
            self.clocks[index] += count

    @stateful.precondition(lambda self: len(self.shards) == self.layouts[0])
    @stateful.rule(ids=_IDS, value=st.integers(-9, 9))
    def import_(self, ids: list[int], value: int) -> None:
        for index, shard, of_shard in self._by_shard(ids):
            new = [
                _BUCKETS[one]
                for one in of_shard
                if one not in self.truth.rows and not _has_fixed_row(one)
            ]
            if any(new.count(b) > self.truth.num_free(b) for b in new):
                continue
            self.truth.import_(of_shard, self.clocks[index])
            found = shard.find(of_shard, Asker.IMPORT)
            assert list(found) == of_shard
            self._take_numbers(found)
            self._check(found)
            for one, number in found.items():
                self.truth.rows[one].value = np.full(2, value)
                shard.write("rows", number, value)

    @stateful.rule()
    def save(self) -> None:
        self.saved = self._contents(), copy.deepcopy(self.truth)

    @stateful.rule(layout=st.integers(0, 1))
    def restore(self, layout: int) -> None:
        """Restores the table in a new process, which knows nothing of it."""
        contents, truth = self.saved
        self.truth = copy.deepcopy(truth)
        self._cut(contents, layout)
        self._begin_anew()

    @stateful.rule(layout=st.integers(0, 1))
    def cut_anew(self, layout: int) -> None:
        """Moves rows to other shards, or back to where they were before."""
        num_shards = self.layouts[layout % len(self.layouts)]
        if num_shards != len(self.shards):
            self._cut(self._contents(), layout)

    @stateful.invariant()
    def every_row_is_there(self) -> None:
        found: dict[int, int] = {}
        for _, shard, of_shard in self._by_shard(_POOL):
            found |= shard.find(of_shard, Asker.READER)
        assert set(found) == set(self.truth.rows)
        assert len(set(found.values())) == len(found)
        self._check(found)

    def _check(self, found: dict[int, int]) -> None:
        """Compares rows, slots and their places with the dict."""
        for shard in self.shards:
            here = [one for one in found if found[one] in shard.numbers]
            numbers = [found[one] - shard.numbers.start for one in here]
            rows = [self.truth.rows[one] for one in here]
            assert [row.number for row in rows] == [found[one] for one in here]
            for name, values in (
                ("rows", [row.value for row in rows]),
                ("slots", [[row.slot] for row in rows]),
            ):
                np.testing.assert_array_equal(
                    shard.variables[name].numpy()[numbers],
                    np.reshape(values, (len(here), -1)).astype("float32")
                    if here
                    else np.zeros((0, shard.variables[name].shape[1])),
                )

    def _take_numbers(self, found: dict[int, int]) -> None:
        """Takes the places of rows that were just made."""
        for one, number in found.items():
            row = self.truth.rows[one]
            if row.number < 0:
                row.number = number

    def _by_shard(
        self, ids: Sequence[int]
    ) -> list[tuple[int, _Shard, list[int]]]:
        return [
            (
                index,
                shard,
                [one for one in ids if _BUCKETS[one] in shard.buckets],
            )
            for index, shard in enumerate(self.shards)
        ]

    def _contents(self) -> dict[str, np.ndarray]:
        return {
            name: np.concatenate(
                [shard.variables[name].numpy() for shard in self.shards]
            )
            for name in self.shards[0].variables
        }

    def _cut(self, contents: dict[str, np.ndarray], layout: int) -> None:
        num_shards = self.layouts[layout % len(self.layouts)]
        self.shards = _shards(self.of_table, num_shards)
        for shard in self.shards:
            for name, variable in shard.variables.items():
                numbers = shard.numbers
                variable.assign(contents[name][numbers.start : numbers.stop])
        self._set_clocks()

    def _begin_anew(self) -> None:
        """Has every directory find records that it has not written."""
        for shard in self.shards:
            shard.write("records", shard.numbers.start, [[-next(_versions), 0]])
        self._set_clocks()

    def _set_clocks(self) -> None:
        """Time goes on where a row of the shard was last seen."""
        self.clocks = [
            max(self.truth.latest[bucket] for bucket in shard.buckets)
            for shard in self.shards
        ]


def _has_fixed_row(one: int) -> bool:
    return one < _LOWEST + RowSpace.NUM_LOWEST


class _EveryIdHasARow(_Histories):
    of_table = Rules(
        ("items",), RowSpace((RowSpace.RESERVED + _PER_BUCKET,)), _INITIAL
    )
    layouts = (1, 3)


class _RowsAreAdmittedAndGo(_Histories):
    of_table = Rules(
        ("items",),
        RowSpace((RowSpace.RESERVED + 4,)),
        _INITIAL,
        Admission(2, counts="exact"),
        Eviction("least_recent", unseen_steps=20),
    )
    layouts = (1, 2)


class _RowsGo(_Histories):
    of_table = Rules(
        ("items",),
        RowSpace((RowSpace.RESERVED + 4,)),
        _INITIAL,
        None,
        Eviction("least_frequent", unseen_steps=8),
    )
    layouts = (1,)


_SETTINGS = hypothesis.settings(
    max_examples=15, stateful_step_count=25, deadline=None
)
for _machine in (_EveryIdHasARow, _RowsAreAdmittedAndGo, _RowsGo):
    _machine.TestCase.settings = _SETTINGS
test_without_rules = _EveryIdHasARow.TestCase
test_with_admission_and_eviction = _RowsAreAdmittedAndGo.TestCase
test_with_eviction_by_frequency = _RowsGo.TestCase
