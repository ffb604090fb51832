"""A variable whose rows are looked up, as lookups see it."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin.variables.sharding.layout import RowLayout


class Table:
    """A variable whose rows can be looked up on parameter servers."""

    shape: tf.TensorShape
    dtype: tf.DType

    # Dtype of its values on the way, see `compression.wire`; None for its own.
    wire_dtype: tf.DType | None = None

    # Whether the user was warned of steps that read all of it.
    has_warned_of_dense_reads = False

    # Whether the user was told that its regularizer sees looked-up rows only.
    has_warned_of_penalties = False

    # Rounding errors of its dense gradients, see `error_feedback`.
    gradient_residual: Any = None

    # Steps that its rows have yet to see, a `caught_up_shard._UnseenSteps`. In
    # a table of several shards, each shard has its own.
    unseen_steps: Any = None

    # Counts of looked-up rows, a `RowCounts`; None: nobody counts.
    row_counts: Any = None

    # Whether any of its rows have been looked up.
    was_looked_up = False

    # Whether steps change it, beside its updates, on its ps and under its lock
    # only, so that any number of them may do so at a time.
    has_directory = False

    # Where its directories are and have been, `DirectoryPlaces`; None: nowhere.
    directory_places: Any = None

    # Has the directory that goes with this shard built anew; None: none does.
    outdate_directory: Callable[[], None] | None = None

    # Its lookups by the steps that are traced, `LookupsOfSteps`; None: its rows
    # never go to other ids.
    lookups_of_steps: Any = None

    # Returns the `DynamicTable` whose rows it has, or None.
    dynamic_table: Callable[[], Any] = staticmethod(lambda: None)

    # Whether a row of this slot begins as the row of its variable.
    begins_as_its_variable = False

    # Rows that stay together in one shard, one after the other.
    rows_per_block = 1

    # Whether the program has named its ps.
    is_placed_by_hand = False

    # Another object whenever the program or a restore, and not a step, has set
    # values. Copies of rows are of no use in a later epoch.
    epoch: object = None

    # Returns the variable on whose ps it has to be, or None; see `families`.
    beside: Callable[[], Any] = staticmethod(lambda: None)

    # Its name for the user: the path of its keras.Variable, if it has one.
    path: str

    @property
    def layout(self) -> RowLayout:
        """Rows of each shard."""
        raise NotImplementedError  # every subclass has its own

    @property
    def shards(self) -> Sequence[Any]:
        """Variables of consecutive rows, each on one ps, in their order."""
        raise NotImplementedError  # every subclass has its own

    def begin_epoch(self) -> None:
        """Declares that the program, or a restore, has set values of it."""
        self.epoch = object()
        if self.outdate_directory is not None:
            self.outdate_directory()

    @property
    def is_on_disk(self) -> bool:
        """True if its rows are on the disks of parameter servers."""
        return getattr(self.shards[0], "on_disk", None) is not None

    @property
    def is_whole(self) -> bool:
        """True if the table is itself a variable on one ps."""
        return self.shards[0] is self

    @property
    def tape_input(self) -> tf.Tensor:
        """Tensor that every read depends on: its gradient is the table's."""
        raise NotImplementedError  # every subclass has its own


def table_behind(
    params: Any,
) -> tuple[Table, Callable[[tf.Tensor], tf.Tensor]] | None:
    """Returns the table that `params` is, or that a `keras.Variable` holds.

    Args:
        params: Any argument of TensorFlow's and Keras's lookups.

    Returns:
        The table, and a function to apply to its rows: with mixed precision, a
        layer sees rows of a `keras.Variable` in another dtype. None for
        everything else. Functions of a SavedModel have no tables; there, each
        is a plain variable.
    """
    if tensorflow_saving.is_saving_model():
        return None
    if isinstance(params, Table):
        return params, _as_they_are
    if not isinstance(params, keras.Variable):
        return None
    table = keras_compat.value_of(params)
    if not isinstance(table, Table):
        return None
    if keras_compat.has_stateless_value(params):
        return None
    return table, keras_compat.cast_of(params)


def looked_up_table(
    params: Any,
) -> tuple[Table, Callable[[tf.Tensor], tf.Tensor]] | None:
    """Returns what `table_behind` does, for a lookup of rows.

    Args:
        params: As for `table_behind`. It is known to be looked up from now on,
            also where Keras only infers the shapes of a model.
    """
    if isinstance(params, keras.Variable):
        table = keras_compat.value_of(params)
        if isinstance(table, Table):
            table.was_looked_up = True
    return table_behind(params)


def _as_they_are(rows: tf.Tensor) -> tf.Tensor:
    return rows
