"""One table at one export, as lookups see it."""

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfps_plugin.exports import id_sets
from tfps_plugin.exports import string_hash
from tfps_plugin.exports.manifest import BY_ROW
from tfps_plugin.exports.unknown_ids import UnknownIds

# Changes are merged into the base once they are this share of its rows.
_MERGE_SHARE = 0.25
_MERGE_ROWS = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Rows and their keys; never changed.

    Attributes:
        keys: Distinct keys, int64, ascending.
        places: Row number of each key in `rows`; None if they are in order.
        rows: The rows.
    """

    keys: np.ndarray
    places: np.ndarray | None
    rows: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray, rows: np.ndarray) -> "Rows":
        """Returns rows with keys in any order; copies no rows."""
        if np.all(keys[1:] > keys[:-1]):
            return cls(keys, None, rows)
        places = np.argsort(keys)
        return cls(keys[places], places, rows)

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the row numbers of keys, and whether they have any."""
        if not len(self.keys):
            none = np.zeros(len(keys), np.int64)
            return none, none.astype(bool)
        places = np.searchsorted(self.keys, keys)
        places[places == len(self.keys)] = 0
        found = self.keys[places] == keys
        return places if self.places is None else self.places[places], found

    def without(self, keys: np.ndarray) -> "Rows":
        """Returns those whose keys are not among some others."""
        stay = ~id_sets.are_among(self.keys, id_sets.distinct(keys))
        if stay.all():
            return self
        places = np.arange(len(stay)) if self.places is None else self.places
        return Rows(self.keys[stay], places[stay], self.rows)

    def joined(self, other: "Rows") -> "Rows":
        """Returns these and others with other keys, as one."""
        return Rows.of(
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.in_order(), other.in_order()]),
        )

    def in_order(self) -> np.ndarray:
        """Returns the rows in the order of the keys."""
        return self.rows if self.places is None else self.rows[self.places]


class Table:
    """A table of an export, which does not change.

    Attributes:
        name: Its name.
        kind: "ids" if its keys are ids of any value, "rows" if they are the
            numbers of rows.
        width: Length of a row.
        dtype: Dtype of the rows.
        unknown: Rule of the layer for ids without a row: "initial", "zeros" or
            "shared", as in `tfps.layers.DynamicEmbedding`.

    Threading: any number of threads may use it.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        base: Rows,
        unknown: UnknownIds,
        dense: Mapping[str, np.ndarray],
    ) -> None:
        """Makes a table that has these rows.

        Args:
            name: Its name.
            kind: The kind of its keys.
            base: Its rows.
            unknown: Its rule for ids without a row.
            dense: All variables of the export that are no tables.
        """
        self.name = name
        self.kind = kind
        self.width: int = base.rows.shape[1]
        self.dtype: np.dtype = base.rows.dtype
        self.unknown = unknown.policy
        self._unknown = unknown
        self._dense = dense
        self._base = base
        # Rows that take the place of those of the base, or are new.
        self._newer = Rows.of(base.keys[:0], base.rows[:0])
        # Keys of the base that have no row any more, ascending.
        self._removed = base.keys[:0]

    def __len__(self) -> int:
        """Number of rows."""
        _, replaced = self._base.find(self._newer.keys)
        num_replaced = int(replaced.sum())
        return (
            len(self._base.keys)
            + len(self._newer.keys)
            - num_replaced
            - len(self._removed)
        )

    @property
    def ids(self) -> np.ndarray:
        """All keys, int64, ascending."""
        return self._merged().keys

    @property
    def rows(self) -> np.ndarray:
        """All rows, in the order of `ids`."""
        return self._merged().in_order()

    def lookup(self, ids: Any, unknown: Any = None) -> np.ndarray:
        """Returns the rows of ids, as the layer does that does not train.

        Args:
            ids: Integers or strings, an array of any shape. Strings are hashed
                as `tfps.layers.DynamicEmbedding` does; an unsigned number of
                2**63 or more is the negative one with the same bits. Numbers
                of rows of a table with a vocabulary count from its end if they
                are negative. (NumPy's arrays of strings of one length drop
                zeros at the end; give a list or an array of objects.)
            unknown: Result for ids without a row. By default, what the layer
                gives for them, or zeros if the table has a vocabulary;
                "zeros"; "error"; or a row, of shape `(width,)`.

        Returns:
            An array of shape `ids.shape + (width,)`.

        Raises:
            KeyError: If an id has no row and `unknown` is "error".
            TypeError: If ids are neither integers nor strings.
            ValueError: If `unknown` is none of those above.
        """
        fill = self._fill(unknown)
        ids = _as_array(ids)
        keys = self._keys(ids)
        rows = np.empty((len(keys), self.width), self.dtype)
        places, is_newer = self._newer.find(keys)
        rows[is_newer] = self._newer.rows[places[is_newer]]
        others = np.flatnonzero(~is_newer)
        places, are_there = self._base.find(keys[others])
        if len(self._removed):
            are_there &= ~id_sets.are_among(keys[others], self._removed)
        rows[others[are_there]] = self._base.rows[places[are_there]]
        missing = others[~are_there]
        if not len(missing):
            return rows.reshape((*ids.shape, self.width))
        if fill is None:
            raise KeyError(
                f"The table {self.name!r} has no row for {len(missing)} of "
                f"{len(keys)} ids. The first: "
                f"{ids.reshape(-1)[missing[0]]!r}"
            )
        rows[missing] = fill(keys[missing])
        return rows.reshape((*ids.shape, self.width))

    def with_changes(
        self,
        keys: np.ndarray,
        rows: np.ndarray,
        removed: np.ndarray,
        dense: Mapping[str, np.ndarray],
    ) -> "Table":
        """Returns the table after an export.

        Args:
            keys: Keys whose rows are new or have changed.
            rows: Those rows.
            removed: Keys that have no row any more.
            dense: All variables of the export that are no tables.
        """
        newer = self._newer.without(np.concatenate([keys, removed]))
        after = self._with(self._base, dense)
        after._newer = newer.joined(Rows.of(keys, rows))
        gone = id_sets.distinct(np.concatenate([self._removed, removed]))
        gone = gone[~id_sets.are_among(gone, id_sets.distinct(keys))]
        after._removed = gone[self._base.find(gone)[1]]
        num_changes = len(after._newer.keys) + len(after._removed)
        if num_changes > max(_MERGE_ROWS, _MERGE_SHARE * len(self._base.keys)):
            return self._with(after._merged(), dense)
        return after

    def _with(self, base: Rows, dense: Mapping[str, np.ndarray]) -> "Table":
        return Table(self.name, self.kind, base, self._unknown, dense)

    def _merged(self) -> Rows:
        if not len(self._newer.keys) and not len(self._removed):
            return self._base
        replaced = np.concatenate([self._newer.keys, self._removed])
        return self._base.without(replaced).joined(self._newer)

    def _keys(self, ids: np.ndarray) -> np.ndarray:
        """Returns flat ids as keys."""
        flat = ids.reshape(-1)
        if not flat.size:
            return np.zeros(0, np.int64)
        if flat.dtype.kind in "SUO" and isinstance(flat[0], str | bytes):
            if self.kind == BY_ROW:
                raise TypeError(
                    f"The table {self.name!r} is looked up by numbers of rows. "
                    f"Expected integers. Received: {flat[0]!r}"
                )
            return string_hash.ids_of(flat)
        if flat.dtype.kind not in "iu":
            raise TypeError(
                f"The table {self.name!r} is looked up by integers or strings. "
                f"Received: ids of dtype {flat.dtype}"
            )
        keys = flat.astype(np.int64)
        if self.kind == BY_ROW:
            # As in `keras.layers.Embedding`: from the end.
            keys[keys < 0] += len(self)
        return keys

    def _fill(self, unknown: Any) -> Callable[[np.ndarray], Any] | None:
        """Returns what makes rows for unknown ids; None for an error."""
        if unknown is None:
            return lambda keys: self._unknown.rows_of(
                keys, self.width, self._dense
            )
        if isinstance(unknown, str):
            if unknown == "zeros":
                return lambda _: 0
            if unknown == "error":
                return None
        elif np.shape(unknown) == (self.width,):
            row = np.asarray(unknown, self.dtype)
            return lambda _: row
        raise ValueError(
            '`unknown` must be None, for what the layer gives, "zeros", '
            f'"error" or a row of {self.width} numbers. Received: '
            f"unknown={unknown!r}"
        )


def _as_array(ids: Any) -> np.ndarray:
    array = np.asarray(ids)
    if array.dtype.kind in "SU" and not isinstance(ids, np.ndarray):
        # NumPy would drop zeros at the end, and take a number for a string.
        array = np.asarray(ids, object)
    return array
