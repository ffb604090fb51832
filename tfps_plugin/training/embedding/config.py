"""Descriptions of a feature and its table, as in keras_rs."""

import dataclasses
import operator
import sys
from typing import Any

import keras

from tfps_plugin import errors
from tfps_plugin.training.embedding import row_options
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.storage.tiered_storage import TieredStorage

_OF_ROWS = ("capacity", "admission", "eviction", "unknown")
COMBINERS = ("mean", "sum", "sqrtn")

# (batch,) or (batch, ids of an example); None allows any size.
Shape = tuple[int | None, ...]

# The default of keras_rs.
_OPTIMIZER_OF_KERAS_RS = "adam"


def _default_initializer() -> Any:
    # As in keras.layers.Embedding. Each table gets its own: two tables with
    # the same seed would start with the same values.
    return keras.initializers.RandomUniform(-0.05, 0.05)


@keras.saving.register_keras_serializable(package="tfps_plugin")
@dataclasses.dataclass(frozen=True)
class TableConfig:
    """One embedding table of a `tfps.layers.DistributedEmbedding`.

    Several features may use one table: give them the same object.

    Example:

    ```python
    table = tfps.layers.TableConfig(
        "ads", vocabulary_size=1_000_000, embedding_dim=16, combiner="mean"
    )
    ```

    Attributes:
        name: Name of the table, unique in the layer.
        vocabulary_size: Number of rows. None: the table has no vocabulary. Its
            ids are any integers or strings, and each gets a row of its own
            when a step that trains meets it first, as in
            `tfps.layers.DynamicEmbedding`. Such tables are stacked with each
            other, if they have the same `embedding_dim`, `admission` and
            `eviction`.
        embedding_dim: Length of a row.
        initializer: Initial values: a Keras initializer or the name of one. By
            default uniform from -0.05 to 0.05, as in `keras.layers.Embedding`.
            A `keras_rs.layers.TableConfig` keeps its own default: a truncated
            normal distribution of standard deviation `1 /
            sqrt(embedding_dim)`, nine times as wide for rows of 16 numbers.
        optimizer: Leave it None: the optimizer given to `model.compile` trains
            the tables, on the parameter servers.
        combiner: "mean", "sum" or "sqrtn": how the rows of one example are
            reduced.
        placement: "auto" or "default_device"; both mean the same here.
        capacity: Only without a vocabulary, like the next three, and as in
            `tfps.layers.DynamicEmbedding`: number of ids that there is room
            for. None means 1,000,000.
        admission: Ids that get rows, a `tfps.layers.Admission`; None: all.
        eviction: Rows that lose their ids, a `tfps.layers.Eviction`; None:
            none.
        unknown: Output for ids without a row: "initial", "zeros" or "shared".
            None means "initial".
        storage: Where rows are kept, a `tfps.TieredStorage`; None: in memory.
            A table with `storage` is not stacked.

    Raises:
        ValueError: If an argument is not one of the values above, or if a
            table with a vocabulary has one of the four that are only for
            tables without.
        UnsupportedError: If the table has its own optimizer, or is placed on
            a SparseCore.
    """

    name: str
    vocabulary_size: int | None
    embedding_dim: int
    initializer: Any = dataclasses.field(default_factory=_default_initializer)
    optimizer: None = None
    combiner: str = "mean"
    placement: str = "auto"
    capacity: int | None = None
    admission: Admission | None = None
    eviction: Eviction | None = None
    unknown: str | None = None
    storage: TieredStorage | None = None

    def __post_init__(self) -> None:
        _require_name(self.name, "TableConfig")
        self._check_rows()
        for attribute in ("vocabulary_size", "embedding_dim"):
            if attribute == "vocabulary_size" and self.is_dynamic:
                continue
            size = _positive(getattr(self, attribute))
            if size is None:
                raise ValueError(
                    f"`{attribute}` of the table {self.name!r} is expected to "
                    "be a positive integer. Received: "
                    f"{attribute}={getattr(self, attribute)!r}"
                )
            object.__setattr__(self, attribute, size)
        if self.combiner not in COMBINERS:
            raise ValueError(
                f"`combiner` of the table {self.name!r} is expected to be one "
                f"of {', '.join(COMBINERS)}. Received: "
                f"combiner={self.combiner!r}"
            )
        if self.placement == "sparsecore":
            raise errors.UnsupportedError(
                f"The table {self.name!r} is to be placed on a TPU's "
                "SparseCore; here tables are on parameter servers. Received: "
                "placement='sparsecore'. Use placement='auto'."
            )
        if self.placement not in ("auto", "default_device"):
            raise ValueError(
                f"`placement` of the table {self.name!r} is expected to be "
                "'auto' or 'default_device'. Received: "
                f"placement={self.placement!r}"
            )
        if self.optimizer is not None:
            raise errors.UnsupportedError(
                f"The table {self.name!r} cannot have an optimizer of its own: "
                "the model's optimizer trains all tables, on the parameter "
                f"servers. Received: optimizer={self.optimizer!r}. Give this "
                "optimizer to model.compile() and leave it out here. For "
                "different ones use DistributedEmbedding(..., "
                "table_stacking=None), which keeps one variable for each "
                "table, and keras.optimizers.MultiOptimizer of newer Keras "
                "releases, which chooses an optimizer by variable."
            )

    @property
    def is_dynamic(self) -> bool:
        """True if the table has no vocabulary."""
        return self.vocabulary_size is None

    @property
    def row_options(self) -> row_options.RowOptions:
        """Options of a table without a vocabulary."""
        return row_options.checked(
            self._owner,
            self.capacity,
            self.admission,
            self.eviction,
            self.unknown,
            self.storage,
        )

    @property
    def _owner(self) -> str:
        return f"the table {self.name!r}"

    def _check_rows(self) -> None:
        """Checks the options of rows, and fills in those left out."""
        given = {
            name: getattr(self, name)
            for name in _OF_ROWS
            if getattr(self, name) is not None
        }
        if not self.is_dynamic:
            if given:
                shown = ", ".join(f"{k}={v!r}" for k, v in given.items())
                raise ValueError(
                    f"The table {self.name!r} has a vocabulary, and so all of "
                    f"its rows. Expected: no {' and no '.join(given)}. "
                    f"Received: vocabulary_size={self.vocabulary_size!r}, "
                    f"{shown}. Leave it out, or give vocabulary_size=None."
                )
            storage = row_options.checked_storage(self._owner, self.storage)
            object.__setattr__(self, "storage", storage)
            return
        # A saved table keeps its size when a default changes.
        for name, value in (
            ("capacity", row_options.CAPACITY),
            ("unknown", row_options.UNKNOWN[0]),
        ):
            if name not in given:
                object.__setattr__(self, name, value)
        options = self.row_options
        object.__setattr__(self, "admission", options.admission)
        object.__setattr__(self, "eviction", options.eviction)
        object.__setattr__(self, "storage", options.storage)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration that `from_config` takes."""
        of_rows: dict[str, Any] = {}
        if self.is_dynamic:
            of_rows = self.row_options.get_config()
        elif self.storage is not None:
            # Earlier releases can read the configuration of other tables.
            of_rows = {"storage": self.storage.get_config()}
        return {
            "name": self.name,
            "vocabulary_size": self.vocabulary_size,
            "embedding_dim": self.embedding_dim,
            "initializer": keras.saving.serialize_keras_object(
                self.initializer
            ),
            "combiner": self.combiner,
            "placement": self.placement,
            **of_rows,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TableConfig":
        """Creates a table from its configuration.

        Args:
            config: The configuration, from `get_config`.

        Returns:
            The table.
        """
        initializer = keras.saving.deserialize_keras_object(
            config["initializer"]
        )
        return cls(**{**config, "initializer": initializer})


@keras.saving.register_keras_serializable(package="tfps_plugin")
@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """One feature that a `tfps.layers.DistributedEmbedding` embeds.

    Example:

    ```python
    feature = tfps.layers.FeatureConfig(
        "ad", table, input_shape=(None, 20), output_shape=(None, 16)
    )
    ```

    Attributes:
        name: Name of the feature, for messages.
        table: The table that its ids are looked up in.
        input_shape: `(batch,)` for one id in each example, `(batch, ids)` for
            several, which the table's combiner reduces to one row. None
            allows any size; the batch may always have any size. Ragged and
            sparse inputs may have any number of ids too, and nothing is
            truncated. `(batch, 1)` also accepts ids of shape `(batch,)`.
        output_shape: `(batch, embedding_dim)`.

    Raises:
        TypeError: If `table` is not a `TableConfig`.
        ValueError: If an argument is not one of the values above.
    """

    name: str
    table: TableConfig
    input_shape: Shape
    output_shape: Shape

    def __post_init__(self) -> None:
        _require_name(self.name, "FeatureConfig", slashes=True)
        if not isinstance(self.table, TableConfig) and not _is_of_keras_rs(
            self.table, "TableConfig"
        ):
            raise TypeError(
                f"`table` of the feature {self.name!r} is expected to be a "
                f"tfps.layers.TableConfig. Received: table={self.table!r}"
            )
        for attribute in ("input_shape", "output_shape"):
            shape = _shape(getattr(self, attribute))
            if shape is None:
                raise ValueError(
                    f"`{attribute}` of the feature {self.name!r} is expected "
                    "to be a tuple of sizes or None. Received: "
                    f"{attribute}={getattr(self, attribute)!r}"
                )
            object.__setattr__(self, attribute, shape)
        if len(self.input_shape) not in (1, 2):
            raise ValueError(
                f"`input_shape` of the feature {self.name!r} is expected to "
                "be (batch,) for one id in each example or (batch, ids) for "
                f"several. Received: input_shape={self.input_shape}"
            )
        width = self.table.embedding_dim
        if len(self.output_shape) != 2 or self.output_shape[1] not in (
            None,
            width,
        ):
            raise ValueError(
                f"`output_shape` of the feature {self.name!r} is expected to "
                f"be (batch, {width}), as its table {self.table.name!r} has "
                f"embedding_dim={width}. Received: "
                f"output_shape={self.output_shape}"
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration that `from_config` takes.

        The layer restores the sharing of tables between features.
        """
        return {
            "name": self.name,
            "table": self.table.get_config(),
            # Lists, because JSON has no tuples.
            "input_shape": list(self.input_shape),
            "output_shape": list(self.output_shape),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "FeatureConfig":
        """Creates a feature from its configuration, with its own table.

        Args:
            config: The configuration, from `get_config`.

        Returns:
            The feature.
        """
        return cls(
            **{**config, "table": TableConfig.from_config(config["table"])}
        )


class Adopter:
    """Converts configurations of keras_rs; shared tables stay shared."""

    def __init__(self) -> None:
        # Keeps the originals too: Python may reuse the id of a dead object.
        self._tables: dict[int, tuple[Any, TableConfig]] = {}

    def feature(self, config: Any, path: str) -> FeatureConfig:
        """Converts the configuration of a feature to our own class.

        Args:
            config: A `FeatureConfig`, ours or theirs.
            path: Its position in the structure of features.

        Returns:
            The converted configuration, or `config` itself if it is ours.

        Raises:
            TypeError: If it is something else.
            errors.UnsupportedError: If it asks for an unsupported feature.
        """
        if not isinstance(config, FeatureConfig):
            if not _is_of_keras_rs(config, "FeatureConfig"):
                raise TypeError(
                    "`feature_configs` is expected to be a structure of "
                    "tfps.layers.FeatureConfig, or of those of keras_rs. "
                    f"Received: {config!r} at {path or 'the top'}"
                )
            return FeatureConfig(
                config.name,
                self._table(config.table),
                config.input_shape,
                config.output_shape,
            )
        table = self._table(config.table)
        if table is config.table:
            return config
        return dataclasses.replace(config, table=table)

    def _table(self, config: Any) -> TableConfig:
        if isinstance(config, TableConfig):
            return config
        if id(config) not in self._tables:
            optimizer = config.optimizer
            if isinstance(optimizer, str) and (
                optimizer == _OPTIMIZER_OF_KERAS_RS
            ):
                # The user did not ask for it: it is their default.
                optimizer = None
            # Buffer sizes of a SparseCore have no meaning here.
            ours = TableConfig(
                name=config.name,
                vocabulary_size=config.vocabulary_size,
                embedding_dim=config.embedding_dim,
                initializer=config.initializer,
                optimizer=optimizer,
                combiner=config.combiner,
                placement=config.placement,
            )
            self._tables[id(config)] = (config, ours)
        return self._tables[id(config)][1]


def _is_of_keras_rs(config: Any, name: str) -> bool:
    """Returns whether it is an instance of that class of keras_rs."""
    # A program that holds such an instance has imported keras_rs.
    theirs = getattr(sys.modules.get("keras_rs.layers"), name, None)
    return theirs is not None and isinstance(config, theirs)


def _require_name(name: Any, owner: str, slashes: bool = False) -> None:
    # The name of a table becomes that of a variable, and Keras allows no slash
    # there.
    if not isinstance(name, str) or not name or ("/" in name and not slashes):
        raise ValueError(
            f"`name` of a {owner} is expected to be a string that is not "
            f"empty{'' if slashes else ' and has no slash'}. Received: "
            f"name={name!r}"
        )


def _positive(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number > 0 else None


def _shape(value: Any) -> Shape | None:
    if not hasattr(value, "__iter__") or isinstance(value, str):
        return None
    sizes: list[int | None] = []
    for size in value:
        if size is not None:
            try:
                size = operator.index(size)
            except TypeError:
                return None
            if size < 0:
                return None
        sizes.append(size)
    return tuple(sizes)
