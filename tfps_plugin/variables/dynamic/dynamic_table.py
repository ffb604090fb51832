"""Table whose rows are found by ids of any value.

Shape legend: N ids asked for, U distinct ids among them, S shards, D numbers
in a row.
"""

import dataclasses
import uuid
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.dynamic import id_hashing
from tfps_plugin.variables.dynamic.find_functions import FindFunctions
from tfps_plugin.variables.dynamic.past_directories import PastDirectories
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.found import Found
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.dynamic.shard.tallies import Tallies
from tfps_plugin.variables.kinds.sharded_variable import whole_of
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.shard_order import ShardOrder
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.lookup.table import looked_up_table
from tfps_plugin.variables.lookup.table import table_behind
from tfps_plugin.variables.sharding.layout import RowLayout


@dataclasses.dataclass(frozen=True)
class TableVariables:
    """The `keras.Variable`s of a table, all cut in the same way.

    Attributes:
        rows: The rows.
        records: Their ids, see `ShardParts`.
        usage: When steps have looked them up; None: nobody needs it.
        counters: Counts of lookups of ids without rows; None: there are none.
    """

    rows: Any
    records: Any
    usage: Any = None
    counters: Any = None

    @property
    def beside_rows(self) -> list[Any]:
        """All but the rows, None where there is none."""
        return [self.records, self.usage, self.counters]


@dataclasses.dataclass(frozen=True, eq=False)
class _FoundOrder(ShardOrder):
    """Rows that were found by ids, which may lose them before the update.

    Attributes:
        directories: The directory of each shard.
        devices: Its device.
        ids: For each shard the ids that the rows were found for.
    """

    directories: Sequence[ShardDirectory] = ()
    devices: Sequence[str] = ()
    ids: Sequence[tf.Tensor] = ()

    def ids_to_update(self) -> list[tf.Tensor]:
        """Returns the rows of each shard, without those that have gone."""
        rows = []
        for directory, device, rows_N, ids_N in zip(
            self.directories,
            self.devices,
            self.local_ids,
            self.ids,
            strict=True,
        ):
            with tf.device(device):
                rows.append(directory.still_theirs(rows_N, ids_N))
        return rows


class DynamicTable:
    """Rows, their records and the directories of all shards.

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
        self._past = PastDirectories(rules.space)
        for variable in (variables.rows, *variables.beside_rows):
            if (found := table_behind(variable)) is not None:
                found[0].has_directory = True
                if variable is variables.rows:
                    found[0].past_directories = self._past
        self._functions = FindFunctions(
            self._directory,
            lambda: [parts for parts, _ in self._shards()],
            clears_slots=rules.eviction is not None,
        )
        self._unique_name = f"tfps/{rules.name}/{uuid.uuid4().hex}"

    def look_up(
        self, ids_N: tf.Tensor, *, makes_rows: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Looks up rows.

        Args:
            ids_N: Any int64, shape `(N,)`.
            makes_rows: Whether a step that trains asks.

        Returns:
            The row of each id, shape `(N, D)`, and whether it has one; in the
            place of a row that there is not, any numbers without a gradient.
        """
        with tf.device(graph_checks.CPU):
            ids_U, positions_N = tf.unique(ids_N)
        asker = Asker.STEP if makes_rows else Asker.READER
        found = looked_up_table(self._variables.rows)
        applied: Callable[[tf.Tensor], tf.Tensor] = tf.identity
        if found is None:
            rows_UD, are_present_U = self._in_this_process(ids_U, asker)
        else:
            table, applied = found
            order, are_present_U, positions_N = self._order(
                table, ids_U, positions_N, asker
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
        return rows_ND, are_present_N

    def rows_for_all(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the row of each id in the table, and makes it if need be.

        Whatever the rules say, each id gets a row, and no other id loses its
        own.

        Args:
            ids_N: Distinct int64, shape `(N,)`.

        Raises:
            tf.errors.InvalidArgumentError: If there is no room.
        """
        return self._find(ids_N, Asker.IMPORT)[0]

    def are_present(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns whether ids have rows.

        Args:
            ids_N: Distinct int64, shape `(N,)`.
        """
        return self._find(ids_N, Asker.READER)[1]

    @property
    def space(self) -> RowSpace:
        """Rows of all buckets."""
        return self._rules.space

    def _find(
        self, ids_N: tf.Tensor, asker: Asker
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns row numbers of the table, and whether ids have rows."""
        found = looked_up_table(self._variables.rows)
        if found is None:
            (mine,) = self._ask(
                [self._variables_of_this_process()],
                [range(self._rules.space.num_rows)],
                [ids_N],
                asker,
            )
            return mine.tensors
        order, are_present_U, places_N = self._order(
            found[0], ids_N, tf.range(tf.size(ids_N)), asker
        )
        return tf.gather(order.ids_U, places_N), tf.gather(
            are_present_U, places_N
        )

    def initial_rows(self, ids_N: tf.Tensor) -> tf.Tensor:
        """Returns the rows that ids begin with, shape `(N, D)`."""
        return self._rules.initial.of(ids_N)

    def tallies(self) -> np.ndarray:
        """Returns the numbers of all shards together, see `tallies`."""
        total = np.zeros(tallies.NUM_TALLIES, np.int64)
        for parts, rows in self._shards():
            counts = Tallies(self._name_of(rows))

            def read_once(parts: Any = parts, counts: Tallies = counts) -> Any:
                with tf.device(parts.rows.device):
                    is_there = tf.raw_ops.VarIsInitializedOp(
                        resource=counts.handle()
                    )
                    return counts.read().numpy() if is_there else 0

            total += chief_reads.read(read_once)
        return total

    def _in_this_process(
        self, ids_U: tf.Tensor, asker: Asker
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if asker is Asker.STEP and self._rules.eviction is not None:
            raise errors.UnsupportedError(
                f"The table {self._rules.name!r} evicts rows, and slots of "
                "optimizers with them, which it knows only under the scope of "
                "a strategy. Received: a step that trains without a strategy. "
                "Make the model under the scope of a "
                "tfps.ParameterServerStrategy, or leave eviction out. On one "
                "machine, tfps.ParameterServerStrategy() without arguments "
                "starts a cluster by itself."
            )
        parts = self._variables_of_this_process()
        with compat.stop_recording(), tf.device(graph_checks.CPU):
            (mine,) = self._ask(
                [parts],
                [range(self._rules.space.num_rows)],
                [ids_U],
                asker,
            )
        return tf.gather(parts.rows, mine.rows_N), mine.are_present_N

    def _order(
        self,
        table: Any,
        ids_U: tf.Tensor,
        positions_N: tf.Tensor,
        asker: Asker,
    ) -> tuple[ShardOrder, tf.Tensor, tf.Tensor]:
        """Finds row numbers on all parameter servers.

        Returns:
            The row numbers, sorted by shard; whether each id has a row; and
            the places of the given positions in the new order.
        """
        if any(shard.unseen_steps is not None for shard in table.shards):
            raise errors.UnsupportedError(
                f"The table {self._rules.name!r} has no fixed number of rows; "
                "its rows cannot catch up with steps that they have not seen. "
                "Received: sparse_update='caught_up'. Give the strategy "
                "another sparse_update."
            )
        ids, counts_S, positions_N = self._by_shard(
            table.layout, ids_U, positions_N
        )
        parts, rows = zip(*self._shards(), strict=True)
        devices = [shard.device for shard in table.shards]
        with compat.stop_recording():
            found = self._ask(parts, rows, ids, asker, devices)
        local_ids = [each.rows_N for each in found]
        order = _FoundOrder(
            table.layout,
            _numbers_in_table(table.layout, local_ids),
            local_ids,
            counts_S,
            tf.size(ids_U),
            [self._directory(*each) for each in zip(rows, parts, strict=True)],
            devices,
            ids,
        )
        are_present_U = order.join([each.are_present_N for each in found])
        return order, are_present_U, positions_N

    def _by_shard(
        self, layout: RowLayout, ids_U: tf.Tensor, positions_N: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor | None, tf.Tensor]:
        """Sorts distinct ids by the shard that they belong to.

        Returns:
            The ids of each shard, their numbers, and the places of the given
            positions in the new order.
        """
        if layout.num_shards == 1:
            return [ids_U], None, positions_N
        with tf.device(graph_checks.CPU):
            # Each bucket is in one shard.
            shards = [
                shard
                for shard in range(layout.num_shards)
                for _ in self._rules.space.buckets(layout.rows(shard))
            ]
            shards_U = tf.gather(
                tf.constant(shards, tf.int32), id_hashing.buckets_of(ids_U)
            )
            parts = tf.dynamic_partition(ids_U, shards_U, layout.num_shards)
            places = tf.dynamic_partition(
                tf.range(tf.size(ids_U)), shards_U, layout.num_shards
            )
            counts_S = tf.concat(tf.raw_ops.ShapeN(input=parts), 0)
            new_places_U = tf.math.invert_permutation(tf.concat(places, 0))
            return parts, counts_S, tf.gather(new_places_U, positions_N)

    def _ask(
        self,
        parts: Sequence[ShardParts],
        rows: Sequence[range],
        ids: Sequence[tf.Tensor],
        asker: Asker,
        devices: Sequence[str] = (graph_checks.CPU,),
    ) -> list[Found]:
        """Asks the directory of each shard, on its device."""
        found = []
        for part, of_part, device, ids_N in zip(
            parts, rows, devices, ids, strict=True
        ):
            self._past.note(device, of_part, self._name_of(of_part))
            found.append(
                self._functions.find(of_part, part, device, ids_N, asker)
            )
        return found

    def _directory(self, rows: range, parts: ShardParts) -> ShardDirectory:
        return ShardDirectory(self._name_of(rows), rows, parts, self._rules)

    def _name_of(self, rows: range) -> str:
        return f"{self._unique_name}/{rows.start}_{rows.stop}"

    def _shards(self) -> list[tuple[ShardParts, range]]:
        """Returns the variables and the rows of each shard."""
        found = table_behind(self._variables.rows)
        if found is None:
            whole = range(self._rules.space.num_rows)
            return [(self._variables_of_this_process(), whole)]
        table = found[0]
        beside = [
            None if variable is None else self._table_of(variable)
            for variable in self._variables.beside_rows
        ]
        return [
            (
                self._parts(
                    shard,
                    *[
                        None if each is None else each.shards[index]
                        for each in beside
                    ],
                ),
                table.layout.rows(index),
            )
            for index, shard in enumerate(table.shards)
        ]

    def _parts(
        self, shard: Any, records: Any, usage: Any, counters: Any
    ) -> ShardParts:
        ours = {id(each) for each in (records, usage, counters)}
        slots = tuple(each for each in shard.family if id(each) not in ours)
        followers = tuple(
            slot for slot in slots if whole_of(slot).begins_as_its_variable
        )
        return ShardParts(shard, records, usage, counters, slots, followers)

    def _variables_of_this_process(self) -> ShardParts:
        rows, records, usage, counters = (
            # Mixed precision would cast all rows.
            None if variable is None else keras_compat.value_of(variable)
            for variable in (self._variables.rows, *self._variables.beside_rows)
        )
        return ShardParts(rows, records, usage, counters)

    def _table_of(self, variable: Any) -> Table:
        found = table_behind(variable)
        if found is None:
            raise errors.VariableCreationError(
                f"The rows of the table {self._rules.name!r} are on parameter "
                "servers, but its records are not. Make the whole layer under "
                "strategy.scope()."
            )
        return found[0]


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
