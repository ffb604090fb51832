"""Hash table from ids to rows, on the device of the code that uses it.

It is TensorFlow's dense hash table, with as many places from the start as the
rows of a shard need: it never grows. A removed key keeps its place, so the
index has to be filled anew when its places run out.
"""

import tensorflow as tf

from tfps_plugin.variables.dynamic.row_space import RowSpace

# Keys that are no ids: the lowest numbers of int64. Ids of these values have
# rows of their own.
_EMPTY = tf.int64.min
_REMOVED = _EMPTY + 1
_VERSION = _EMPTY + 2
FIRST_KEY = _EMPTY + RowSpace.NUM_LOWEST

# A hash table this full is still fast. TensorFlow's own limit is 0.8.
_LOAD = 0.75


class HashIndex:
    """Rows by id, and the version of the records that they were read from.

    All methods make operations on the current device.
    """

    def __init__(self, unique_name: str, num_rows: int) -> None:
        """Describes an index; the first operation makes it.

        Args:
            unique_name: A name that nothing else on the task has.
            num_rows: Number of rows.
        """
        self._unique_name = unique_name
        self._num_places = 1 << int(num_rows / _LOAD).bit_length()

    @property
    def most_keys(self) -> int:
        """Number of keys, also removed ones, that it has place for."""
        return int(self._num_places * _LOAD)

    def look_up(self, ids_N: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Looks up ids.

        Args:
            ids_N: Any int64.

        Returns:
            Their rows, int32, -1 where there is none; those of the lowest ids
            mean nothing. And the version, int64, -1 if there is none.
        """
        found = tf.raw_ops.LookupTableFindV2(
            table_handle=self._handle(),
            keys=tf.concat(
                [
                    tf.constant([_VERSION], tf.int64),
                    tf.maximum(ids_N, tf.constant(FIRST_KEY, tf.int64)),
                ],
                0,
            ),
            default_value=tf.constant(-1, tf.int32),
        )
        return found[1:], tf.cast(found[0], tf.int64)

    def insert(self, ids_N: tf.Tensor, rows_N: tf.Tensor) -> tf.Operation:
        """Inserts keys, which are no lowest ids, and their rows, int32."""
        return tf.raw_ops.LookupTableInsertV2(
            table_handle=self._handle(), keys=ids_N, values=rows_N
        )

    def remove(self, ids_N: tf.Tensor) -> tf.Operation:
        """Removes keys."""
        return tf.raw_ops.LookupTableRemoveV2(
            table_handle=self._handle(), keys=ids_N
        )

    def write_version(self, version: tf.Tensor) -> tf.Operation:
        """Writes the version, an int64 scalar below 2**31."""
        return self.insert(
            tf.constant([_VERSION], tf.int64), tf.cast([version], tf.int32)
        )

    def fill(self, ids_N: tf.Tensor, rows_N: tf.Tensor) -> tf.Operation:
        """Replaces everything by some keys and their rows."""
        # A dense hash table imports its places, here empty ones, as columns.
        # It goes on with the imported tensors themselves, and writes to them,
        # so they must not be constants: "Empty" makes new ones at every call.
        places = [self._num_places, 1]
        zeros = tf.raw_ops.Empty(shape=places, dtype=tf.int64, init=True)
        emptied = tf.raw_ops.LookupTableImportV2(
            table_handle=self._handle(),
            keys=_of_unknown_shape(zeros + _EMPTY),
            values=_of_unknown_shape(
                tf.raw_ops.Empty(shape=places, dtype=tf.int32, init=True)
            ),
        )
        with tf.control_dependencies([emptied]):
            return self.insert(ids_N, rows_N)

    def free(self) -> None:
        """Frees the memory of the index, which nothing may use any more."""
        tf.raw_ops.DestroyResourceOp(resource=self._handle())

    def _handle(self) -> tf.Tensor:
        return tf.raw_ops.MutableDenseHashTableV2(
            empty_key=tf.constant(_EMPTY, tf.int64),
            deleted_key=tf.constant(_REMOVED, tf.int64),
            value_dtype=tf.int32,
            shared_name=f"{self._unique_name}/rows_by_id",
            initial_num_buckets=self._num_places,
        )


def _of_unknown_shape(tensor: tf.Tensor) -> tf.Tensor:
    """Hides a shape: graphs demand vectors, but the operation, columns."""
    return tf.raw_ops.PlaceholderWithDefault(
        input=tensor, shape=tf.TensorShape(None)
    )
