"""Rules by which ids get rows, and lose them. Pure: no TensorFlow."""

import dataclasses
import math
from typing import Any

from tfps_plugin import errors

# Kinds of counts of lookups.
FILTER = "filter"
EXACT = "exact"
# Exact counts have 20 bits.
_MOST_EXACT_LOOKUPS = (1 << 20) - 1

LEAST_FREQUENT = "least_frequent"
SMALLEST_NORM = "smallest_norm"
_ORDERS = ("least_recent", LEAST_FREQUENT, SMALLEST_NORM)


@dataclasses.dataclass(frozen=True)
class Admission:
    """Rule by which an id that has no row yet gets one.

    Until then, training sees the value of an unknown id, and changes nothing
    for it.

    Attributes:
        min_lookups: Number of steps that have to look an id up first; its row
            is made at that one.
        probability: Chance that a lookup makes the row; None: certainty.
        counts: How lookups are counted, in bounded memory. "filter": in a
            counting filter (Fan et al., "Summary cache", 2000): ids that share
            counters may get their rows early, and no id gets one late.
            "exact": each waiting id has a count of its own, which is saved
            with the rows. No id gets its row early. If more ids wait than
            there are entries for, those not looked up for longest are
            forgotten, and begin anew.

    Raises:
        InputError: If a value is out of its range.
    """

    min_lookups: int = 1
    probability: float | None = None
    counts: str = FILTER

    def __post_init__(self) -> None:
        if not _is_positive(self.min_lookups, int):
            raise errors.InputError(
                "`min_lookups` of an Admission is expected to be a positive "
                f"integer. Received: min_lookups={self.min_lookups!r}. Give "
                "1, the default, for a row at the first lookup."
            )
        if self.probability is not None and not (
            _is_positive(self.probability, int | float)
            and self.probability <= 1
        ):
            raise errors.InputError(
                "`probability` of an Admission is expected to be a number "
                "above 0 and at most 1, or None. Received: "
                f"probability={self.probability!r}. Leave it out for a row of "
                "every id."
            )
        if self.counts not in (FILTER, EXACT):
            raise errors.InputError(
                "`counts` of an Admission is expected to be 'filter' or "
                f"'exact'. Received: counts={self.counts!r}. Leave it out for "
                "'filter', which needs the least memory."
            )
        if self.counts == EXACT and self.min_lookups > _MOST_EXACT_LOOKUPS:
            raise errors.InputError(
                "`min_lookups` of an Admission with exact counts is expected "
                f"to be at most {_MOST_EXACT_LOOKUPS}. Received: "
                f"min_lookups={self.min_lookups!r}. Ask for fewer lookups, or "
                "give counts='filter'."
            )


@dataclasses.dataclass(frozen=True)
class Eviction:
    """Rule by which ids lose their rows.

    A row that comes back begins anew, and so do its slots.

    Attributes:
        beyond_capacity: The rows that make room if a hash bucket of the table
            is full: "least_recent", "least_frequent", or "smallest_norm",
            those whose numbers have the smallest L2 norm. A tenth of the
            bucket goes at a time. Rows that were looked up a moment ago stay,
            and an id that finds no room for that reason is treated as unknown.
            None: only rows that were not seen for long make room, and an id
            without room is an error.
        unseen_steps: Number of steps, of all workers together, after which a
            row is too old that none of them has looked up; None: never. It
            begins anew at the next step that looks it up. Until then, or until
            its bucket needs its place, it is there for all that do not train.
        unseen_seconds: The same in seconds. They go on while parameter servers
            have the table, whether steps run or not. Between a checkpoint and
            its restore, they do not.

    Raises:
        InputError: If a value is out of its range, or two contradict.
    """

    beyond_capacity: str | None = "least_recent"
    unseen_steps: int | None = None
    unseen_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.beyond_capacity not in (None, *_ORDERS):
            raise errors.InputError(
                "`beyond_capacity` of an Eviction is expected to be one of "
                f"{', '.join(_ORDERS)}, or None. Received: "
                f"beyond_capacity={self.beyond_capacity!r}. Leave it out for "
                "least_recent."
            )
        given = {
            "unseen_steps": self.unseen_steps,
            "unseen_seconds": self.unseen_seconds,
        }
        for name, kind, spelled in (
            ("unseen_steps", int, "integer"),
            ("unseen_seconds", int | float, "number"),
        ):
            value = given[name]
            if value is not None and not _is_positive(value, kind):
                raise errors.InputError(
                    f"`{name}` of an Eviction is expected to be a positive "
                    f"{spelled}, or None. Received: {name}={value!r}. Leave it "
                    "out for rows that stay, however long no step looks them "
                    "up."
                )
        if None not in given.values():
            raise errors.InputError(
                "An Eviction is expected to count the time of rows either in "
                f"steps or in seconds. Received: "
                f"unseen_steps={self.unseen_steps!r}, "
                f"unseen_seconds={self.unseen_seconds!r}. Leave one of them "
                "out."
            )
        if self.beyond_capacity is None and set(given.values()) == {None}:
            raise errors.InputError(
                "An Eviction is expected to have a rule. Received: "
                "beyond_capacity=None, unseen_steps=None, unseen_seconds=None. "
                "Give one of them, or give the table no Eviction."
            )


def _is_positive(value: Any, kind: Any) -> bool:
    """Returns whether it is a finite number above 0 of some type."""
    return (
        isinstance(value, kind)
        # Which Python counts among integers.
        and not isinstance(value, bool)
        and 0 < value < math.inf
    )
