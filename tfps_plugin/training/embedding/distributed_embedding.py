"""`tfps.layers.DistributedEmbedding`: many features over many tables."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.training.embedding import feature_ids
from tfps_plugin.training.embedding import stacked_lookup
from tfps_plugin.training.embedding.cached_rows import CachedRows
from tfps_plugin.training.embedding.feature_tree import FeatureTree
from tfps_plugin.training.embedding.plan import EmbeddingPlan
from tfps_plugin.training.embedding.row_stack import RowStack
from tfps_plugin.training.embedding.rows_by_id import RowsById
from tfps_plugin.training.embedding.stacks import Stacking
from tfps_plugin.training.saving import block_stores
from tfps_plugin.training.saving import table_rows
from tfps_plugin.variables.dynamic.ids import string_ids
from tfps_plugin.variables.saving import row_blocks

# Tables pass through this process in blocks of about this size.
_BLOCK_BYTES = 16 << 20


@keras.saving.register_keras_serializable(package="tfps_plugin")
class DistributedEmbedding(keras.layers.Layer):
    """Embeds many features with many tables, in one lookup.

    ```python
    ads = tfps.layers.TableConfig(
        "ads", vocabulary_size=1_000_000, embedding_dim=16, combiner="mean"
    )
    users = tfps.layers.TableConfig(
        "users", vocabulary_size=50_000, embedding_dim=16
    )
    embed = tfps.layers.DistributedEmbedding(
        {
            "ad": tfps.layers.FeatureConfig("ad", ads, (None,), (None, 16)),
            "seen": tfps.layers.FeatureConfig(
                "seen", ads, (None, 20), (None, 16)
            ),
            "user": tfps.layers.FeatureConfig(
                "user", users, (None,), (None, 16)
            ),
        }
    )
    outputs = embed({"ad": ad_ids, "seen": seen_ids, "user": user_ids})
    outputs["seen"]  # shape (batch, 16)
    ```

    It gives the results of one `keras.layers.Embedding` for each table (or
    one `keras_rs.layers.EmbedReduce`, if ids are combined): the same initial
    values, outputs and gradients. Only the cost on a cluster differs.
    Tables of the same `embedding_dim` are stacked: one variable holds them one
    after the other, with one gradient and one update. Tables of another
    `embedding_dim` form another stack. The ids of all features of all sharded
    stacks are looked up together: a step sends each parameter server one
    tensor of ids and receives one tensor of rows, however many tables and
    widths there are. A stack that is not sharded has its own lookup.

    Give the strategy a `variable_partitioner`: without one, a stack is a
    single variable on a single parameter server.

    The configurations follow `keras_rs.layers.FeatureConfig` and
    `keras_rs.layers.TableConfig`. The layer accepts those too, with their
    initial values. Three things differ: the default initial values of our own
    `TableConfig` are those of `keras.layers.Embedding`, the optimizer given to
    `model.compile` trains all tables (the default of keras_rs, "adam", is
    ignored; any other is refused), and buffer sizes of a SparseCore are
    ignored.

    Whatever an optimizer computes from a whole variable, such as `clipnorm` or
    the trust ratio of LAMB, it computes from a whole stack. With
    `table_stacking=None` each table is its own variable.

    A table with `vocabulary_size=None` has no vocabulary: its ids are any
    integers or strings, and steps that train make its rows, as in
    `tfps.layers.DynamicEmbedding`. Those of the same `embedding_dim`,
    `admission` and `eviction` are stacked, and each is as if it were alone.
    `table` gives access to the contents of one.

    Weights are saved under the names of the tables. A file can be loaded into
    a layer that stacks the tables in another way.

    Args:
        feature_configs: A `FeatureConfig`, or any nested structure of them.
            Features with the same `TableConfig` object share its table.
        table_stacking: "auto" stacks the tables of one `embedding_dim`; None
            stacks nothing; a list of table names, or of such lists, stacks
            those named together.
        cache_rows: The number of rows of each stack that every lane of a worker
            keeps while it trains, of those that it looks up most
            ([cached rows](../cached_rows.md)). One process ignores it.
        cache_max_age_steps: The number of later steps of that lane that may use
            a kept row, before it is read again.
        **kwargs: As in `keras.layers.Layer`.

    Call arguments:
        inputs: Ids, in the structure of `feature_configs`. A tensor of shape
            `(batch,)` is looked up; a dense tensor of shape `(batch, ids)`, or
            a ragged or sparse one, is looked up and reduced by the combiner of
            the table. As in `keras.layers.Embedding`, a negative id counts
            from the end of the table. Any other id outside the table is an
            error that names the feature. In a table without a vocabulary, any
            id is as good as another, and ids may be strings.
        weights: Optional weights of the ids, in the same structure, each of
            the kind and shape of its ids; None for a feature without any. For
            ids of shape `(batch,)` only the combiner "sum" uses them.
        training: Whether tables without a vocabulary make rows for new ids. By
            default, if Keras trains the model or a gradient tape records the
            call.

    Call result:
        Dense tensors of shape `(batch, embedding_dim)` in the structure of
        `feature_configs`, of the layer's `compute_dtype`.

    Raises:
        ValueError: If configurations contradict one another; and, as an
            `errors.InputError`, if the structure, rank or kind of inputs or
            weights differs from the configurations.
        TypeError: If an object is given that is not a configuration.
        errors.UnsupportedError: If a table asks for its own optimizer or for
            the "sparsecore" placement; if there are `cache_rows` and a table
            without a vocabulary; and before the first step that trains, if old
            rows would break a promise of the strategy.
    """

    built: bool

    def __init__(
        self,
        feature_configs: Any,
        *,
        table_stacking: Stacking = "auto",
        cache_rows: int = 0,
        cache_max_age_steps: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # As in Embedding: autocasting would cast ids that are given as floats.
        self.autocast = False
        # The error about a wrong id needs strings, which XLA does not support.
        self.supports_jit = False
        self._plan = EmbeddingPlan(feature_configs, table_stacking)
        self._cached = CachedRows(
            cache_rows,
            cache_max_age_steps,
            [
                each.table.name
                for plan in self._plan.dynamic
                for each in plan.tables
            ],
        )
        self._stacks: list[keras.Variable] = []
        self._rows_by_id = tuple(
            RowStack(
                [
                    RowsById(
                        f"table {each.table.name!r}",
                        each.table.name,
                        each.table.embedding_dim,
                        each.initializer,
                        self.variable_dtype,
                        each.table.row_options,
                    )
                    for each in plan.tables
                ]
            )
            for plan in self._plan.dynamic
        )

    def build(self, inputs_shape: Any = None) -> None:
        """Makes one variable for each stack, and those of other tables.

        Args:
            inputs_shape: Structure of the shapes of the ids, if known. The
                variables do not depend on it.
        """
        if self.built:
            return
        if inputs_shape is not None:
            # Checks before it makes a large table in vain.
            self._require_shapes(inputs_shape)
        self._stacks = [
            self.add_weight(
                shape=(plan.stack.rows, plan.stack.width),
                initializer=plan.initializer,
                name=plan.stack.name,
            )
            for plan in self._plan.stacks
        ]
        for plan, stack in zip(self._plan.stacks, self._stacks, strict=True):
            # TensorFlow's checkpoints save the attributes of a layer, but not
            # the items of a list of weights.
            self._keep(plan.stack.name, stack)
        for by_id, row_stack in zip(
            self._plan.dynamic, self._rows_by_id, strict=True
        ):
            row_stack.build(self, by_id.name, prefix=f"{by_id.name}_")
            for variable in row_stack.all_variables:
                self._keep(variable.name, variable)
        self.built = True

    def _keep(self, name: str, variable: keras.Variable) -> None:
        """Makes a variable an attribute; a table may be called "table"."""
        taken = hasattr(type(self), name)
        setattr(self, f"{name}_" if taken else name, variable)

    def get_build_config(self) -> dict[str, Any]:
        """Returns no shape: the variables do not depend on it."""
        return {"input_shape": None}

    def call(
        self, inputs: Any, weights: Any = None, training: bool | None = None
    ) -> Any:
        """Looks up and combines; see the class for arguments."""
        tree = self._plan.tree
        # One for each feature; None where a feature has no weights.
        flat_weights = (
            [None] * len(tree.features)
            if weights is None
            else tree.match(weights, "weights", none_is_fine=True)
        )
        asked = [
            feature_ids.feature_ids(
                feature,
                string_ids.as_integers(ids, f"feature {feature.name!r}")
                if feature.table.is_dynamic
                else ids,
                weights_of_ids,
            )
            for feature, ids, weights_of_ids in zip(
                tree.features,
                tree.match(inputs, "inputs"),
                flat_weights,
                strict=True,
            )
        ]
        rows = stacked_lookup.look_up(
            [
                stacked_lookup.Request(
                    variable,
                    plan.spans,
                    [asked[n].ids_N for n in plan.features],
                    self._cached.of_step(number, variable),
                )
                for number, (plan, variable) in enumerate(
                    zip(self._plan.stacks, self._stacks, strict=True)
                )
            ]
        )
        outputs: dict[int, tf.Tensor] = {}
        for plan, rows_of_stack in zip(self._plan.stacks, rows, strict=True):
            for number, rows_ND in zip(
                plan.features, rows_of_stack, strict=True
            ):
                combiner = tree.features[number].table.combiner
                outputs[number] = asked[number].combine(
                    tf.cast(rows_ND, self.compute_dtype), combiner
                )
        outputs.update(self._of_dynamic(asked, training))
        return tree.pack([outputs[n] for n in range(len(asked))])

    def _of_dynamic(
        self, asked: list[feature_ids.FeatureIds], training: bool | None
    ) -> Iterator[tuple[int, tf.Tensor]]:
        """Yields the number and output of features of tables by id."""
        if training is None:
            training = compat.is_recording()
        for plan, stack in zip(
            self._plan.dynamic, self._rows_by_id, strict=True
        ):
            ids = [
                [asked[number].ids_N for number in each.features]
                for each in plan.tables
            ]
            rows = stack.look_up(
                [tf.concat(of_table, 0) for of_table in ids],
                training,
                self.compute_dtype,
            )
            for each, ids_of_table, rows_ND in zip(
                plan.tables, ids, rows, strict=True
            ):
                of_features = tf.split(
                    rows_ND,
                    [tf.size(of_feature) for of_feature in ids_of_table],
                    num=len(ids_of_table),
                )
                for number, rows_of_feature in zip(
                    each.features, of_features, strict=True
                ):
                    combiner = each.table.combiner
                    yield (
                        number,
                        asked[number].combine(rows_of_feature, combiner),
                    )

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """Returns `(batch, embedding_dim)` in the structure of the features."""
        shapes = self._require_shapes(inputs_shape)
        return self._plan.tree.pack(
            [
                (shape[0], feature.table.embedding_dim)
                for shape, feature in zip(
                    shapes, self._plan.tree.features, strict=True
                )
            ]
        )

    def compute_output_spec(
        self, inputs: Any, weights: Any = None, training: Any = None
    ) -> Any:
        """Returns the spec of `call`'s result, for a functional model."""
        del training
        tree = self._plan.tree
        if weights is not None:
            tree.match(weights, "weights", none_is_fine=True)
        specs = []
        for feature, ids in zip(
            tree.features, tree.match(inputs, "inputs"), strict=True
        ):
            dense = not (
                getattr(ids, "sparse", False) or getattr(ids, "ragged", False)
            )
            if feature.table.is_dynamic:
                string_ids.require_ids(ids.dtype, f"feature {feature.name!r}")
            feature_ids.require_shape(feature, ids.shape, dense)
            specs.append(
                keras.KerasTensor(
                    (ids.shape[0], feature.table.embedding_dim),
                    dtype=self.compute_dtype,
                )
            )
        return tree.pack(specs)

    def _require_shapes(self, shapes: Any) -> list[Any]:
        """Returns the shapes in the order of the features, if they fit."""
        found = self._plan.tree.match_shapes(shapes)
        for feature, shape in zip(self._plan.tree.features, found, strict=True):
            # A shape does not tell whether its tensor is dense.
            feature_ids.require_shape(feature, shape, dense=False)
        return found

    # Contents of the tables.

    def get_embedding_tables(self) -> dict[str, tf.Tensor]:
        """Returns the contents of the tables with a vocabulary, by name.

        `table` gives access to those without one.

        Returns:
            For each of these tables a tensor of shape `(vocabulary_size,
            embedding_dim)`: a copy on the device of the caller.

        Raises:
            ValueError: If the layer has not been built yet.
        """
        return {
            name: tf.gather(variable, tf.range(rows.start, rows.stop))
            for name, variable, rows in self._tables()
        }

    def table(self, name: str) -> RowsById:
        """Returns a table without a vocabulary.

        Args:
            name: Its name.

        Returns:
            An object with `size()`, `export()`, `import_(ids, rows)` and
            `statistics()`, as `tfps.layers.DynamicEmbedding` has them. They
            need a layer that has been built.

        Raises:
            ValueError: If the layer has no such table, or it has a vocabulary.
        """
        for each, rows in self._dynamic_tables():
            if each == name:
                return rows
        known = [each for each, _ in self._dynamic_tables()]
        has_vocabulary = any(
            table.name == name for table in self._plan.tree.tables
        )
        raise ValueError(
            f"The layer {self.name!r} has no table {name!r} without a "
            f"vocabulary. Expected one of {known}. Received: name={name!r}"
            + (
                ". It has a vocabulary: see get_embedding_tables()."
                if has_vocabulary
                else ""
            )
        )

    def _dynamic_tables(self) -> Iterator[tuple[str, RowsById]]:
        """Yields the name of each table without a vocabulary, and its rows."""
        for stack in self._rows_by_id:
            for rows in stack.tables:
                yield rows.name, rows

    def _tables(self) -> Iterator[tuple[str, keras.Variable, range]]:
        """Yields the tables with a vocabulary.

        Of each: its name, its variable and its rows there.
        """
        if not self.built:
            raise ValueError(
                f"The layer {self.name!r} has no tables before it is built. "
                "Call it on some input, or call build() without arguments."
            )
        for plan, variable in zip(self._plan.stacks, self._stacks, strict=True):
            for size in plan.stack.tables:
                yield size.name, variable, plan.stack.range_of(size.name)

    def cache_statistics(self) -> dict[str, int | float]:
        """Returns counts of what workers that live have looked up to train.

        Returns:
            "asked": number of rows; rows of one step count once. "hits":
            number of those that the worker had. "hit_rate": the share of hits.

        Raises:
            tf.errors.OpError: If a worker does not answer.
        """
        return self._cached.statistics()

    def save_own_variables(self, store: Any) -> None:
        """Saves the tables under their names, one after the other."""
        for name, variable, rows in self._tables():
            self._save(store, name, variable, [rows])
        for name, variable, pieces in self._by_id():
            if pieces is None:
                store[name] = variable
            else:
                self._save(store, name, variable, pieces)

    @staticmethod
    def _save(
        store: Any, name: str, variable: keras.Variable, pieces: list[range]
    ) -> None:
        in_blocks = block_stores.rows_for(store, variable, pieces)
        store[name] = (
            table_rows.rows_of(variable, pieces)
            if in_blocks is None
            else in_blocks
        )

    def load_own_variables(self, store: Any) -> None:
        """Loads the tables that `save_own_variables` saved.

        Raises:
            ValueError: If the file has other tables, or tables of other shapes.
        """
        tables = list(self._tables())
        expected = {
            name: (len(rows), variable.shape[1])
            for name, variable, rows in tables
        }
        for name, variable, pieces in self._by_id():
            num_rows = variable.shape[0]
            if pieces is not None:
                num_rows = sum(map(len, pieces))
            expected[name] = num_rows, *variable.shape[1:]
        found = {name: tuple(store[name].shape) for name in store.keys()}  # noqa: SIM118
        if found != expected:
            raise ValueError(
                f"The file has other tables than the layer {self.name!r}. "
                f"Expected: {expected}. Received: {found}"
            )
        for name, variable, rows in tables:
            _assign(variable, [rows], store[name])
        for name, variable, pieces in self._by_id():
            if pieces is None:
                variable.assign(store[name])
            else:
                _assign(variable, pieces, store[name])

    def _by_id(
        self,
    ) -> Iterator[tuple[str, keras.Variable, list[range] | None]]:
        """Yields what is saved of tables without a vocabulary.

        Of each: a name that does not depend on what is stacked, a variable, and
        the rows of it; None: all.
        """
        for stack in self._rows_by_id:
            for table in stack.tables:
                yield from stack.saved(table)

    # Serialization.

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration that `from_config` takes."""
        return {
            **super().get_config(),
            **self._plan.tree.get_config(),
            "table_stacking": self._plan.table_stacking,
            **self._cached.get_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DistributedEmbedding":
        """Creates the layer that `get_config` described."""
        others = {
            key: value
            for key, value in config.items()
            if key not in ("feature_configs", "tables")
        }
        return cls(FeatureTree.structure_from_config(config), **others)


def _assign(variable: keras.Variable, pieces: list[range], values: Any) -> None:
    """Assigns values to rows, from an array or an object that slices to one."""
    row_bytes = variable.shape[1] * tf.as_dtype(variable.dtype).size
    first = 0
    for block in row_blocks.cut(pieces, max(1, _BLOCK_BYTES // row_bytes)):
        numbers = row_blocks.array(block)
        part = values[first : first + len(numbers)]
        variable.value.scatter_update(
            tf.IndexedSlices(tf.cast(part, variable.dtype), numbers)
        )
        first += len(numbers)
