"""A table of a layer whose rows are found by ids of any value.

Shape legend: N ids, D numbers in a row.
"""

from typing import Any
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.exports.unknown_ids import INITIAL
from tfps_plugin.exports.unknown_ids import UnknownIds
from tfps_plugin.training.embedding.row_options import RowOptions
from tfps_plugin.variables.dynamic import contents
from tfps_plugin.variables.dynamic import initial_rows
from tfps_plugin.variables.dynamic.dynamic_table import DynamicTable
from tfps_plugin.variables.dynamic.ids import string_ids
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import tallies


class Stack(Protocol):
    """The variables of a table, which other tables may share.

    Attributes:
        variables: The variables by what they are, the rows as "embeddings".
        table: The lookups of all its tables.
    """

    variables: dict[str, keras.Variable]
    table: DynamicTable


class RowsById:
    """A table without a vocabulary, which is part of a layer.

    Attributes:
        name: Its name.
        options: Its options.
        width: Length of a row.
        dtype: Dtype of the rows.
        initial: First rows of ids.
        number: Its number among the tables that it is stacked with.
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
        self._initializer = initializer
        self.name = name
        self.options = options
        self.width = width
        self.dtype = tf.as_dtype(dtype)
        self.initial = initial_rows.described_by(
            initializer, width, self.dtype, name
        )
        self.number = 0
        self._stack: Stack | None = None
        self._shared: keras.Variable | None = None

    def join(
        self, stack: Stack, number: int, layer: keras.layers.Layer, prefix: str
    ) -> None:
        """Takes its place among the tables of a stack, which has variables.

        Args:
            stack: The stack.
            number: Its number there.
            layer: The layer, to which the shared row belongs.
            prefix: Start of the name of the shared row.
        """
        self._stack, self.number = stack, number
        if self.options.unknown == "shared":
            self._shared = layer.add_weight(
                shape=(1, self.width),
                initializer=self._initializer,
                name=prefix + "unknown",
            )

    @property
    def embeddings(self) -> keras.Variable:
        """The rows, those of all tables of the stack."""
        return self._built().variables["embeddings"]

    @property
    def records(self) -> keras.Variable:
        """The ids of the rows."""
        return self._built().variables["records"]

    @property
    def shared(self) -> keras.Variable | None:
        """The row of all ids without rows; None: there is none."""
        return self._shared

    @property
    def unknown_ids(self) -> UnknownIds:
        """The rule for ids without a row; without the path of its variable."""
        policy = self.options.unknown
        first = self.initial.described() if policy == INITIAL else None
        return UnknownIds(policy, first)

    @property
    def space(self) -> RowSpace:
        """Rows of all buckets of the stack."""
        return self._built().table.space

    @property
    def beside(self) -> list[keras.Variable]:
        """Variables about the rows: all but the rows and the shared one."""
        return [
            variable
            for what, variable in self._built().variables.items()
            if what != "embeddings"
        ]

    def of_unknown(self, ids_N: tf.Tensor, dtype: Any) -> tf.Tensor:
        """Returns the output for ids without a row, `(N, D)` or `(1, D)`."""
        if self.options.unknown == "zeros":
            return tf.zeros([1, self.width], dtype)
        if self._shared is not None:
            return tf.cast(tf.convert_to_tensor(self._shared), dtype)
        return tf.cast(self.initial.of(ids_N), dtype)

    def size(self) -> int:
        """Returns the number of ids that have a row.

        Raises:
            ValueError: If the layer has not been built yet.
        """
        return contents.size(self.records, self.space, self.number)

    def statistics(self) -> dict[str, int | float]:
        """Returns counts, see `DynamicEmbedding.statistics`.

        Raises:
            ValueError: If the layer has not been built yet.
        """
        counts = self._built().table.tallies()[:, self.number]
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
        found = list(
            contents.blocks(
                self.embeddings, self.records, self.space, self.number
            )
        )
        if not found:
            dtype = self.dtype.as_numpy_dtype
            return np.zeros(0, np.int64), np.zeros((0, self.width), dtype)
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
        table = self._built().table
        integers = np.asarray(
            string_ids.as_integers(ids, self._owner), np.int64
        )
        rows = np.asarray(rows)
        if rows.shape != (*integers.shape, self.width) or (
            len(np.unique(integers)) != integers.size
        ):
            raise errors.InputError(
                f"The {self._owner} imports a row for each of some ids. "
                "Expected: distinct ids of shape (N,) and rows of shape "
                f"(N, {self.width}). Received: ids of shape {integers.shape}, "
                f"{len(np.unique(integers))} of them distinct, and rows of "
                f"shape {rows.shape}. Leave repeated ids out, and give each "
                "of the others its row."
            )
        num_left_out = contents.count_without_room(
            table, self.number, self.records, integers
        )
        if num_left_out:
            raise errors.InputError(
                f"The {self._owner} has no room for {num_left_out} of the ids "
                "to import, so none was imported. No row of another id makes "
                "room for an import. Received: "
                f"{integers.size} ids; capacity={self.options.capacity}, "
                f"{self.size()} ids have rows. Make the table larger "
                "(capacity), or import fewer ids."
            )
        contents.assign(table, self.number, self.embeddings, integers, rows)

    def _built(self) -> Stack:
        if self._stack is None:
            raise ValueError(
                f"The {self._owner} has no rows before the layer is built. "
                "Call the layer on some input, or call build() without "
                "arguments."
            )
        return self._stack
