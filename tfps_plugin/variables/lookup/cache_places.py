"""Decides which rows a cache has, and which it takes in.

Each id belongs to one place. A place has an id, the time when its row was
fetched, and votes. A lookup of that id is a vote for it, and one of another id
of the same place a vote against it. Without votes, it leaves its place to the
other: so the place keeps the id that is looked up more often than not. Votes
have a limit, so that what was often looked up long ago leaves soon.

Shape legend: U distinct ids, P places that they belong to, K of these whose row
is written.
"""

from typing import NamedTuple

import tensorflow as tf

# Columns of a place. An id is stored as the next number, because zero stands
# for a place that is empty.
ID, FETCHED_AT, VOTES = range(3)

_MOST_VOTES = 15

# An odd number that spreads neighboring ids, and those of neighboring tables.
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)


class Changes(NamedTuple):
    """New contents of places.

    Attributes:
        writers_P: For each place, the one of the U ids that changes it.
        places_P3: The new contents of those places.
        kept_K: Those of the U ids whose rows are written.
    """

    writers_P: tf.Tensor
    places_P3: tf.Tensor
    kept_K: tf.Tensor


def slots(ids_U: tf.Tensor, num_places: int, num_rows: int) -> tf.Tensor:
    """Returns the place of each id.

    Args:
        ids_U: Row numbers, int64.
        num_places: The number of places.
        num_rows: The number of rows of the table.
    """
    if num_places >= num_rows:
        # Each id has a place of its own.
        return ids_U
    # Of a product, the upper bits depend on all bits of the id.
    mixed_U = tf.bitwise.right_shift(
        tf.bitcast(ids_U * tf.constant(_SPREAD, tf.int64), tf.uint64),
        tf.constant(32, tf.uint64),
    )
    return tf.bitcast(mixed_U, tf.int64) % num_places


def is_fresh(
    found_U3: tf.Tensor, ids_U: tf.Tensor, now: tf.Tensor, max_age_steps: int
) -> tf.Tensor:
    """Returns which ids have a row that is not too old.

    Args:
        found_U3: The contents of the places of the ids.
        ids_U: Row numbers, int64.
        now: The time of this lookup.
        max_age_steps: The largest age of a row.
    """
    return tf.equal(found_U3[:, ID], ids_U + 1) & (
        now - found_U3[:, FETCHED_AT] <= max_age_steps
    )


def changes(
    slots_U: tf.Tensor,
    ids_U: tf.Tensor,
    found_U3: tf.Tensor,
    is_fresh_U: tf.Tensor,
    now: tf.Tensor,
) -> Changes:
    """Returns what a lookup changes.

    Args:
        slots_U: The places of the ids.
        ids_U: Distinct row numbers, int64.
        found_U3: The contents of those places.
        is_fresh_U: Result of `is_fresh`.
        now: The time of this lookup.
    """
    count = tf.size(ids_U, tf.int64)
    is_there_U = tf.equal(found_U3[:, ID], ids_U + 1)
    # One id of each place changes it: the one that is there, if it was looked
    # up, else the first. Two of them could leave the row of one under the id
    # of the other.
    _, place_of_U = tf.unique(slots_U)
    rank_U = tf.range(count) + tf.where(is_there_U, tf.zeros_like(ids_U), count)
    writers_P = tf.math.unsorted_segment_min(
        rank_U, place_of_U, tf.reduce_max(tf.concat([place_of_U, [-1]], 0)) + 1
    ) % tf.maximum(count, 1)
    before_P3 = tf.gather(found_U3, writers_P)
    was_there_P = tf.gather(is_there_U, writers_P)
    votes_P = before_P3[:, VOTES]
    takes_P = ~was_there_P & (votes_P <= 0)
    is_written_P = takes_P | (was_there_P & ~tf.gather(is_fresh_U, writers_P))
    places_P3 = tf.stack(
        [
            tf.where(
                takes_P, tf.gather(ids_U, writers_P) + 1, before_P3[:, ID]
            ),
            tf.where(is_written_P, now, before_P3[:, FETCHED_AT]),
            tf.where(
                was_there_P,
                tf.minimum(votes_P + 1, _MOST_VOTES),
                tf.where(takes_P, tf.ones_like(votes_P), votes_P - 1),
            ),
        ],
        axis=1,
    )
    return Changes(
        writers_P, places_P3, tf.boolean_mask(writers_P, is_written_P)
    )
