import tfps_plugin.quiet  # first: before TensorFlow

# isort: split
import keras
import tensorflow as tf

import tfps_plugin as tfps

strategy = tfps.ParameterServerStrategy(
    variable_partitioner=tfps.partitioners.MinSizePartitioner(max_shards=2)
)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Embedding(100_000, 16),  # in two shards
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"]
    )


def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns the data of one worker: ids, and whether most are even."""
    seeds = tf.data.Dataset.random(seed=context.input_pipeline_id)
    ids = seeds.map(
        lambda s: tf.random.stateless_uniform([5], [s, 0], 0, 5000, tf.int32)
    )
    return ids.map(
        lambda i: (i, tf.reduce_sum(1 - i % 2, keepdims=True) > 2)
    ).batch(256)


model.fit(tfps.DatasetCreator(dataset_fn), epochs=3, steps_per_epoch=200)
model.save("model.keras")  # a plain Keras model
