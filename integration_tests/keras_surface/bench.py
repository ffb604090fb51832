"""A model whose training does not depend on the order of its steps.

Its output is linear in its weights, and so is its loss, which is a sum over
examples: each example adds the same gradient, whenever it is seen and in
whichever batch. After asynchronous training the weights are therefore what
they are in one process if, and only if, every example was trained on as
often, with the same weight. Measurements on equal weights are equal, too.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import tfps_plugin as tfps

NUM_ROWS = 150  # no multiple of the batch size
BATCH = 16
NUM_IDS = 12

_random = np.random.default_rng(7)
IDS = _random.integers(0, NUM_IDS, (NUM_ROWS, 2)).astype("int32")
X = _random.normal(size=(NUM_ROWS, 3)).astype("float32")
Y = _random.integers(0, 2, (NUM_ROWS, 1)).astype("float32")
WEIGHTS = _random.uniform(0.5, 2.0, NUM_ROWS).astype("float32")
INPUTS = {"ids": IDS, "x": X}


@keras.saving.register_keras_serializable("keras_surface")
class LinearLoss(keras.losses.Loss):
    """Minus the prediction for targets of 1; the prediction for those of 0."""

    def __init__(self, reduction: str = "sum", name: str = "linear") -> None:
        super().__init__(name=name, reduction=reduction)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.sum((1.0 - 2.0 * y_true) * y_pred, axis=-1)


@keras.saving.register_keras_serializable("keras_surface")
class Examples(keras.metrics.Metric):
    """Number of examples seen, or their total weight."""

    def __init__(self, name: str = "examples", **arguments: Any) -> None:
        super().__init__(name=name, **arguments)
        self.total = self.add_weight(initializer="zeros", name="total")

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        ones = keras.ops.ones_like(keras.ops.cast(y_true, "float32")[..., 0])
        if sample_weight is not None:
            ones = ones * keras.ops.reshape(sample_weight, (-1,))
        self.total.assign_add(keras.ops.sum(ones))

    def result(self) -> Any:
        return self.total + 0.0


def build(
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(
        1e-3, name="sgd"
    ),
    model_class: type[keras.Model] = keras.Model,
    **compile_arguments: Any,
) -> keras.Model:
    """Returns the compiled model, with the same weights each time.

    Args:
        optimizer: Makes its optimizer.
        model_class: Class of the model.
        **compile_arguments: Arguments of `compile`.
    """
    keras.utils.set_random_seed(11)
    ids = keras.Input((2,), dtype="int32", name="ids")
    x = keras.Input((3,), name="x")
    embedded = keras.layers.Embedding(NUM_IDS, 4, name="table")(ids)
    summed = keras.layers.Lambda(_sum_of_embeddings, name="sum")(embedded)
    dense = keras.layers.Dense(1, name="dense")(x)
    outputs = keras.layers.Add(name="add")([summed, dense])
    model = model_class({"ids": ids, "x": x}, outputs, name="bench")
    arguments: dict[str, Any] = {
        "optimizer": optimizer(),
        "loss": LinearLoss(),
        "metrics": [Examples()],
        "weighted_metrics": [
            keras.metrics.MeanSquaredError(name="mse"),
            Examples(name="weight"),
        ],
    }
    model.compile(**{**arguments, **compile_arguments})
    return model


@keras.saving.register_keras_serializable("keras_surface")
def _sum_of_embeddings(embedded: Any) -> Any:
    return keras.ops.sum(embedded, axis=(1, 2))[:, None]


class Bench:
    """One compiled model for many tests: nothing is traced twice.

    Attributes:
        model: The model; after `reset`, as it was when it was built.
        is_ours: Whether it belongs to a parameter-server strategy.
    """

    def __init__(self, model: keras.Model, *, is_ours: bool) -> None:
        """Takes a model that has never been trained."""
        self.model = model
        self.is_ours = is_ours
        model.optimizer.build(model.trainable_variables)
        self._weights = model.get_weights()
        self._state = [np.array(v) for v in model.optimizer.variables]

    def reset(self) -> keras.Model:
        """Returns the model in its initial state."""
        self.model.set_weights(self._weights)
        for variable, value in zip(
            self.model.optimizer.variables, self._state, strict=True
        ):
            variable.assign(value)
        self.model.stop_training = False
        # BackupAndRestore sets this, and Keras never resets it in fit.
        self.model._initial_epoch = None
        keras.utils.set_random_seed(11)
        return self.model


def in_every_placement(
    strategies: dict[str, tfps.ParameterServerStrategy],
    make: Callable[[], keras.Model],
) -> dict[str, Bench]:
    """Returns a model in one process ("alone") and in each placement.

    Args:
        strategies: Strategies by the name of the placement.
        make: Makes the compiled model.
    """
    benches = {"alone": Bench(make(), is_ours=False)}
    for name, strategy in strategies.items():
        with strategy.scope():
            benches[name] = Bench(make(), is_ours=True)
    return benches
