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
from tfps_plugin.training.embedding.row_stack import RowStack
from tfps_plugin.training.embedding.rows_by_id import RowsById
from tfps_plugin.variables.dynamic.ids import string_ids
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
            reduced, over the last axis of the ids; ids of rank 1 are one in
            each example. None reduces nothing.
        mask_zero: Whether the id 0 (or the empty string) is padding, for
            layers that use masks. Not with a combiner: there, weights of 0
            leave padding out.
        **kwargs: As in `keras.layers.Layer`.

    Call arguments:
        inputs: Ids: integers of up to 64 bits, or strings; floats, which are
            the default of `keras.Input`, are refused. A dense tensor of any
            shape; with a combiner, of rank 1 or more, or a ragged or sparse
            one of rank 1 or 2.
        weights: Optional weights of the ids, of the same kind and shape; they
            need a combiner.
        training: Whether rows are made. By default, if Keras trains the model
            or a gradient tape records the call.

    Call result:
        A tensor of shape `ids.shape + (output_dim,)`; with a combiner and ids
        of rank 2 or more, of shape `ids.shape[:-1] + (output_dim,)`.

    Raises:
        ValueError: If an argument is not one of the values above.
        errors.InputError: If inputs or weights are none of those above.
        errors.UnsupportedError: If the initializer needs the number of rows,
            or a mask is to go with a combiner.
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
        # As in Embedding: weights are cast with their rows. Ids are no floats.
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
        if mask_zero and combiner is not None:
            raise errors.UnsupportedError(
                "A mask is for layers that get one row for each id, and a "
                f"combiner makes one of many. Expected of {_OWNER}: mask_zero "
                "or a combiner. Received: mask_zero="
                f"{mask_zero!r}, combiner={combiner!r}. To leave padding out "
                "of the combination, call the layer with `weights` that are 0 "
                "there, or with ragged or sparse ids without padding."
            )
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self._rows = RowsById(
            self._owner,
            self.name,
            self.output_dim,
            self.embeddings_initializer,
            self.variable_dtype,
            self._options,
        )
        self._stack = RowStack([self._rows])

    def build(self, inputs_shape: Any = None) -> None:
        """Makes the rows and their records.

        Args:
            inputs_shape: Shape of the ids, if known. The variables do not
                depend on it.
        """
        if self.built:
            return
        self._stack.build(self, "embeddings")
        # TensorFlow's checkpoints save the attributes of a layer.
        variables = self._stack.variables
        self._embeddings = variables["embeddings"]
        self._records = variables["records"]
        self._usage = variables.get("usage")
        self._counters = variables.get("counters", variables.get("waiting"))
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
        is_dense = not isinstance(inputs, tf.RaggedTensor | tf.SparseTensor)
        inputs = string_ids.as_integers(inputs, self._owner)
        self._require_kind(inputs.shape, is_dense, weights is not None)
        if self.combiner is not None:
            asked = feature_ids.any_ids(self._owner, inputs, weights)
            rows_ND = self._look_up(asked.ids_N, training)
            return asked.combine(rows_ND, self.combiner)
        rows_ND = self._look_up(tf.reshape(inputs, [-1]), training)
        shape = tf.concat([tf.shape(inputs), [self.output_dim]], 0)
        rows = tf.reshape(rows_ND, shape)
        rows.set_shape(inputs.shape.concatenate(self.output_dim))
        return rows

    def _look_up(self, ids_N: tf.Tensor, training: bool) -> tf.Tensor:
        (rows_ND,) = self._stack.look_up([ids_N], training, self.compute_dtype)
        return rows_ND

    @property
    def _owner(self) -> str:
        return f"layer {self.name!r}"

    def _require_kind(
        self, shape: Any, is_dense: bool, has_weights: bool
    ) -> None:
        """Refuses ids that the layer does not combine, or has to combine."""
        kind = "a dense tensor" if is_dense else "a ragged or sparse tensor"
        if self.combiner is None and (has_weights or not is_dense):
            raise errors.InputError(
                f"The {self._owner} has no combiner. Expected: a dense tensor "
                f"of ids without weights. Received: inputs={kind}"
                f"{' with weights' if has_weights else ''}. Give the layer a "
                "combiner, such as combiner='mean'."
            )
        shape = tf.TensorShape(shape)
        ranks = range(1, 1000 if is_dense else 3)
        if self.combiner is not None and shape.rank not in ranks:
            raise errors.InputError(
                f"The {self._owner} reduces the last axis of its ids. "
                "Expected: a dense tensor of rank 1 or more, or a ragged or "
                f"sparse one of rank 1 or 2. Received: inputs={kind} of "
                f"shape={shape}. Tell the rank, as keras.Input does, and "
                "reshape ids of more axes."
            )

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns where ids are no padding, if there is padding."""
        del mask
        if not self.mask_zero:
            return None
        padding = "" if inputs.dtype in ("string", tf.string) else 0
        return keras.ops.not_equal(inputs, padding)

    def compute_output_spec(
        self, inputs: Any, weights: Any = None, training: Any = None
    ) -> keras.KerasTensor:
        """Returns the spec of `call`'s result, for a functional model."""
        del training
        string_ids.require_ids(inputs.dtype, self._owner)
        is_dense = not (
            getattr(inputs, "sparse", False) or getattr(inputs, "ragged", False)
        )
        self._require_kind(inputs.shape, is_dense, weights is not None)
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
            "made", "evicted": numbers of rows; one that was too old and
            begins anew counts as both. "without_room",
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
