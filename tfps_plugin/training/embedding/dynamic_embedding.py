"""`tfps.layers.DynamicEmbedding`: an embedding without a vocabulary."""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.training.embedding import feature_ids
from tfps_plugin.training.embedding.config import COMBINERS
from tfps_plugin.training.embedding.config import FeatureConfig
from tfps_plugin.training.embedding.config import TableConfig
from tfps_plugin.variables.dynamic import contents
from tfps_plugin.variables.dynamic import initial_rows
from tfps_plugin.variables.dynamic import string_ids
from tfps_plugin.variables.dynamic.blocks_of_rows import BlocksOfRows
from tfps_plugin.variables.dynamic.dynamic_table import DynamicTable
from tfps_plugin.variables.dynamic.dynamic_table import TableVariables
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import admitter
from tfps_plugin.variables.dynamic.shard import evictor
from tfps_plugin.variables.dynamic.shard import shard_parts
from tfps_plugin.variables.dynamic.shard import tallies
from tfps_plugin.variables.dynamic.shard.shard_directory import Rules

_UNKNOWN = ("initial", "zeros", "shared")


@keras.saving.register_keras_serializable(package="tfps_plugin")
class DynamicEmbedding(keras.layers.Layer):
    """Embeds ids of any value: no vocabulary, and no two ids in one row.

    ```python
    embed = tfps.layers.DynamicEmbedding(16, capacity=1_000_000)
    embed(tf.constant([7, -3, 2**62]))  # shape (3, 16)
    ```

    A row is made when a step that trains meets an id for the first time. Its
    first value depends on the id and the seed of the initializer alone: not on
    the order of ids, the worker, the number of shards or a restart.
    `evaluate`, `predict` and calls that do not train make no rows.

    On a cluster, ids are spread over the shards by a hash. The rows, their
    optimizer slots, updates and checkpoints are those of any table. In one
    process, the same layer works on a table of that process.

    Args:
        output_dim: Length of a row.
        embeddings_initializer: First values of rows: a constant or random
            Keras initializer that does not depend on the number of rows.
            Without a seed, it takes one from the name of the layer.
        capacity: Number of ids that the table has room for. Rows and slots for
            that many ids, and some to spare, are allocated when the layer is
            built. Beyond it, `eviction` makes room; without it, an id is an
            error that names the table.
        admission: Ids that get rows; by default all. A `tfps.layers.Admission`.
        eviction: Rows that lose their ids; by default none. A
            `tfps.layers.Eviction`.
        unknown: Output for ids without a row: "initial", the value that the
            row would begin with; "zeros"; or "shared", a trained row for all
            such ids.
        combiner: "mean", "sum" or "sqrtn": how the rows of one example are
            reduced, over the last axis of the ids. None reduces nothing.
        mask_zero: Whether the id 0 (or the empty string) is padding, for
            layers that use masks.
        **kwargs: As in `keras.layers.Layer`.

    Call arguments:
        inputs: Ids: integers of up to 64 bits, or strings. A dense tensor of
            any shape; with a combiner, also a ragged or sparse one of rank 2.
        weights: Optional weights of the ids, of the same kind and shape; they
            need a combiner.
        training: Whether rows are made. By default, if Keras trains the model
            or a gradient tape records the call.

    Call result:
        A tensor of shape `ids.shape + (output_dim,)`; with a combiner, of
        shape `ids.shape[:-1] + (output_dim,)`.

    Raises:
        ValueError: If an argument is not one of the values above.
        errors.InputError: If inputs or weights are none of those above.
        errors.UnsupportedError: If the initializer needs the number of rows.
    """

    built: bool

    def __init__(
        self,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        *,
        capacity: int = 1_000_000,
        admission: Admission | None = None,
        eviction: Eviction | None = None,
        unknown: str = "initial",
        combiner: str | None = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # As in Embedding: autocasting would cast ids that are given as floats.
        self.autocast = False
        # Hash tables and strings need operations that XLA does not support.
        self.supports_jit = False
        self.output_dim = _positive("output_dim", output_dim)
        self.capacity = _positive("capacity", capacity)
        self.embeddings_initializer = keras.initializers.get(
            embeddings_initializer
        )
        self.unknown = _one_of("unknown", unknown, _UNKNOWN)
        self.combiner = _one_of("combiner", combiner, (None, *COMBINERS))
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.admission = _policy("admission", admission, Admission)
        self.eviction = _policy("eviction", eviction, Eviction)
        self._rules = Rules(
            self.name,
            RowSpace.for_capacity(self.capacity),
            initial_rows.described_by(
                self.embeddings_initializer,
                self.output_dim,
                tf.as_dtype(self.variable_dtype),
                self.name,
            ),
            self.admission,
            self.eviction,
        )

    def build(self, inputs_shape: Any = None) -> None:
        """Makes the rows and their records.

        Args:
            inputs_shape: Shape of the ids, if known. The variables do not
                depend on it.
        """
        if self.built:
            return
        space = self._rules.space
        self._embeddings = self.add_weight(
            shape=(space.num_rows, self.output_dim),
            initializer=BlocksOfRows(space.rows_per_bucket),
            name="embeddings",
        )
        self._records = self._add_beside(
            "records", shard_parts.NUM_COLUMNS, "int64"
        )
        self._usage = self._counters = None
        if self.eviction is not None:
            self._usage = self._add_beside(
                "usage", evictor.usage_columns(self.eviction), "int64"
            )
        if (counters := admitter.counters_of(self.admission)) is not None:
            self._counters = self._add_beside(*counters)
        self._shared = None
        if self.unknown == "shared":
            self._shared = self.add_weight(
                shape=(1, self.output_dim),
                initializer=self.embeddings_initializer,
                name="unknown",
            )
        self._table = DynamicTable(
            TableVariables(
                self._embeddings, self._records, self._usage, self._counters
            ),
            self._rules,
        )
        self.built = True

    def _add_beside(
        self, name: str, num_columns: int, dtype: str
    ) -> keras.Variable:
        """Adds a variable with as many rows as the table, on the same ps."""
        with _beside(self._embeddings):
            return self.add_weight(
                shape=(self._rules.space.num_rows, num_columns),
                initializer=BlocksOfRows(self._rules.space.rows_per_bucket),
                dtype=dtype,
                trainable=False,
                name=name,
            )

    def get_build_config(self) -> dict[str, Any]:
        """Returns no shape: the variables do not depend on it."""
        return {"input_shape": None}

    def call(
        self, inputs: Any, weights: Any = None, training: bool | None = None
    ) -> Any:
        """Looks up and combines; see the class for arguments."""
        if training is None:
            training = compat.is_recording()
        inputs = string_ids.as_integers(inputs)
        if self.combiner is None:
            ids = self._dense_ids(inputs, weights)
            rows_ND = self._rows(tf.reshape(ids, [-1]), training)
            shape = tf.concat([tf.shape(ids), [self.output_dim]], 0)
            rows = tf.reshape(rows_ND, shape)
            rows.set_shape([*ids.shape, self.output_dim])
            return rows
        asked = feature_ids.feature_ids(
            self._feature(inputs.shape), inputs, weights
        )
        rows_ND = self._rows(asked.ids_N, training)
        return asked.combine(rows_ND, self.combiner)

    def _rows(self, ids_N: tf.Tensor, training: bool) -> tf.Tensor:
        rows_ND, are_present_N = self._table.look_up(ids_N, makes_rows=training)
        rows_ND = tf.cast(rows_ND, self.compute_dtype)
        if training and self._shared is None and not self._rules.leaves_ids_out:
            # All have rows.
            return rows_ND
        return tf.where(
            are_present_N[:, None], rows_ND, self._rows_of_unknown(ids_N)
        )

    def _rows_of_unknown(self, ids_N: tf.Tensor) -> tf.Tensor:
        if self.unknown == "zeros":
            return tf.zeros([1, self.output_dim], self.compute_dtype)
        if self._shared is not None:
            return tf.cast(
                tf.convert_to_tensor(self._shared), self.compute_dtype
            )
        return tf.cast(self._table.initial_rows(ids_N), self.compute_dtype)

    def _dense_ids(self, inputs: Any, weights: Any) -> tf.Tensor:
        if weights is not None or not isinstance(inputs, tf.Tensor):
            what = (
                type(inputs).__name__ if weights is None else "ids with weights"
            )
            raise errors.InputError(
                f"The layer {self.name!r} has no combiner, and so takes a "
                f"dense tensor of ids without weights. Received: {what}. Give "
                "the layer a combiner, such as combiner='mean'."
            )
        return inputs

    def _feature(self, shape: Any) -> FeatureConfig:
        """Returns the description of the only feature."""
        table = TableConfig(self.name, 1, self.output_dim)
        if shape.rank not in (1, 2):
            raise errors.InputError(
                f"The layer {self.name!r} has a combiner, and so takes ids of "
                f"rank 1 or 2. Received: shape={shape}"
            )
        free = (None,) * shape.rank
        return FeatureConfig(self.name, table, free, (None, self.output_dim))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns where ids are no padding, if there is padding."""
        del mask
        if not self.mask_zero or self.combiner is not None:
            return None
        padding = "" if inputs.dtype in ("string", tf.string) else 0
        return keras.ops.not_equal(inputs, padding)

    def compute_output_spec(
        self, inputs: Any, weights: Any = None, training: Any = None
    ) -> keras.KerasTensor:
        """Returns the spec of `call`'s result, for a functional model."""
        del weights, training
        shape = tuple(inputs.shape)
        if self.combiner is not None and len(shape) > 1:
            shape = shape[:-1]
        return keras.KerasTensor(
            (*shape, self.output_dim), dtype=self.compute_dtype
        )

    # Contents of the table.

    def size(self) -> int:
        """Returns the number of ids that have a row.

        Raises:
            ValueError: If the layer has not been built yet.
        """
        self._require_built()
        return contents.size(self._records)

    def statistics(self) -> dict[str, int | float]:
        """Returns counts of what steps that train have done.

        They begin anew for the rows of a parameter server that is replaced.

        Returns:
            "made", "evicted": numbers of rows. "without_room",
            "not_admitted": numbers of lookups of ids that got no row because
            of `eviction` or `admission`. "forgotten": number of times that
            exact counts had no room for an id. "hit_rate": the share of
            looked-up ids that had a row; ids of one step count once.

        Raises:
            ValueError: If the layer has not been built yet.
        """
        self._require_built()
        counts = self._table.tallies()
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
        """Returns all ids and their rows, as arrays in this process.

        Returns:
            Ids, int64, in no order; and their rows, of shape `(ids,
            output_dim)`. An id that was given as a string is a hash of it.

        Raises:
            ValueError: If the layer has not been built yet.
        """
        self._require_built()
        found = list(contents.blocks(self._embeddings, self._records))
        if not found:
            dtype = tf.as_dtype(self.variable_dtype).as_numpy_dtype
            return np.zeros(0, np.int64), np.zeros((0, self.output_dim), dtype)
        ids, rows = zip(*found, strict=True)
        return np.concatenate(ids), np.concatenate(rows)

    def import_(self, ids: Any, rows: Any) -> None:
        """Gives ids their rows, and makes those that there are not.

        Rows of other ids, and all slots of optimizers, stay as they are.

        Args:
            ids: Distinct integers or strings, shape `(N,)`.
            rows: Their rows, shape `(N, output_dim)`.

        Raises:
            errors.InputError: If the two do not fit together.
        """
        self.build()
        integers = np.asarray(string_ids.as_integers(ids), np.int64)
        rows = np.asarray(rows)
        if rows.shape != (*integers.shape, self.output_dim) or (
            len(np.unique(integers)) != integers.size
        ):
            raise errors.InputError(
                f"The layer {self.name!r} imports one row of {self.output_dim} "
                "numbers for each of some distinct ids. Received: ids of shape "
                f"{integers.shape}, {len(np.unique(integers))} of them "
                f"distinct, and rows of shape {rows.shape}"
            )
        contents.assign(self._table, self._embeddings, integers, rows)

    def _require_built(self) -> None:
        if not self.built:
            raise ValueError(
                f"The layer {self.name!r} has no rows before it is built. Call "
                "it on some input, or call build() without arguments."
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration that `from_config` takes."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "capacity": self.capacity,
            "admission": _config_of(self.admission),
            "eviction": _config_of(self.eviction),
            "unknown": self.unknown,
            "combiner": self.combiner,
            "mask_zero": self.mask_zero,
        }


def _beside(variable: keras.Variable) -> Any:
    """Returns a context in which variables are made beside another."""
    strategy = tf.distribute.get_strategy()
    return strategy.extended.colocate_vars_with(variable.value)


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"`{name}` of a DynamicEmbedding is expected to be a positive "
            f"integer. Received: {name}={value!r}"
        )
    return value


def _policy(name: str, value: Any, kind: type) -> Any:
    """Returns a policy, also from the configuration of a saved layer."""
    if isinstance(value, dict):
        value = kind(**value)
    if value is not None and not isinstance(value, kind):
        raise ValueError(
            f"`{name}` of a DynamicEmbedding is expected to be a "
            f"tfps.layers.{kind.__name__}, or None. Received: {name}={value!r}"
        )
    return value


def _config_of(policy: Any) -> dict[str, Any] | None:
    return None if policy is None else dataclasses.asdict(policy)


def _one_of(name: str, value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ValueError(
            f"`{name}` of a DynamicEmbedding is expected to be one of "
            f"{', '.join(map(repr, known))}. Received: {name}={value!r}"
        )
    return value
