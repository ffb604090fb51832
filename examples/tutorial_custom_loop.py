"""TensorFlow's parameter-server tutorial: the custom training loop.

    python examples/tutorial_custom_loop.py

This is the tutorial at
tensorflow.org/tutorials/distribute/parameter_server_training, with `tfps.` in
place of `tf.distribute.experimental.`, and with Keras 3 in place of Keras 2.
tutorial_fit.py is its other half.

A line of three ingredients is called spicy if chili is one of them. The model
learns this within a few steps: expect an accuracy of 1.0.
"""

import random

import keras
import tensorflow as tf

import tfps_plugin as tfps

NUM_WORKERS = 3
NUM_PS = 2
BATCH_SIZE = 32
NUM_EPOCHS = 4
STEPS_PER_EPOCH = 10  # asynchronous steps: five are not always enough
NUM_EVAL_EXAMPLES = 16
EVAL_BATCH_SIZE = 8

# The cluster: real processes on this machine, instead of servers within this
# process. With a real cluster only this line changes.
cluster = tfps.LocalCluster(num_workers=NUM_WORKERS, num_ps=NUM_PS)

# It splits every variable of at least twice 256 KiB in two.
variable_partitioner = tfps.partitioners.MinSizePartitioner(
    min_shard_bytes=(256 << 10), max_shards=NUM_PS
)
strategy = tfps.ParameterServerStrategy(
    cluster.cluster_resolver,
    variable_partitioner=variable_partitioner,
    # As in TensorFlow. More closures would hide the latency of messages, but
    # gradients would be twice as stale, and there are only 40 steps.
    scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
)

# Preprocessing. Under the scope, every worker gets lookup tables of its own.
feature_vocab = ["chili", "basil", "cumin", "dill", "fennel", "mint", "thyme"]
label_vocab = ["mild", "spicy"]

with strategy.scope():
    feature_lookup_layer = keras.layers.StringLookup(
        vocabulary=feature_vocab, mask_token=None
    )
    label_lookup_layer = keras.layers.StringLookup(
        vocabulary=label_vocab, num_oov_indices=0, mask_token=None
    )

    raw_feature_input = keras.Input(shape=(3,), dtype="string", name="features")
    feature_preprocess_stage = keras.Model(
        {"features": raw_feature_input},
        feature_lookup_layer(raw_feature_input),
    )
    raw_label_input = keras.Input(shape=(1,), dtype="string", name="label")
    label_preprocess_stage = keras.Model(
        {"label": raw_label_input}, label_lookup_layer(raw_label_input)
    )


def feature_and_label_gen(
    num_examples: int = 200,
) -> dict[str, list[list[str]]]:
    """Returns random lines of ingredients, and how they taste."""
    features = [random.sample(feature_vocab, 3) for _ in range(num_examples)]
    label = [["spicy" if "chili" in line else "mild"] for line in features]
    return {"features": features, "label": label}


def preprocess(
    batch: dict[str, tf.Tensor],
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Converts words to ids, wherever the dataset is read.

    Models of Keras 3 only take batches: apply this after `batch()`.
    """
    return (
        {"features": feature_preprocess_stage({"features": batch["features"]})},
        label_preprocess_stage({"label": batch["label"]}),
    )


examples = feature_and_label_gen()


def dataset_fn(_: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns the data of one worker. All of it runs on that worker."""
    raw_dataset = tf.data.Dataset.from_tensor_slices(examples)
    return raw_dataset.shuffle(200).batch(BATCH_SIZE).map(preprocess).repeat()


# The model: its variables, and those of the optimizer, are on the ps.
with strategy.scope():
    model_input = keras.Input(shape=(3,), dtype="int64", name="features")
    emb_layer = keras.layers.Embedding(
        input_dim=feature_lookup_layer.vocabulary_size(), output_dim=16384
    )
    emb_output = keras.ops.mean(emb_layer(model_input), axis=1)
    dense_output = keras.layers.Dense(units=1, activation="sigmoid")(emb_output)
    model = keras.Model({"features": model_input}, dense_output)

    optimizer = keras.optimizers.RMSprop(learning_rate=0.1)
    accuracy = keras.metrics.Accuracy()

# To Keras the table is one variable; its value has one shard per ps.
shards = emb_layer.weights[0].value.variables
assert len(shards) == NUM_PS  # noqa: S101
for shard in shards:
    print(f"Embedding shard {shard.shape} on {shard.device}")


@tf.function
def step_fn(iterator: tf.data.Iterator) -> tf.Tensor:
    """Runs one training step, on the worker that it is scheduled on."""

    def replica_fn(
        batch_data: dict[str, tf.Tensor], labels: tf.Tensor
    ) -> tf.Tensor:
        with tf.GradientTape() as tape:
            pred = model(batch_data, training=True)
            per_example_loss = keras.losses.BinaryCrossentropy(reduction=None)(
                labels, pred
            )
            loss = tf.nn.compute_average_loss(per_example_loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )

        actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
        accuracy.update_state(labels, actual_pred)
        return loss

    batch_data, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_data, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


coordinator = tfps.ClusterCoordinator(strategy)


@tf.function
def per_worker_dataset_fn() -> tf.data.Dataset:
    """Passes the input context of the worker to `dataset_fn`."""
    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_dataset = coordinator.create_per_worker_dataset(
    per_worker_dataset_fn
)
per_worker_iterator = iter(per_worker_dataset)

for epoch in range(NUM_EPOCHS):
    accuracy.reset_state()
    for _ in range(STEPS_PER_EPOCH):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    # The metric is exact here: no step is running.
    coordinator.join()
    print(
        f"Finished epoch {epoch}, accuracy is {float(accuracy.result()):f}, "
        f"examples counted: {int(accuracy.count)}."
    )

final_loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
print(f"Final loss is {coordinator.fetch(final_loss):f}.")

# One line in four has the wrong label, the same number in each batch. A model
# that has learned the rule has an accuracy of 0.75 on any batches.
eval_examples = feature_and_label_gen(NUM_EVAL_EXAMPLES)
for line in range(0, NUM_EVAL_EXAMPLES, 4):
    is_spicy = eval_examples["label"][line] == ["spicy"]
    eval_examples["label"][line] = ["mild" if is_spicy else "spicy"]


def eval_dataset_fn() -> tf.data.Dataset:
    """Returns the evaluation data, for this process and for each worker."""
    return (
        tf.data.Dataset.from_tensor_slices(eval_examples)
        .batch(EVAL_BATCH_SIZE)
        .map(preprocess)
    )


# Direct evaluation: on this process, which reads the variables from the ps.
eval_accuracy = keras.metrics.Accuracy()
for batch_data, labels in eval_dataset_fn():
    pred = model(batch_data, training=False)
    actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
    eval_accuracy.update_state(labels, actual_pred)
print(
    f"Direct evaluation accuracy: {float(eval_accuracy.result()):f} of "
    f"{int(eval_accuracy.count)} examples"
)

# Distributed evaluation: on the workers, each adding to its own copies of the
# metric's variables.
with strategy.scope():
    eval_accuracy = keras.metrics.Accuracy()


@tf.function
def eval_step(iterator: tf.data.Iterator) -> None:
    """Evaluates one batch."""

    def replica_fn(batch_data: dict[str, tf.Tensor], labels: tf.Tensor) -> None:
        pred = model(batch_data, training=False)
        actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
        eval_accuracy.update_state(labels, actual_pred)

    batch_data, labels = next(iterator)
    strategy.run(replica_fn, args=(batch_data, labels))


# Workers do not share a dataset: each starts its own with the first batch.
per_worker_eval_iterator = iter(
    coordinator.create_per_worker_dataset(eval_dataset_fn)
)
for _ in range(NUM_EVAL_EXAMPLES // EVAL_BATCH_SIZE):
    coordinator.schedule(eval_step, args=(per_worker_eval_iterator,))
coordinator.join()
print(
    f"Distributed evaluation accuracy: {float(eval_accuracy.result()):f} of "
    f"{int(eval_accuracy.count)} examples"
)

# This also happens when the program ends, however it ends.
cluster.stop()
