"""Rows of a layer that are found by ids of any value.

Shape legend: N ids, D numbers in a row.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.exports.unknown_ids import INITIAL
from tfps_plugin.exports.unknown_ids import UnknownIds
from tfps_plugin.training.embedding.row_options import RowOptions
from tfps_plugin.variables.dynamic import contents
from tfps_plugin.variables.dynamic import initial_rows
from tfps_plugin.variables.dynamic import string_ids
from tfps_plugin.variables.dynamic.blocks_of_rows import BlocksOfRows
from tfps_plugin.variables.dynamic.dynamic_table import DynamicTable
from tfps_plugin.variables.dynamic.dynamic_table import TableVariables
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import admitter
from tfps_plugin.variables.dynamic.shard import evictor
from tfps_plugin.variables.dynamic.shard import shard_parts
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.rules import Rules


class RowsById:
    """A table without a vocabulary, which is part of a layer.

    The layer tracks the variables; this object knows their meaning.
    """

    def __init__(
        self,
        owner: str,
        name: str,
        width: int,
        initializer: Any,
        dtype: Any,
        options: RowOptions,
    ) -> None:
        """Describes a table that has no variables yet.

        Args:
            owner: The layer or table, for messages.
            name: Name of the table. Without a seed, first values depend on it.
            width: Length of a row.
            initializer: First values of rows, a Keras initializer.
            dtype: Dtype of the rows.
            options: Other options.

        Raises:
            errors.UnsupportedError: If the initializer needs the number of
                rows.
        """
        self._owner = owner
        self._width = width
        self._initializer = initializer
        self._dtype = tf.as_dtype(dtype)
        self._options = options
        self._rules = Rules(
            name,
            RowSpace.for_capacity(options.capacity),
            initial_rows.described_by(initializer, width, self._dtype, name),
            options.admission,
            options.eviction,
        )
        self._table: DynamicTable | None = None
        self._named: dict[str, keras.Variable] = {}

    def build(
        self, layer: keras.layers.Layer, name: str, prefix: str = ""
    ) -> None:
        """Makes the variables.

        Args:
            layer: The layer that they belong to.
            name: Name of the variable of the rows.
            prefix: Start of the names of the others.
        """
        space, admission = self._rules.space, self._options.admission
        named = self._named = {}
        blocks = BlocksOfRows(space.rows_per_bucket, self._options.storage)
        rows = named["embeddings"] = layer.add_weight(
            shape=(space.num_rows, self._width), initializer=blocks, name=name
        )

        def add_beside(what: str, num_columns: int, dtype: str) -> None:
            # On the same ps as the rows.
            with _beside(rows):
                named[what] = layer.add_weight(
                    shape=(space.num_rows, num_columns),
                    initializer=blocks,
                    dtype=dtype,
                    trainable=False,
                    name=prefix + what,
                )

        add_beside("records", shard_parts.NUM_COLUMNS, "int64")
        if self._options.eviction is not None:
            columns = evictor.usage_columns(self._options.eviction)
            add_beside("usage", columns, "int64")
        if (counters := admitter.counters_of(admission)) is not None:
            add_beside(*counters)
        if self._options.unknown == "shared":
            named["unknown"] = layer.add_weight(
                shape=(1, self._width),
                initializer=self._initializer,
                name=prefix + "unknown",
            )
        self._table = DynamicTable(
            TableVariables(
                rows,
                named["records"],
                self.usage,
                self.counters,
            ),
            self._rules,
        )

    @property
    def embeddings(self) -> keras.Variable:
        """The rows."""
        self._built()
        return self._named["embeddings"]

    @property
    def records(self) -> keras.Variable:
        """The ids of the rows."""
        self._built()
        return self._named["records"]

    @property
    def usage(self) -> keras.Variable | None:
        """Times at which steps looked rows up; None: nobody needs them."""
        return self._named.get("usage")

    @property
    def counters(self) -> keras.Variable | None:
        """Counts of lookups of ids without rows; None: there are none."""
        return self._named.get("counters", self._named.get("waiting"))

    @property
    def shared(self) -> keras.Variable | None:
        """The row of all ids without rows; None: there is none."""
        return self._named.get("unknown")

    @property
    def unknown_ids(self) -> UnknownIds:
        """The rule for ids without a row; without the path of its variable."""
        policy = self._options.unknown
        first = self._rules.initial.described() if policy == INITIAL else None
        return UnknownIds(policy, first)

    @property
    def beside(self) -> list[keras.Variable]:
        """Variables about the rows: all but the rows and the shared one."""
        return [
            variable
            for what, variable in self._named.items()
            if what not in ("embeddings", "unknown")
        ]

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables, in the order in which they were made."""
        return list(self._named.values())

    def look_up(
        self, ids_N: tf.Tensor, training: bool, dtype: Any
    ) -> tf.Tensor:
        """Looks up rows.

        Args:
            ids_N: Any int64.
            training: Whether rows are made.
            dtype: Dtype of the result.

        Returns:
            The row of each id, or what `unknown` says, shape `(N, D)`.
        """
        rows_ND, are_present_N = self._built().look_up(
            ids_N, makes_rows=training
        )
        rows_ND = tf.cast(rows_ND, dtype)
        if training and self.shared is None and not self._rules.leaves_ids_out:
            # All have rows.
            return rows_ND
        return tf.where(
            are_present_N[:, None], rows_ND, self._rows_of_unknown(ids_N, dtype)
        )

    def _rows_of_unknown(self, ids_N: tf.Tensor, dtype: Any) -> tf.Tensor:
        if self._options.unknown == "zeros":
            return tf.zeros([1, self._width], dtype)
        shared = self.shared
        if shared is not None:
            return tf.cast(tf.convert_to_tensor(shared), dtype)
        return tf.cast(self._built().initial_rows(ids_N), dtype)

    def size(self) -> int:
        """Returns the number of ids that have a row.

        Raises:
            ValueError: If the layer has not been built yet.
        """
        return contents.size(self.records)

    def statistics(self) -> dict[str, int | float]:
        """Returns counts, see `DynamicEmbedding.statistics`.

        Raises:
            ValueError: If the layer has not been built yet.
        """
        counts = self._built().tallies()
        asked = int(counts[tallies.ASKED])
        return {
            "made": int(counts[tallies.MADE]),
            "evicted": int(counts[tallies.EVICTED]),
            "without_room": int(counts[tallies.WITHOUT_ROOM]),
            "not_admitted": int(counts[tallies.NOT_ADMITTED]),
            "forgotten": int(counts[tallies.FORGOTTEN]),
            "hit_rate": int(counts[tallies.PRESENT]) / max(1, asked),
        }

    def export(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns all ids and rows, see `DynamicEmbedding.export`.

        Raises:
            ValueError: If the layer has not been built yet.
        """
        found = list(contents.blocks(self.embeddings, self.records))
        if not found:
            dtype = self._dtype.as_numpy_dtype
            return np.zeros(0, np.int64), np.zeros((0, self._width), dtype)
        ids, rows = zip(*found, strict=True)
        return np.concatenate(ids), np.concatenate(rows)

    def import_(self, ids: Any, rows: Any) -> None:
        """Gives ids their rows, see `DynamicEmbedding.import_`.

        Args:
            ids: Distinct integers or strings, shape `(N,)`.
            rows: Their rows, shape `(N, D)`.

        Raises:
            ValueError: If the layer has not been built yet.
            errors.InputError: If the two do not fit together, or there is no
                room.
        """
        table = self._built()
        integers = np.asarray(
            string_ids.as_integers(ids, self._owner), np.int64
        )
        rows = np.asarray(rows)
        if rows.shape != (*integers.shape, self._width) or (
            len(np.unique(integers)) != integers.size
        ):
            raise errors.InputError(
                f"The {self._owner} imports a row for each of some ids. "
                "Expected: distinct ids of shape (N,) and rows of shape "
                f"(N, {self._width}). Received: ids of shape {integers.shape}, "
                f"{len(np.unique(integers))} of them distinct, and rows of "
                f"shape {rows.shape}. Leave repeated ids out, and give each "
                "of the others its row."
            )
        num_left_out = contents.count_without_room(
            table, self.records, integers
        )
        if num_left_out:
            raise errors.InputError(
                f"The {self._owner} has no room for {num_left_out} of the ids "
                "to import, so none was imported. No row of another id makes "
                "room for an import. Received: "
                f"{integers.size} ids; capacity={self._options.capacity}, "
                f"{self.size()} ids have rows. Make the table larger "
                "(capacity), or import fewer ids."
            )
        contents.assign(table, self.embeddings, integers, rows)

    def _built(self) -> DynamicTable:
        if self._table is None:
            raise ValueError(
                f"The {self._owner} has no rows before the layer is built. "
                "Call the layer on some input, or call build() without "
                "arguments."
            )
        return self._table


def _beside(variable: keras.Variable) -> Any:
    """Returns a context in which variables are made beside another."""
    strategy = tf.distribute.get_strategy()
    return strategy.extended.colocate_vars_with(variable.value)
