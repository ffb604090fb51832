"""Compares with a dictionary of places."""

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.lookup import cache_places
from tfps_plugin.variables.lookup.cache_places import FETCHED_AT
from tfps_plugin.variables.lookup.cache_places import ID
from tfps_plugin.variables.lookup.cache_places import VOTES

_MANY = 1 << 40


class _Cache:
    """Places in NumPy, changed as a worker changes its own."""

    def __init__(self, num_places: int, max_age_steps: int) -> None:
        self.places = np.zeros((num_places, 3), np.int64)
        self.rows = np.full(num_places, -1, np.int64)
        self.now = 0
        self._max_age_steps = max_age_steps

    def look_up(self, ids: list[int]) -> list[int]:
        """Returns the ids that it had; a row is the number of its id."""
        self.now += 1
        ids_U = tf.constant(ids, tf.int64)
        slots_U = cache_places.slots(ids_U, len(self.places), _MANY).numpy()
        found_U3 = tf.constant(self.places[slots_U])
        is_fresh_U = cache_places.is_fresh(
            found_U3,
            ids_U,
            tf.constant(self.now, tf.int64),
            self._max_age_steps,
        )
        had = [n for n, fresh in enumerate(is_fresh_U.numpy()) if fresh]
        for number in had:
            assert self.rows[slots_U[number]] == ids[number]
        change = cache_places.changes(
            tf.constant(slots_U),
            ids_U,
            found_U3,
            is_fresh_U,
            tf.constant(self.now, tf.int64),
        )
        written = slots_U[change.writers_P.numpy()]
        assert len(set(written)) == len(written)
        self.places[written] = change.places_P3.numpy()
        kept = change.kept_K.numpy()
        self.rows[slots_U[kept]] = np.asarray(ids)[kept]
        return [ids[number] for number in had]


def test_slots_are_inside_and_spread() -> None:
    for first in (0, 5_000_000_000):
        ids = tf.range(first, first + 10_000, dtype=tf.int64)
        slots = cache_places.slots(ids, 100, _MANY).numpy()
        counts = np.bincount(slots, minlength=100)
        assert len(counts) == 100
        assert counts.min() > 50
        assert counts.max() < 200


def test_each_id_has_a_place_of_its_own_if_there_are_enough() -> None:
    ids = tf.range(7, dtype=tf.int64)
    assert len(set(cache_places.slots(ids, 7, 7).numpy())) == 7


def test_a_row_is_there_until_it_is_too_old() -> None:
    cache = _Cache(8, max_age_steps=2)
    had = [cache.look_up([5]) for _ in range(7)]
    assert had == [[], [5], [5], [], [5], [5], []]


def test_an_age_of_zero_keeps_nothing_for_the_next_step() -> None:
    cache = _Cache(8, max_age_steps=0)
    assert [cache.look_up([5, 6]) for _ in range(3)] == [[], [], []]


def test_no_ids_change_nothing() -> None:
    cache = _Cache(8, max_age_steps=2)
    assert cache.look_up([]) == []
    assert not cache.places.any()


def test_a_place_keeps_the_id_that_is_looked_up_more_often() -> None:
    cache = _Cache(1, max_age_steps=100)
    for number in range(30):
        cache.look_up([7] if number % 3 else [100 + number])
    assert cache.look_up([7]) == [7]


def test_an_id_of_the_past_leaves_its_place() -> None:
    cache = _Cache(1, max_age_steps=1_000)
    for _ in range(200):
        cache.look_up([7])
    assert cache.places[0, VOTES] == 15
    for _ in range(16):
        cache.look_up([8])
    assert cache.places[0, ID] == 8 + 1
    assert cache.places[0, FETCHED_AT] == cache.now
    assert cache.look_up([8]) == [8]


def test_ids_of_one_place_do_not_mix() -> None:
    random = np.random.default_rng(1)
    cache = _Cache(5, max_age_steps=3)
    hits = 0
    for _ in range(60):
        ids = random.permutation(20)[: random.integers(0, 12)]
        hits += len(cache.look_up([int(each) for each in ids]))
    assert hits > 0
