"""Trains, and evaluates each checkpoint in a separate process.

tfps run --evaluator examples/sidecar.py
"""

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

EPOCHS = 4


def build_model() -> keras.Model:
    """Builds the model, for the training and for the evaluator."""
    model = keras.Sequential(
        [
            keras.Input([5], dtype="int32"),
            keras.layers.Embedding(5000, 16),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"]
    )
    return model


def make_dataset(seed: int) -> tf.data.Dataset:
    """Returns endless batches of ids, and whether most of them are even."""
    ids = tf.data.Dataset.counter(seed * 1_000_000).map(
        lambda s: tf.random.stateless_uniform([5], [s, 0], 0, 5000, tf.int32)
    )
    return ids.map(
        lambda i: (i, tf.reduce_sum(1 - i % 2, keepdims=True) > 2)
    ).batch(256)


def train() -> None:
    """Trains, on the chief."""
    strategy = tfps.ParameterServerStrategy(
        variable_partitioner=tfps.partitioners.MinSizePartitioner(max_shards=2)
    )
    with strategy.scope():
        model = build_model()
    model.fit(
        tfps.DatasetCreator(lambda c: make_dataset(c.input_pipeline_id)),
        epochs=EPOCHS,
        steps_per_epoch=100,
        callbacks=[
            keras.callbacks.ModelCheckpoint("checkpoints/epoch-{epoch}.keras")
        ],
        verbose=2,
    )


def evaluate() -> None:
    """Evaluates each checkpoint until the training is over."""
    data = make_dataset(seed=1000)
    evaluations = tfps.SidecarEvaluator(
        build_model(),
        data=data,
        steps=20,
        checkpoint_dir="checkpoints",
        log_dir="logs",  # for TensorBoard
        export_best=tfps.ExportBest("best/model.keras"),
    ).start()
    best = max(each.metrics["accuracy"] for each in evaluations)
    labels = np.concatenate([y for _, y in data.take(20).as_numpy_iterator()])
    base_rate = max(labels.mean(), 1 - labels.mean())
    print(f"best accuracy {best:.4f}, base rate {base_rate:.4f}")


if __name__ == "__main__":
    task = tfps.init()
    if task.job == "evaluator":
        evaluate()
    else:
        train()
