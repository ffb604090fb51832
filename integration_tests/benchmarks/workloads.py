"""Workloads of comparisons: models and data, for any Keras.

The caller passes the `keras` to use, which is Keras 3 or tf-keras: both
understand these programs.
"""

import dataclasses
import functools
import importlib
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Of a table the sizes of Criteo's data set have 26 of, the largest cut off.
CRITEO_ROWS = (
    *(1460, 583, 2_600_000, 2_202_608, 305, 24, 12517, 633, 3, 93145, 5683),
    *(2_600_000, 3194, 27, 14992, 2_600_000, 10, 5652, 2173, 4, 2_600_000),
    *(18, 15, 286_181, 105, 142_572),
)
_WIDTH = 16
# Number of batches, which are read repeatedly.
_BATCHES = 16


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model and its data.

    Attributes:
        batch: Rows of a batch.
        model: Makes a compiled model from a Keras and the steps of a call.
        rows: Makes features and targets, which may be random, from a source of
            random numbers and a number of rows.
        min_shard_bytes: Minimum size of a table's shard. By default that of
            `MinSizePartitioner`, TensorFlow's and ours.
        joint_model: The same with one `tfps.layers.DistributedEmbedding` in
            place of an embedding for each table.
    """

    batch: int
    model: Callable[[Any, int | None], Any]
    rows: Callable[[np.random.Generator, int], tuple[Any, np.ndarray]]
    min_shard_bytes: int = 256 << 10
    joint_model: Callable[[Any, int | None], Any] | None = None

    def dataset(self, context: Any = None) -> tf.data.Dataset:
        """Returns endless batches, different ones on each worker."""
        worker = context.input_pipeline_id if context else 0
        random = np.random.default_rng(1000 + worker)
        return (
            tf.data.Dataset.from_tensor_slices(
                self.rows(random, _BATCHES * self.batch)
            )
            .batch(self.batch)
            .cache()
            .repeat()
            .prefetch(2)
        )


def _separate(keras: Any, ids: Any, rows_of_tables: Sequence[int]) -> list[Any]:
    return [
        keras.layers.Embedding(num_rows, _WIDTH)(ids[:, number])
        for number, num_rows in enumerate(rows_of_tables)
    ]


def joint_rows(
    ids: Mapping[str, Any], rows_of_tables: Mapping[str, int], **options: Any
) -> list[Any]:
    """Returns rows of one `DistributedEmbedding`, in the order of the tables.

    Args:
        ids: Keras tensors of shape `(B,)`, by the names of their tables.
        rows_of_tables: Numbers of rows, by the names of the tables.
        **options: Arguments of the layer.
    """
    import tfps_plugin as tfps

    embed = tfps.layers.DistributedEmbedding(
        {
            name: tfps.layers.FeatureConfig(
                name,
                tfps.layers.TableConfig(name, num_rows, _WIDTH, "uniform"),
                (None,),
                (None, _WIDTH),
            )
            for name, num_rows in rows_of_tables.items()
        },
        **options,
    )
    rows = embed(dict(ids))
    return [rows[name] for name in rows_of_tables]


def _joint(
    keras: Any, ids: Any, rows_of_tables: Sequence[int], **options: Any
) -> list[Any]:
    names = [f"table_{number}" for number in range(len(rows_of_tables))]
    return joint_rows(
        {name: ids[:, number] for number, name in enumerate(names)},
        dict(zip(names, rows_of_tables, strict=True)),
        **options,
    )


def _tables(
    rows_of_tables: Sequence[int],
    hidden: Sequence[int],
    embed: Callable[..., list[Any]] = _separate,
) -> Callable[..., Any]:
    """Returns a model of an embedding per table, with dense layers on top."""

    def make(keras: Any, steps_per_call: int | None, **options: Any) -> Any:
        ids = keras.Input((len(rows_of_tables),), dtype="int64", name="ids")
        embedded = embed(keras, ids, rows_of_tables, **options)
        x = (
            keras.layers.Concatenate()(embedded)
            if embedded[1:]
            else embedded[0]
        )
        for size in hidden:
            x = keras.layers.Dense(size, activation="relu")(x)
        output = keras.layers.Dense(1, activation="sigmoid")(x)
        model = keras.Model(ids, output)
        model.compile(
            keras.optimizers.Adagrad(0.05),
            "binary_crossentropy",
            **_packed(steps_per_call),
        )
        return model

    return make


def _dense(keras: Any, steps_per_call: int | None) -> Any:
    model = keras.Sequential(
        [
            keras.Input((64,)),
            *(keras.layers.Dense(64, activation="tanh") for _ in range(60)),
            keras.layers.Dense(64),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), "mse", **_packed(steps_per_call))
    return model


def _wide_and_deep(keras: Any, steps_per_call: int | None) -> Any:
    """Returns the model of the flights example."""
    flights = _flights()
    sizes = flights.encoder.table_sizes
    ids = {name: keras.Input((), dtype="int32", name=name) for name in sizes}
    features, _ = flights.rows
    wide_ids = keras.Input(
        features["wide"].shape[1:], dtype="int32", name="wide"
    )
    numbers = keras.Input(features["numbers"].shape[1:], name="numbers")
    deep = keras.layers.Concatenate()(
        [
            keras.layers.Embedding(size, flights.widths[name])(ids[name])
            for name, size in sizes.items()
        ]
        + [numbers]
    )
    for units in (64, 32):
        deep = keras.layers.Dense(units, activation="relu")(deep)
        deep = keras.layers.Dropout(0.3)(deep)
    deep = keras.layers.Dense(1)(deep)
    weights = keras.layers.Embedding(flights.encoder.wide_size, 1)(wide_ids)
    # Keras 2 has no operations.
    wide = keras.layers.Lambda(lambda rows: tf.reduce_sum(rows, axis=1))(
        weights
    )
    model = keras.Model(
        {**ids, "wide": wide_ids, "numbers": numbers},
        keras.layers.Activation("sigmoid")(keras.layers.Add()([wide, deep])),
    )
    model.compile(
        keras.optimizers.Adagrad(0.05),
        "binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
        **_packed(steps_per_call),
    )
    return model


@dataclasses.dataclass(frozen=True)
class _Flights:
    """The flights of the training months.

    Attributes:
        encoder: The encoder of the example.
        widths: Widths of the embeddings.
        rows: Features and labels.
    """

    encoder: Any
    widths: Mapping[str, int]
    rows: tuple[dict[str, np.ndarray], np.ndarray]


@functools.cache
def _flights() -> _Flights:
    folder = pathlib.Path(__file__).parents[2] / "examples"
    sys.path.insert(0, str(folder))
    flights_data = importlib.import_module("flights_data")
    features = importlib.import_module("flights_features")
    flights = flights_data.describe_flights(flights_data.read_tables())
    train = flights_data.part(flights, "train")
    encoder = features.Encoder.learn(train)
    late = train["late"].to_numpy().astype("float32")
    return _Flights(
        encoder,
        importlib.import_module("flights").WIDTHS,
        (encoder.encode(train), late[:, None]),
    )


def _some_flights(random: np.random.Generator, count: int) -> Any:
    features, late = _flights().rows
    chosen = random.integers(0, len(late), count)
    return {name: x[chosen] for name, x in features.items()}, late[chosen]


def _packed(steps_per_call: int | None) -> dict[str, int]:
    if steps_per_call is None:
        return {}
    return {"steps_per_execution": steps_per_call}


def _uniform_ids(
    rows_of_tables: Sequence[int],
) -> Callable[[np.random.Generator, int], tuple[Any, np.ndarray]]:
    def rows(random: np.random.Generator, count: int) -> Any:
        ids = random.integers(0, rows_of_tables, (count, len(rows_of_tables)))
        return ids, _labels(random, count)

    return rows


def _zipf_ids(
    rows_of_tables: Sequence[int],
) -> Callable[[np.random.Generator, int], tuple[Any, np.ndarray]]:
    def rows(random: np.random.Generator, count: int) -> Any:
        ids = random.zipf(1.05, (count, len(rows_of_tables)))
        return ids % rows_of_tables, _labels(random, count)

    return rows


def _vectors(random: np.random.Generator, count: int) -> Any:
    x = random.normal(size=(2, count, 64)).astype("float32")
    return x[0], x[1]


def _labels(random: np.random.Generator, count: int) -> np.ndarray:
    return (random.random((count, 1)) < 0.3).astype("float32")


_SMALL = (20_000,) * 26
_GIANT = (20_000_000,)
WORKLOADS = {
    "dlrm26": Workload(
        512,
        _tables(_SMALL, (256, 128)),
        _uniform_ids(_SMALL),
        joint_model=_tables(_SMALL, (256, 128), _joint),
    ),
    # The same with each table on one parameter server alone.
    "dlrm26_whole": Workload(
        512,
        _tables(_SMALL, (256, 128)),
        _uniform_ids(_SMALL),
        min_shard_bytes=64 << 20,
    ),
    # The same with every variable in two shards, by FixedShardsPartitioner(2).
    "dlrm26_cut": Workload(
        512,
        _tables(_SMALL, (256, 128)),
        _uniform_ids(_SMALL),
        min_shard_bytes=1,
    ),
    "dlrm26_zipf": Workload(
        512,
        _tables(CRITEO_ROWS, (256, 128)),
        _zipf_ids(CRITEO_ROWS),
        joint_model=_tables(CRITEO_ROWS, (256, 128), _joint),
    ),
    "dense122": Workload(64, _dense, _vectors),
    "wide_deep": Workload(512, _wide_and_deep, _some_flights),
    "one_giant_table": Workload(
        512, _tables(_GIANT, (64,)), _uniform_ids(_GIANT)
    ),
}
