"""Tables whose rows are found by ids of any value.

Shape legend: N ids asked for, U distinct keys among them, S shards, D numbers
in a row.
"""

import functools
import uuid
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.dynamic.directory_places import DirectoryPlaces
from tfps_plugin.variables.dynamic.find_functions import FindFunctions
from tfps_plugin.variables.dynamic.found_order import FoundOrder
from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.ids import keys
from tfps_plugin.variables.dynamic.lookups_of_steps import LookupsOfSteps
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.found import Found
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.shard.tallies import Tallies
from tfps_plugin.variables.dynamic.table_variables import TableVariables
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.shard_order import ShardOrder
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.lookup.table import looked_up_table
from tfps_plugin.variables.lookup.table import table_behind
from tfps_plugin.variables.sharding.layout import RowLayout


class DynamicTable:
    """Rows, their records and the directories of all shards.

    It is one table, or several of one width that are stacked: they have their
    variables in common, and are looked up as one.

    The rows are a variable on parameter servers, or any `tf.Variable` in a
    program of one process.
    """

    def __init__(self, variables: TableVariables, rules: Rules) -> None:
        """Joins the variables of a table.

        Args:
            variables: The variables.
            rules: What all shards have in common.
        """
        self._variables = variables
        self._rules = rules
        # For messages: what is told of one is true of all.
        self._name = rules.tables[0]
        self._unique_name = f"tfps/{rules.tables[0]}/{uuid.uuid4().hex}"
        self._places = DirectoryPlaces(rules.space)
        self._lookups = LookupsOfSteps(self._unique_name)
        for variable in (variables.rows, *variables.beside_rows):
            if (found := table_behind(variable)) is not None:
                found[0].has_directory = True
                if variable is variables.rows:
                    found[0].dynamic_table = weakref.ref(self)
                    found[0].directory_places = self._places
                    if rules.eviction is not None:
                        found[0].lookups_of_steps = self._lookups
        self._functions = FindFunctions(
            self._directory,
            lambda: [parts for parts, _ in self._variables.shards()],
            num_tables=rules.space.num_tables,
            clears_slots=rules.eviction is not None,
        )

    def look_up(
        self, ids: Sequence[tf.Tensor], *, makes_rows: bool
    ) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Looks up rows.

        Args:
            ids: For each table any int64, shape `(N,)`.
            makes_rows: Whether a step that trains asks.

        Returns:
            For each table the row of each id, shape `(N, D)`, and whether it
            has one; in the place of a row that there is not, any numbers
            without a gradient.
        """
        keys_U, positions_N = self._distinct(ids)
        asker = Asker.STEP if makes_rows else Asker.READER
        found = looked_up_table(self._variables.rows)
        applied: Callable[[tf.Tensor], tf.Tensor] = tf.identity
        if found is None:
            rows_UD, are_present_U = self._in_this_process(keys_U, asker)
        else:
            table, applied = found
            order, are_present_U, positions_N = self._order(
                table, keys_U, positions_N, asker
            )
            rows_UD = row_lookup.rows_in_order(table, order)
        are_present_N = tf.gather(are_present_U, positions_N)
        rows_ND = applied(tf.gather(rows_UD, positions_N))
        if makes_rows and self._rules.leaves_ids_out:
            # Nothing is known of these rows: they must not even pass on a
            # gradient of zero times infinity.
            rows_ND = tf.where(
                are_present_N[:, None], rows_ND, tf.zeros([], rows_ND.dtype)
            )
        if len(ids) == 1:
            return [(rows_ND, are_present_N)]
        sizes = [tf.size(each) for each in ids]
        return list(
            zip(
                tf.split(rows_ND, sizes, num=len(ids)),
                tf.split(are_present_N, sizes, num=len(ids)),
                strict=True,
            )
        )

    def rows_for_all(self, ids_N: tf.Tensor, table: int) -> tf.Tensor:
        """Returns the row of each id, counted in the stack; makes new ones.

        Whatever the rules say, each id gets a row, and no other id loses its
        own.

        Args:
            ids_N: Distinct int64, shape `(N,)`.
            table: Number of the table.

        Raises:
            tf.errors.InvalidArgumentError: If there is no room.
        """
        return self._find(self._keys(ids_N, table), Asker.IMPORT)[0]

    def are_present(self, ids_N: tf.Tensor, table: int) -> tf.Tensor:
        """Returns whether ids have rows.

        Args:
            ids_N: Distinct int64, shape `(N,)`.
            table: Number of the table.
        """
        return self._find(self._keys(ids_N, table), Asker.READER)[1]

    def _keys(self, ids_N: tf.Tensor, table: int) -> tf.Tensor:
        if self.space.num_tables == 1:
            return ids_N
        return keys.joined(ids_N, tf.fill(tf.shape(ids_N), table))

    def _distinct(
        self, ids: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns distinct keys by table, and the place of each id there."""
        with tf.device(graph_checks.CPU):
            found = [tf.unique(ids_N) for ids_N in ids]
            if len(found) == 1:
                return found[0]
            sizes_T = tf.stack([tf.size(ids_U) for ids_U, _ in found])
            starts = tf.unstack(tf.cumsum(sizes_T, exclusive=True), len(found))
            ids_U = tf.concat([ids_U for ids_U, _ in found], 0)
            positions = [
                positions_N + start
                for (_, positions_N), start in zip(found, starts, strict=True)
            ]
            keys_U = keys.sorted_by_table(ids_U, sizes_T)
            return keys_U, tf.concat(positions, 0)

    def shards(self) -> list[tuple[ShardParts, range]]:
        """Returns the variables and the rows of each shard.

        Raises:
            VariableCreationError: See `TableVariables.shards`.
        """
        return self._variables.shards()

    @property
    def space(self) -> RowSpace:
        """Rows of all buckets."""
        return self._rules.space

    @property
    def leaves_ids_out(self) -> bool:
        """True if an id of a step that trains may have no row."""
        return self._rules.leaves_ids_out

    def _find(
        self, keys_N: tf.Tensor, asker: Asker
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns row numbers of the stack, and whether keys have rows."""
        found = looked_up_table(self._variables.rows)
        if found is None:
            (mine,) = self._ask(
                [self._variables.of_this_process()],
                [range(self._rules.space.num_rows)],
                [keys_N],
                asker,
            )
            return mine.tensors
        order, are_present_U, places_N = self._order(
            found[0], keys_N, tf.range(keys.num_of(keys_N)), asker
        )
        return tf.gather(order.ids_U, places_N), tf.gather(
            are_present_U, places_N
        )

    def tallies(self) -> np.ndarray:
        """Returns the numbers of all shards together, as `Tallies.read`."""
        total = np.zeros([tallies.NUM_TALLIES, self.space.num_tables], np.int64)
        for parts, rows in self._variables.shards():
            counts = Tallies(self._name_of(rows), self.space.num_tables)

            def read_once(parts: Any = parts, counts: Tallies = counts) -> Any:
                with tf.device(parts.rows.device):
                    is_there = tf.raw_ops.VarIsInitializedOp(
                        resource=counts.handle()
                    )
                    return counts.read().numpy() if is_there else 0

            total += chief_reads.read(read_once)
        return total

    def _in_this_process(
        self, keys_U: tf.Tensor, asker: Asker
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if asker is Asker.STEP and self._rules.eviction is not None:
            raise errors.UnsupportedError(
                f"The table {self._name!r} evicts rows, and slots of "
                "optimizers with them, which it knows only under the scope of "
                "a strategy. Received: a step that trains without a strategy. "
                "Make the model under the scope of a "
                "tfps.ParameterServerStrategy, or leave eviction out. On one "
                "machine, tfps.ParameterServerStrategy() without arguments "
                "starts a cluster by itself."
            )
        parts = self._variables.of_this_process()
        with compat.stop_recording(), tf.device(graph_checks.CPU):
            (mine,) = self._ask(
                [parts],
                [range(self._rules.space.num_rows)],
                [keys_U],
                asker,
            )
        return tf.gather(parts.rows, mine.rows_N), mine.are_present_N

    def _order(
        self,
        table: Any,
        keys_U: tf.Tensor,
        positions_N: tf.Tensor,
        asker: Asker,
    ) -> tuple[ShardOrder, tf.Tensor, tf.Tensor]:
        """Finds row numbers on all parameter servers.

        Returns:
            The row numbers, sorted by shard; whether each key has a row; and
            the places of the given positions in the new order.
        """
        if any(shard.unseen_steps is not None for shard in table.shards):
            raise errors.UnsupportedError(
                f"The table {self._name!r} has no fixed number of rows; "
                "its rows cannot catch up with steps that they have not seen. "
                "Received: sparse_update='caught_up'. Give the strategy "
                "another sparse_update."
            )
        of_each, counts_S, positions_N = self._by_shard(
            table.layout, keys_U, positions_N
        )
        parts, rows = zip(*self._variables.shards(), strict=True)
        devices = [shard.device for shard in table.shards]
        with compat.stop_recording():
            found = self._ask(parts, rows, of_each, asker, devices)
        local_ids = [each.rows_N for each in found]
        order = ShardOrder(
            table.layout,
            _numbers_in_table(table.layout, local_ids),
            local_ids,
            counts_S,
            keys.num_of(keys_U),
        )
        if asker is Asker.STEP and self._rules.eviction is not None:
            with tf.device(graph_checks.CPU):
                ids = [keys.ids_of(each) for each in of_each]
            order = FoundOrder.of(order, table, self.directories(), ids)
            self._lookups.note(order, len(table.shards[0].family))
        are_present_U = order.join([each.are_present_N for each in found])
        return order, are_present_U, positions_N

    def _by_shard(
        self, layout: RowLayout, keys_U: tf.Tensor, positions_N: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor | None, tf.Tensor]:
        """Sorts distinct keys by the shard that they belong to.

        Returns:
            The keys of each shard, their numbers, and the places of the given
            positions in the new order.
        """
        if layout.num_shards == 1:
            return [keys_U], None, positions_N
        with tf.device(graph_checks.CPU):
            # Each bucket is in one shard.
            shards = [
                shard
                for shard in range(layout.num_shards)
                for _ in self._rules.space.buckets(layout.rows(shard))
            ]
            shards_U = tf.gather(
                tf.constant(shards, tf.int32),
                id_hashing.buckets_of(keys.ids_of(keys_U)),
            )
            parts = tf.dynamic_partition(keys_U, shards_U, layout.num_shards)
            places = tf.dynamic_partition(
                tf.range(tf.size(shards_U)), shards_U, layout.num_shards
            )
            counts_S = tf.concat(tf.raw_ops.ShapeN(input=places), 0)
            new_places_U = tf.math.invert_permutation(tf.concat(places, 0))
            return parts, counts_S, tf.gather(new_places_U, positions_N)

    def _ask(
        self,
        parts: Sequence[ShardParts],
        rows: Sequence[range],
        of_each: Sequence[tf.Tensor],
        asker: Asker,
        devices: Sequence[str] = (graph_checks.CPU,),
    ) -> list[Found]:
        """Asks the directory of each shard for its keys, on its device."""
        found = []
        for part, of_part, device, keys_N in zip(
            parts, rows, devices, of_each, strict=True
        ):
            self._places.note(device, of_part, self._name_of(of_part))
            if isinstance(part.records, Table):
                part.records.outdate_directory = functools.partial(
                    self._places.outdate, device, of_part
                )
            found.append(
                self._functions.find(of_part, part, device, keys_N, asker)
            )
        return found

    def directories(self) -> list[ShardDirectory]:
        """Returns the directory of each shard."""
        return [
            self._directory(rows, parts)
            for parts, rows in self._variables.shards()
        ]

    def _directory(self, rows: range, parts: ShardParts) -> ShardDirectory:
        return ShardDirectory(self._name_of(rows), rows, parts, self._rules)

    def _name_of(self, rows: range) -> str:
        return f"{self._unique_name}/{rows.start}_{rows.stop}"


def _numbers_in_table(
    layout: RowLayout, local_ids: list[tf.Tensor]
) -> tf.Tensor:
    """Returns row numbers of the table; rarely needed."""
    with tf.device(graph_checks.CPU):
        numbers = [
            each + tf.constant(offset, each.dtype)
            for each, offset in zip(local_ids, layout.offsets, strict=False)
        ]
        return numbers[0] if len(numbers) == 1 else tf.concat(numbers, 0)
