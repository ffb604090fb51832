"""`tfps.layers.DynamicEmbedding`: an embedding without a vocabulary."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.training.embedding import feature_ids
from tfps_plugin.training.embedding import row_options
from tfps_plugin.training.embedding.config import COMBINERS
from tfps_plugin.training.embedding.config import FeatureConfig
from tfps_plugin.training.embedding.config import TableConfig
from tfps_plugin.training.embedding.rows_by_id import RowsById
from tfps_plugin.variables.dynamic import string_ids
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.storage.tiered_storage import TieredStorage

_OWNER = "a DynamicEmbedding"


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
        storage: Where rows are kept; by default in the memory of parameter
            servers. A `tfps.TieredStorage` keeps most of them on their disks;
            in a program of one process, all are in memory.
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
        capacity: int = row_options.CAPACITY,
        admission: Admission | None = None,
        eviction: Eviction | None = None,
        unknown: str = "initial",
        storage: TieredStorage | None = None,
        combiner: str | None = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # As in Embedding: autocasting would cast ids that are given as floats.
        self.autocast = False
        # Hash tables and strings need operations that XLA does not support.
        self.supports_jit = False
        self.output_dim = row_options.positive(_OWNER, "output_dim", output_dim)
        self._options = row_options.checked(
            _OWNER, capacity, admission, eviction, unknown, storage
        )
        self.capacity = self._options.capacity
        self.admission = self._options.admission
        self.eviction = self._options.eviction
        self.unknown = self._options.unknown
        self.storage = self._options.storage
        self.embeddings_initializer = keras.initializers.get(
            embeddings_initializer
        )
        self.combiner = row_options.one_of(
            _OWNER, "combiner", combiner, (None, *COMBINERS)
        )
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self._rows = RowsById(
            f"layer {self.name!r}",
            self.name,
            self.output_dim,
            self.embeddings_initializer,
            self.variable_dtype,
            self._options,
        )

    def build(self, inputs_shape: Any = None) -> None:
        """Makes the rows and their records.

        Args:
            inputs_shape: Shape of the ids, if known. The variables do not
                depend on it.
        """
        if self.built:
            return
        self._rows.build(self, "embeddings")
        # TensorFlow's checkpoints save the attributes of a layer.
        self._embeddings = self._rows.embeddings
        self._records = self._rows.records
        self._usage = self._rows.usage
        self._counters = self._rows.counters
        self._shared = self._rows.shared
        self.built = True

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
            rows_ND = self._look_up(tf.reshape(ids, [-1]), training)
            shape = tf.concat([tf.shape(ids), [self.output_dim]], 0)
            rows = tf.reshape(rows_ND, shape)
            rows.set_shape([*ids.shape, self.output_dim])
            return rows
        asked = feature_ids.feature_ids(
            self._feature(inputs.shape), inputs, weights
        )
        rows_ND = self._look_up(asked.ids_N, training)
        return asked.combine(rows_ND, self.combiner)

    def _look_up(self, ids_N: tf.Tensor, training: bool) -> tf.Tensor:
        return self._rows.look_up(ids_N, training, self.compute_dtype)

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
        return self._rows.size()

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
        return self._rows.statistics()

    def export(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns all ids and their rows, as arrays in this process.

        Returns:
            Ids, int64, in no order; and their rows, of shape `(ids,
            output_dim)`. An id that was given as a string is a hash of it.

        Raises:
            ValueError: If the layer has not been built yet.
        """
        return self._rows.export()

    def import_(self, ids: Any, rows: Any) -> None:
        """Gives ids their rows, and makes those that there are not.

        Each id gets a row, whatever `admission` says. Rows of other ids, and
        all slots of optimizers, stay as they are: `eviction` makes no room for
        an import.

        Args:
            ids: Distinct integers or strings, shape `(N,)`.
            rows: Their rows, shape `(N, output_dim)`.

        Raises:
            errors.InputError: If the two do not fit together; or if some of
                the ids find no room, and then nothing is imported.
        """
        self.build()
        self._rows.import_(ids, rows)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration that `from_config` takes."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            **self._options.get_config(),
            "combiner": self.combiner,
            "mask_zero": self.mask_zero,
        }
