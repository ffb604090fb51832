"""TensorFlow's parameter-server tutorial: `Model.fit`.

    python examples/tutorial_fit.py

This is the tutorial at
tensorflow.org/tutorials/distribute/parameter_server_training, with `tfps.` in
place of `tf.distribute.experimental.` (and of `tf.keras.utils.experimental.`,
which Keras 3 no longer has). tutorial_custom_loop.py is its other half.

The tutorial's data is noise, and so is its loss. Here the labels can be
learned, so that the loss falls.
"""

import importlib.util
import pathlib
import tempfile

import keras
import tensorflow as tf

import tfps_plugin as tfps

NUM_WORKERS = 3
NUM_PS = 2
GLOBAL_BATCH_SIZE = 64
NUM_EXAMPLES = 640
NUM_FEATURES = 10
NUM_EPOCHS = 5
STEPS_PER_EPOCH = 20

# The cluster: real processes on this machine, instead of servers within this
# process. With a real cluster only this line changes.
cluster = tfps.LocalCluster(num_workers=NUM_WORKERS, num_ps=NUM_PS)

variable_partitioner = tfps.partitioners.MinSizePartitioner(
    min_shard_bytes=(256 << 10), max_shards=NUM_PS
)
strategy = tfps.ParameterServerStrategy(
    cluster.cluster_resolver, variable_partitioner=variable_partitioner
)


def make_dataset(first_seed: int) -> tf.data.Dataset:
    """Returns points, and the sum of each point's coordinates."""
    x = tf.random.stateless_uniform(
        (NUM_EXAMPLES, NUM_FEATURES), seed=(first_seed, 0)
    )
    y = tf.reduce_sum(x, axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((x, y))


def dataset_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns one worker's share of the data. All of it runs on that worker."""
    batch_size = input_context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
    dataset = make_dataset(first_seed=1).shard(
        input_context.num_input_pipelines, input_context.input_pipeline_id
    )
    return dataset.shuffle(NUM_EXAMPLES).repeat().batch(batch_size).prefetch(2)


with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.SGD(learning_rate=0.05),
        loss="mse",
        steps_per_execution=10,
    )

with tempfile.TemporaryDirectory() as working_dir:
    folder = pathlib.Path(working_dir)
    callbacks = [
        keras.callbacks.ModelCheckpoint(
            str(folder / "checkpoint-{epoch}.keras")
        ),
        keras.callbacks.BackupAndRestore(str(folder / "backup")),
    ]
    # Needs `pip install tensorboard`: TensorFlow 2.21 does not include it.
    if importlib.util.find_spec("tensorboard") is not None:
        callbacks.append(keras.callbacks.TensorBoard(str(folder / "log")))

    # Each worker makes its own input by the function, and reads its share.
    history = model.fit(
        tfps.DatasetCreator(dataset_fn),
        epochs=NUM_EPOCHS,
        steps_per_epoch=STEPS_PER_EPOCH,
        callbacks=callbacks,
        verbose=2,
    )
    saved = sorted(path.name for path in folder.glob("*.keras"))
    print(f"Checkpoints: {', '.join(saved)}")

first, *_, last = history.history["loss"]
print(f"Loss went from {first:f} to {last:f}.")
print(f"Steps taken: {int(model.optimizer.iterations)}")

# A dataset that was made on the chief is sent to the workers as its definition;
# each worker reads all of it.
model.fit(
    make_dataset(first_seed=2).shuffle(NUM_EXAMPLES).repeat().batch(64),
    steps_per_epoch=STEPS_PER_EPOCH,
    verbose=2,
)
print(f"Steps taken: {int(model.optimizer.iterations)}")

evaluation_loss = model.evaluate(
    tfps.DatasetCreator(dataset_fn), steps=10, verbose=0
)
print(f"Evaluation loss is {evaluation_loss:f}.")

# This also happens when the program ends, however it ends.
cluster.stop()
