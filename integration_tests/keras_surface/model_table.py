"""Every kind of model.

Each is made twice with the same seeds, in one process and under a strategy, and
has to train to the same numbers. So each draws its dropout from a seed of its
own, and models with tables use optimizers without state for each row, which
would be updated lazily.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

ROWS = 40  # no multiple of the batch size
_VOCABULARY = 20
_random = np.random.default_rng(5)
TOKENS = _random.integers(1, _VOCABULARY, (ROWS, 6)).astype("int32")
FEATURES = _random.normal(size=(ROWS, 5)).astype("float32")
IMAGES = _random.normal(size=(ROWS, 6, 6, 2)).astype("float32")
TARGETS = _random.integers(0, 2, (ROWS, 1)).astype("float32")
CLASSES = _random.integers(0, 3, (ROWS, 1)).astype("int32")

_registered = keras.saving.register_keras_serializable("keras_surface")


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its training data.

    Attributes:
        make: Makes the compiled model.
        x: Its inputs, as arrays.
        y: Its targets, as arrays; None if it has none.
        rtol: Relative tolerance of the numbers.
        policy: The dtype policy of the model.
        is_saved_whole: Whether Keras can load it from its file.
    """

    make: Callable[[], keras.Model]
    x: Any
    y: Any = dataclasses.field(default_factory=lambda: TARGETS)
    rtol: float = 1e-3
    policy: str = "float32"
    is_saved_whole: bool = True


def build(case: Case, strategy: Any = None) -> keras.Model:
    """Returns the model of a case, with the same weights and names each time.

    Args:
        case: The case.
        strategy: Strategy of the model; None for one process.
    """
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(23)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(case.policy)
    try:
        with strategy.scope() if strategy else contextlib.nullcontext():
            return case.make()
    finally:
        keras.config.set_dtype_policy(before)


def _compiled(model: keras.Model, **arguments: Any) -> keras.Model:
    model.compile(
        **{
            "optimizer": keras.optimizers.SGD(0.05, momentum=0.0),
            "loss": keras.losses.BinaryCrossentropy(from_logits=True),
            "metrics": ["mae"],
            **arguments,
        }
    )
    return model


def _sequential() -> keras.Model:
    return _compiled(
        keras.Sequential(
            [
                layers.Embedding(_VOCABULARY, 4),
                layers.Flatten(),
                layers.Dense(8, activation="relu"),
                layers.Dense(1),
            ]
        )
    )


def _functional() -> keras.Model:
    """Returns a model that Adam trains: it has no table."""
    x = keras.Input((5,))
    hidden = layers.Dense(8, activation="gelu", kernel_regularizer="l2")(x)
    hidden = layers.Add()([hidden, layers.Dense(8)(x)])
    outputs = layers.Dense(1)(layers.LayerNormalization()(hidden))
    return _compiled(
        keras.Model(x, outputs), optimizer=keras.optimizers.Adam(0.01)
    )


@_registered
class TwoTowers(keras.Model):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.table = layers.Embedding(_VOCABULARY, 4)
        self.dense = [layers.Dense(4, activation="relu") for _ in range(2)]
        self.head = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        tokens = keras.ops.mean(self.table(inputs["tokens"]), axis=1)
        features = inputs["features"]
        if training:
            features = features * 0.9
        return self.head(self.dense[0](tokens) * self.dense[1](features))


def _nested() -> keras.Model:
    block = keras.Sequential(
        [layers.Dense(6, activation="tanh"), layers.Dense(5)], name="block"
    )
    inner_input = keras.Input((5,))
    inner = keras.Model(inner_input, block(block(inner_input)), name="inner")
    x = keras.Input((5,))
    return _compiled(keras.Sequential([x, inner, layers.Dense(1)]))


def _shared_layers() -> keras.Model:
    table = layers.Embedding(_VOCABULARY, 4)
    dense = layers.Dense(4, activation="relu")
    left = keras.Input((6,), dtype="int32")
    right = keras.Input((6,), dtype="int32")
    towers = [
        dense(layers.GlobalAveragePooling1D()(table(side)))
        for side in (left, right)
    ]
    outputs = layers.Dense(1)(layers.Dot(axes=1)(towers))
    return _compiled(keras.Model([left, right], outputs))


def _inputs_and_outputs() -> keras.Model:
    tokens = keras.Input((6,), dtype="int32", name="tokens")
    features = keras.Input((5,), name="features")
    table = layers.Embedding(_VOCABULARY, 4)(tokens)
    both = layers.Concatenate()([layers.Flatten()(table), features])
    hidden = layers.Dense(8, activation="relu")(both)
    outputs = {
        "is_it": layers.Dense(1, activation="sigmoid", name="is_it")(hidden),
        "which": layers.Dense(3, name="which")(hidden),
    }
    return _compiled(
        keras.Model({"tokens": tokens, "features": features}, outputs),
        loss={
            "is_it": "binary_crossentropy",
            "which": keras.losses.SparseCategoricalCrossentropy(
                from_logits=True
            ),
        },
        loss_weights={"is_it": 0.5, "which": 2.0},
        metrics={"is_it": ["AUC"], "which": ["accuracy"]},
    )


@_registered
class Penalized(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(x * x))
        return x


def _add_loss() -> keras.Model:
    return _compiled(
        keras.Sequential(
            [
                layers.Dense(6, activity_regularizer="l1"),
                Penalized(),
                layers.Dense(1),
            ]
        )
    )


@_registered
class OwnSteps(keras.Model):
    """Model with its own train_step, test_step and predict_step."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.dense = layers.Dense(1)
        self.error = keras.metrics.Mean(name="error")

    @property
    def metrics(self) -> list[Any]:
        return [self.error]

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x, training=True) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.error.update_state(loss)
        return {"error": self.error.result(), "rows": keras.ops.shape(x)[0]}

    def test_step(self, data: Any) -> Any:
        x, y = data
        self.error.update_state(keras.ops.mean((self(x) - y) ** 2))
        return {"error": self.error.result()}

    def predict_step(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        y = self(x)
        return {"y": y, "twice": 2.0 * y}


def _own_steps() -> keras.Model:
    model = OwnSteps()
    model.compile(keras.optimizers.SGD(0.05))
    return model


@_registered
class OwnLoss(keras.Model):
    """Model with its own compute_loss and compute_metrics."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.dense = layers.Dense(1)
        self.largest = keras.metrics.Mean(name="largest")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return keras.ops.mean(keras.ops.abs(y - y_pred)) + keras.ops.sum(
            self.dense.kernel**2
        )

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        self.largest.update_state(keras.ops.max(y_pred))
        return super().compute_metrics(x, y, y_pred, sample_weight)


def _own_loss() -> keras.Model:
    model = OwnLoss()
    model.compile(keras.optimizers.SGD(0.05), metrics=["mae"])
    return model


def _recurrent(layer: Any) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        return _compiled(
            keras.Sequential(
                [
                    layers.Embedding(_VOCABULARY, 4),
                    layer(4),
                    layers.Dense(1),
                ]
            )
        )

    return make


def _convolutional() -> keras.Model:
    return _compiled(
        keras.Sequential(
            [
                layers.Conv2D(4, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.SeparableConv2D(4, 2),
                layers.GlobalAveragePooling2D(),
                layers.Dense(1),
            ]
        )
    )


def _attention() -> keras.Model:
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(_VOCABULARY, 4)(tokens)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 2)(x, x)])
    x = layers.LayerNormalization()(x)
    outputs = layers.Dense(1)(layers.GlobalMaxPooling1D()(x))
    return _compiled(keras.Model(tokens, outputs))


def _normalized() -> keras.Model:
    return _compiled(
        keras.Sequential(
            [
                layers.Dense(6),
                layers.BatchNormalization(momentum=0.7),
                layers.Activation("relu"),
                layers.Dense(1),
            ]
        )
    )


def _dropout() -> keras.Model:
    return _compiled(
        keras.Sequential(
            [
                layers.Dense(8, activation="relu"),
                layers.Dropout(0.4, seed=3),
                layers.GaussianNoise(0.1, seed=4),
                layers.Dense(1),
            ]
        )
    )


def _mixed_precision() -> keras.Model:
    return _compiled(
        keras.Sequential(
            [
                layers.Embedding(_VOCABULARY, 4),
                layers.GlobalAveragePooling1D(),
                layers.Dense(8, activation="relu"),
                layers.Dense(1, dtype="float32"),
            ]
        )
    )


class Block(keras.layers.Layer):
    def __init__(self, dense: list[Any]) -> None:
        super().__init__()
        self.dense = dense

    def call(self, x: Any) -> Any:
        for dense in self.dense:
            x = dense(x)
        return x


def _gradient_checkpointing() -> keras.Model:
    dense = [layers.Dense(5, activation="tanh") for _ in range(2)]
    with keras.RematScope(mode="full"):
        block = Block(dense)
    return _compiled(keras.Sequential([block, layers.Dense(1)]))


class Backbone(keras.Model):
    """A functional model in a class, with a dtype policy of its own."""

    def __init__(self, width: int, dtype: Any = None, **arguments: Any) -> None:
        dtype = keras.dtype_policies.get(dtype or "float32")
        tokens = keras.Input((None,), dtype="int32", name="token_ids")
        mask = keras.Input((None,), dtype="int32", name="padding_mask")
        table = (
            layers.ReversibleEmbedding
            if hasattr(layers, "ReversibleEmbedding")
            else layers.Embedding
        )
        x = table(_VOCABULARY, width, dtype=dtype, name="tokens")(tokens)
        attention = layers.MultiHeadAttention(2, 2, dtype=dtype)
        x = x + attention(x, x, key_mask=keras.ops.cast(mask, "bool"))
        x = layers.LayerNormalization(dtype=dtype)(x)
        super().__init__(
            {"token_ids": tokens, "padding_mask": mask}, x, **arguments
        )
        self.width = width


class Preprocessor(keras.layers.Layer):
    def call(self, tokens: Any) -> Any:
        return {
            "token_ids": tokens,
            "padding_mask": keras.ops.cast(tokens > 2, "int32"),
        }


class Task(keras.Model):
    """A backbone with a head, and a preprocessor applied to datasets."""

    def __init__(self, backbone: Any, preprocessor: Any) -> None:
        pooled = layers.GlobalAveragePooling1D(dtype="float32")(backbone.output)
        super().__init__(
            backbone.input, layers.Dense(1, dtype="float32")(pooled)
        )
        self.backbone = backbone
        self.preprocessor = preprocessor

    def fit(self, x: Any = None, y: Any = None, **arguments: Any) -> Any:
        return super().fit(self.preprocessed(x), y, **arguments)

    def evaluate(self, x: Any = None, y: Any = None, **arguments: Any) -> Any:
        return super().evaluate(self.preprocessed(x), y, **arguments)

    def predict(self, x: Any = None, **arguments: Any) -> Any:
        return super().predict(self.preprocessed(x), **arguments)

    def preprocessed(self, x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        return {k: np.array(v) for k, v in self.preprocessor(x).items()}


def _keras_hub() -> keras.Model:
    return _compiled(Task(Backbone(4, dtype="mixed_bfloat16"), Preprocessor()))


_TOKENS_AND_FEATURES = {"tokens": TOKENS, "features": FEATURES}

CASES: dict[str, Case] = {
    "Sequential": Case(_sequential, TOKENS),
    "Functional": Case(_functional, FEATURES),
    "subclassed": Case(lambda: _compiled(TwoTowers()), _TOKENS_AND_FEATURES),
    "nested": Case(_nested, FEATURES),
    "shared layers": Case(_shared_layers, [TOKENS, TOKENS[::-1].copy()]),
    "inputs and outputs, losses": Case(
        _inputs_and_outputs,
        _TOKENS_AND_FEATURES,
        {"is_it": TARGETS, "which": CLASSES},
    ),
    "add_loss": Case(_add_loss, FEATURES),
    "train_step, test_step, predict_step": Case(_own_steps, FEATURES),
    "compute_loss, compute_metrics": Case(_own_loss, FEATURES),
    "LSTM": Case(_recurrent(layers.LSTM), TOKENS),
    "GRU": Case(_recurrent(layers.GRU), TOKENS),
    "Conv2D": Case(_convolutional, IMAGES),
    "MultiHeadAttention": Case(_attention, TOKENS),
    "BatchNormalization": Case(_normalized, FEATURES),
    "Dropout": Case(_dropout, FEATURES),
    "mixed_float16": Case(
        _mixed_precision,
        TOKENS,
        rtol=2e-2,
        policy="mixed_float16",
        # Keras does not find the loss scale in its own file.
        is_saved_whole=False,
    ),
    "mixed_bfloat16": Case(
        _mixed_precision, TOKENS, rtol=5e-2, policy="mixed_bfloat16"
    ),
    "RematScope": Case(_gradient_checkpointing, FEATURES, is_saved_whole=False),
    "keras_hub-style": Case(
        _keras_hub, TOKENS, rtol=5e-2, is_saved_whole=False
    ),
}
