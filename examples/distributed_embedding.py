"""Clicks on ads, with every table in one `tfps.layers.DistributedEmbedding`.

    python examples/distributed_embedding.py

It starts two workers and a parameter server on this machine, and stops them at
the end. It takes about 15 seconds on two cores.
"""

import tempfile

import keras
import tensorflow as tf

import tfps_plugin as tfps

NUM_ADS = 2_000
NUM_USERS = 500
NUM_SEEN = 4
WIDTH = 8
BATCH = 64

strategy = tfps.ParameterServerStrategy(
    variable_partitioner=tfps.partitioners.FixedShardsPartitioner(2)
)
# Two features share the table of ads: the ad shown, and those seen before.
ads = tfps.layers.TableConfig("ads", NUM_ADS, WIDTH, combiner="mean")
users = tfps.layers.TableConfig("users", NUM_USERS, WIDTH)
features = {
    "ad": tfps.layers.FeatureConfig("ad", ads, (None,), (None, WIDTH)),
    "seen": tfps.layers.FeatureConfig(
        "seen", ads, (None, NUM_SEEN), (None, WIDTH)
    ),
    "user": tfps.layers.FeatureConfig("user", users, (None,), (None, WIDTH)),
}

with strategy.scope():
    inputs = {
        "ad": keras.Input((), dtype="int64", name="ad"),
        "seen": keras.Input((NUM_SEEN,), dtype="int64", name="seen"),
        "user": keras.Input((), dtype="int64", name="user"),
    }
    embed = tfps.layers.DistributedEmbedding(features, name="embed")
    rows = embed(inputs)
    x = keras.layers.Concatenate()([rows[name] for name in sorted(rows)])
    x = keras.layers.Dense(16, activation="relu")(x)
    outputs = keras.layers.Dense(1, activation="sigmoid", name="click")(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"]
    )


def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns a worker's data: odd users who saw odd ads click on odd ones."""

    def example(seed: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        def ids(number: int, shape: list[int], size: int) -> tf.Tensor:
            return tf.random.stateless_uniform(
                shape, [seed, number], 0, size, tf.int64
            )

        ad, user = ids(0, [], NUM_ADS), ids(1, [], NUM_USERS)
        seen = ids(2, [NUM_SEEN], NUM_ADS)
        odd = 2 * (ad % 2 + user % 2) + tf.reduce_sum(seen % 2)
        return {"ad": ad, "seen": seen, "user": user}, odd > NUM_SEEN

    seeds = tf.data.Dataset.random(seed=context.input_pipeline_id)
    return seeds.map(example).batch(BATCH)


history = model.fit(
    tfps.DatasetCreator(dataset_fn), epochs=3, steps_per_epoch=300, verbose=2
)
print("Variables of the layer:", [tuple(v.shape) for v in embed.weights])
for name, table in embed.get_embedding_tables().items():
    print(f"Table {name} has the shape {tuple(table.shape)}.")
print(f"Accuracy is {history.history['accuracy'][-1]:.2f}.")

# A SavedModel needs neither this package nor the cluster.
with tempfile.TemporaryDirectory() as folder:
    model.export(folder, verbose=False)
    served = tf.saved_model.load(folder)
    print("Served:", sorted(served.signatures))
