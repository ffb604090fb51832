"""Variables and lookups of tables by id that are stacked.

Shape legend: N ids, D numbers in a row.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.strategy.consistency import local_steps_of
from tfps_plugin.training.embedding.rows_by_id import RowsById
from tfps_plugin.variables.dynamic.blocks_of_rows import BlocksOfRows
from tfps_plugin.variables.dynamic.dynamic_table import DynamicTable
from tfps_plugin.variables.dynamic.initial_rows import StackedInitialRows
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import admitter
from tfps_plugin.variables.dynamic.shard import evictor
from tfps_plugin.variables.dynamic.shard import shard_parts
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.table_variables import TableVariables


class RowStack:
    """Tables without a vocabulary that have their variables in common.

    They have rows of one length and dtype, and the same rules of admission and
    eviction. The layer tracks the variables; this object knows their meaning.

    Attributes:
        tables: The tables; often one alone.
        variables: The variables by what they are, in the order in which they
            were made, the rows as "embeddings".
        table: The lookups of all tables, once there are variables.
    """

    table: DynamicTable

    def __init__(self, tables: Sequence[RowsById]) -> None:
        """Describes variables that are yet to be made."""
        self.tables = tuple(tables)
        self.variables: dict[str, keras.Variable] = {}

    def build(
        self, layer: keras.layers.Layer, name: str, prefix: str = ""
    ) -> None:
        """Makes the variables.

        Args:
            layer: The layer that they belong to.
            name: Name of the variable of the rows.
            prefix: Start of the names of the others.
        """
        first = self.tables[0]
        rules = self._rules()
        space, options = rules.space, first.options
        self.variables = {}
        blocks = BlocksOfRows(space.rows_per_bucket, options.storage)
        rows = self.variables["embeddings"] = layer.add_weight(
            shape=(space.num_rows, first.width), initializer=blocks, name=name
        )

        def add_beside(what: str, num_columns: int, dtype: str) -> None:
            # On the same ps as the rows.
            with _beside(rows):
                self.variables[what] = layer.add_weight(
                    shape=(space.num_rows, num_columns),
                    initializer=blocks,
                    dtype=dtype,
                    trainable=False,
                    name=prefix + what,
                )

        add_beside("records", shard_parts.NUM_COLUMNS, "int64")
        if options.eviction is not None:
            columns = evictor.usage_columns(options.eviction)
            add_beside("usage", columns, "int64")
        counters = admitter.counters_of(options.admission)
        if counters is not None:
            add_beside(*counters)
        self.table = DynamicTable(
            TableVariables(
                rows,
                self.variables["records"],
                self.variables.get("usage"),
                None if counters is None else self.variables[counters[0]],
            ),
            rules,
        )
        for number, table in enumerate(self.tables):
            alone = len(self.tables) == 1
            table.join(
                self, number, layer, prefix if alone else f"{table.name}_"
            )

    @property
    def all_variables(self) -> list[keras.Variable]:
        """All variables, in the order in which they were made."""
        shared = [table.shared for table in self.tables]
        return [
            *self.variables.values(),
            *(variable for variable in shared if variable is not None),
        ]

    def saved(
        self, table: RowsById
    ) -> Iterator[tuple[str, keras.Variable, list[range] | None]]:
        """Yields what is saved of one of the tables.

        Of each: a name that does not depend on what is stacked, a variable, and
        the rows of it; None: all.
        """
        pieces = None
        if len(self.tables) > 1:
            space = self.table.space
            pieces = space.cells_of(table.number, range(space.num_rows))
        for what, variable in self.variables.items():
            name = table.name
            if what != "embeddings":
                name = f"{name}_{what}"
            yield name, variable, pieces
        if table.shared is not None:
            yield table.shared.name, table.shared, None

    def look_up(
        self, ids: Sequence[tf.Tensor], training: bool, dtype: Any
    ) -> list[tf.Tensor]:
        """Looks up rows.

        Args:
            ids: For each table any int64, shape `(N,)`.
            training: Whether rows are made.
            dtype: Dtype of the result.

        Returns:
            For each table the row of each id, or what its `unknown` says,
            shape `(N, D)`.
        """
        if keras_compat.asks_for_shapes():
            # They need no lookup, which takes seconds to trace.
            width = self.tables[0].width
            return [tf.zeros([tf.size(ids_N), width], dtype) for ids_N in ids]
        found = self.table.look_up(ids, makes_rows=training)
        return [
            self._completed(table, ids_N, *of_table, training, dtype)
            for table, ids_N, of_table in zip(
                self.tables, ids, found, strict=True
            )
        ]

    def _completed(
        self,
        table: RowsById,
        ids_N: tf.Tensor,
        rows_ND: tf.Tensor,
        are_present_N: tf.Tensor,
        training: bool,
        dtype: Any,
    ) -> tf.Tensor:
        """Returns rows, with the output for ids that have none."""
        rows_ND = tf.cast(rows_ND, dtype)
        all_have_rows = training and not self.table.leaves_ids_out
        if all_have_rows and table.shared is None:
            return rows_ND
        return tf.where(
            are_present_N[:, None], rows_ND, table.of_unknown(ids_N, dtype)
        )

    def _rules(self) -> Rules:
        initial = tuple(table.initial for table in self.tables)
        options = self.tables[0].options
        return Rules(
            tuple(table.name for table in self.tables),
            RowSpace.for_capacity(*[t.options.capacity for t in self.tables]),
            initial[0] if len(initial) == 1 else StackedInitialRows(initial),
            options.admission,
            options.eviction,
            local_steps_of(
                getattr(tf.distribute.get_strategy(), "consistency", None)
            ),
        )


def _beside(variable: keras.Variable) -> Any:
    """Returns a context in which variables are made beside another."""
    strategy = tf.distribute.get_strategy()
    return strategy.extended.colocate_vars_with(variable.value)
