"""Training whose numbers workers in step share with one process.

The reference is a process that trains with the batches of all workers as one.
If an id occurs twice in a batch, Keras's optimizers see two gradients instead
of their sum; the reference here gets the sum.
"""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import shared_optimizers
import tensorflow as tf

import tfps_plugin as tfps

ROWS = 60
# Rows of a variable -> number of its shards: three tables, and the kernel of a
# dense layer.
_SHARDS = {ROWS: 1, ROWS + 1: 2, ROWS + 2: 3, 36: 2}
STEPS = 20
BATCH = 16

# Largest difference, as a part of the largest value of a variable. Sums in
# another order differ by their rounding. Adam amplifies it: it divides by the
# root of small squares, most of all where gradients are clipped. So does Muon,
# whose polynomial of a matrix is steep at small singular values.
TOLERANCE = 1e-5
TOLERANCES = {
    "Adam, amsgrad": 2e-5,
    "clipnorm": 2e-5,
    "global_clipnorm": 2e-5,
    "accumulation": 2e-5,
    "Muon": 2e-5,
}

_optimizers = keras.optimizers

CASES: dict[str, Callable[[], Any]] = (
    shared_optimizers.EVERY
    | shared_optimizers.OPTIONS
    | {
        "SGD, plain": lambda: _optimizers.SGD(0.1),
        "SGD, momentum": lambda: _optimizers.SGD(0.1, momentum=0.9),
        "SGD, decay": lambda: _optimizers.SGD(0.1, weight_decay=0.1),
        "SGD, clipnorm": lambda: _optimizers.SGD(0.1, clipnorm=0.01),
        "SGD, global_clipnorm": lambda: _optimizers.SGD(
            0.1, global_clipnorm=0.02
        ),
        "Adagrad, accumulation": lambda: _optimizers.Adagrad(
            0.1, gradient_accumulation_steps=3
        ),
        "Adam, accumulation, overwriting": lambda: _optimizers.Adam(
            0.01,
            gradient_accumulation_steps=4,
            use_ema=True,
            ema_momentum=0.9,
            ema_overwrite_frequency=7,
        ),
        "Nadam, schedule": lambda: _optimizers.Nadam(
            _optimizers.schedules.CosineDecay(0.05, 15)
        ),
        "LossScaleOptimizer, accumulation": lambda: (
            _optimizers.LossScaleOptimizer(
                _optimizers.Adam(0.01, gradient_accumulation_steps=3),
                dynamic_growth_steps=6,
            )
        ),
    }
)

if hasattr(_optimizers, "MultiOptimizer"):
    # Since Keras 3.15. Both clip by a norm, but not by the same.
    CASES["MultiOptimizer, norms"] = lambda: _optimizers.MultiOptimizer(
        _optimizers.OptimizerMap(
            _optimizers.SGD(0.1, global_clipnorm=0.02),
            {".*embed.*": _optimizers.SGD(0.1, clipnorm=0.01)},
        )
    )
    CASES["MultiOptimizer, global norms"] = lambda: _optimizers.MultiOptimizer(
        _optimizers.OptimizerMap(
            _optimizers.SGD(0.1, global_clipnorm=0.02),
            {
                ".*embed.*": _optimizers.SGD(
                    0.1, global_clipnorm=0.01, gradient_accumulation_steps=3
                )
            },
        )
    )


class Trained(NamedTuple):
    """Model after training, as arrays.

    Attributes:
        losses: The loss of each epoch.
        weights: The weights of the model.
        state: The variables of the optimizer.
    """

    losses: list[float]
    weights: list[np.ndarray]
    state: list[np.ndarray]


def cut(shape: Any, dtype: Any, axis: int = 0) -> list[int]:
    """Returns the shards of a variable, as a partitioner."""
    del dtype, axis
    return [_SHARDS.get(shape[0], 1)] + [1] * (len(shape) - 1)


class Data:
    """Batches of each worker, and those of all of them as one.

    Attributes:
        ids: Ids by worker, step, example and place in it; they repeat within
            examples, too.
        targets: A target for each example.
    """

    def __init__(self, num_workers: int) -> None:
        """Draws the batches; the same ones each time.

        Args:
            num_workers: Number of workers.
        """
        random = np.random.default_rng(5)
        shape = num_workers, STEPS, BATCH
        self.ids = random.integers(0, ROWS, (*shape, 3)).astype("int32")
        self.ids[..., 1] = self.ids[..., 0]
        self.targets = random.normal(size=(*shape, 1)).astype("float32")

    def of_worker(
        self, context: Any, targets: np.ndarray | None = None
    ) -> tf.data.Dataset:
        """Returns the batches of a worker.

        Args:
            context: The worker's `tf.distribute.InputContext`.
            targets: In place of the attribute.
        """
        index = context.input_pipeline_id
        return tf.data.Dataset.from_tensor_slices(
            (
                tf.gather(self.ids, index),
                tf.gather(self.targets if targets is None else targets, index),
            )
        )

    def of_all(self, targets: np.ndarray | None = None) -> tf.data.Dataset:
        """Returns batches that have those of all workers behind each other.

        Args:
            targets: In place of the attribute.
        """
        return tf.data.Dataset.from_tensor_slices(
            (
                np.concatenate(self.ids, axis=1),
                np.concatenate(
                    self.targets if targets is None else targets, axis=1
                ),
            )
        )


def new_model(
    optimizer: Any, hidden: Any = None, *embeddings: dict[str, Any]
) -> keras.Model:
    """Returns a model that looks up the same ids in three tables.

    The tables have different numbers of shards.

    Args:
        optimizer: Optimizer of the model.
        hidden: Options of the hidden layer, if there are any.
        *embeddings: Options of each table, likewise.
    """
    keras.utils.set_random_seed(3)
    ids = keras.Input((3,), dtype="int32")
    rows = [
        keras.layers.Embedding(ROWS + more, 4, **options)(ids)
        for more, options in enumerate(embeddings or [{}] * 3)
    ]
    flat = keras.layers.Flatten()(keras.layers.Concatenate()(rows))
    flat = keras.layers.Dense(8, activation="tanh", **(hidden or {}))(flat)
    model = keras.Model(ids, keras.layers.Dense(1)(flat))
    # If an optimizer is built inside the step, Keras first resets the initial
    # state of ScheduleFreeAdamW.
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def trained(model: keras.Model, data: Any, **options: Any) -> Trained:
    """Trains a model, and returns it as arrays."""
    history = model.fit(data, verbose=0, shuffle=False, **options)
    return as_arrays(model, history.history["loss"])


def as_arrays(model: keras.Model, losses: list[float]) -> Trained:
    """Returns a model as arrays.

    They are made while they can be read: connecting to another cluster
    invalidates earlier variables.

    Args:
        model: A model that was trained.
        losses: The loss of each epoch.
    """
    return Trained(
        losses,
        [keras.ops.convert_to_numpy(v) for v in model.weights],
        [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables],
    )


@functools.cache
def in_one_process(name: str, num_workers: int) -> Trained:
    """Returns the result of one process.

    Args:
        name: Name of the optimizer, in `CASES` or `WHOLE_MATRIX`.
        num_workers: Number of workers whose batches it takes as one.
    """
    optimizer = (CASES | shared_optimizers.WHOLE_MATRIX)[name]()
    return trained(
        new_model(shared_optimizers.summing(optimizer)),
        Data(num_workers).of_all(),
    )


def on_cluster(
    cluster: tfps.LocalCluster,
    make: Callable[[], keras.Model],
    dataset_fn: Any,
    partitioner: Any = cut,
    sparse_update: Any = "exact",
    strategy_options: dict[str, Any] | None = None,
    **options: Any,
) -> Trained:
    """Returns the result of workers in step.

    Args:
        cluster: The cluster.
        make: Returns the model; called in the strategy's scope.
        dataset_fn: Returns the batches of a worker.
        partitioner: Option of the strategy.
        sparse_update: Likewise.
        strategy_options: More of them; `tfps.Sync()` by default.
        **options: Options of `fit`.
    """
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        partitioner,
        sparse_update=sparse_update,
        **({"consistency": tfps.Sync()} | (strategy_options or {})),
    )
    try:
        with strategy.scope():
            model = make()
        return trained(model, tfps.DatasetCreator(dataset_fn), **options)
    finally:
        tfps.ClusterCoordinator(strategy).close()


def largest_difference(actual: Trained, expected: Trained) -> float:
    """Returns that of any variable, as a part of its largest value."""
    # A bias that goes to and fro by steps of that size may end near zero.
    weights = [
        (*pair, 1e-3)
        for pair in zip(actual.weights, expected.weights, strict=True)
    ]
    state = [
        (*pair, 1e-9) for pair in zip(actual.state, expected.state, strict=True)
    ]
    differences = [
        np.abs(mine - theirs).max() / max(np.abs(theirs).max(), least)
        for mine, theirs, least in weights + state
    ]
    # Of NumPy: NaN is the largest of all.
    return float(np.max(differences))


def assert_same(
    actual: Trained,
    expected: Trained,
    tolerance: float = TOLERANCE,
    loss_tolerance: float = 1e-5,
) -> None:
    """Checks the losses, and all variables."""
    np.testing.assert_allclose(
        actual.losses, expected.losses, rtol=loss_tolerance
    )
    difference = largest_difference(actual, expected)
    assert difference <= tolerance, f"{difference:.2g} is too much"
