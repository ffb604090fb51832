"""Clicks on ads, from files in Criteo's format: DLRM.

    tfps run --workers 2 --ps 2 examples/dlrm.py
    python examples/dlrm.py
    tfps run --workers 8 --ps 4 examples/dlrm.py --data 'criteo/day_*'

DLRM (Naumov et al., 2019) looks up a vector for each of 26 categories, makes
one more of 13 numbers, and predicts clicks from the products of pairs of them.
All tables are in one `tfps.layers.DistributedEmbedding`. Workers read files,
each the next one when it has read the one before. The last file is the test.
The baseline is a logistic regression on the same input.

Without `--data`, criteo_files.py writes files with clicks by known chances. No
model can have a higher AUC than these chances themselves.
"""

import argparse
import glob
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from criteo_files import write_files

import tfps_plugin as tfps

NUMBERS = 13
WORDS = [f"C{number}" for number in range(1, 27)]
WIDTH = 8
BATCH_SIZE = 512


def main() -> None:
    """Trains DLRM and the baseline, and prints the AUC of both."""
    parser = argparse.ArgumentParser(description="Predict clicks on ads.")
    parser.add_argument("--data", help="pattern of files in Criteo's format")
    parser.add_argument("--rows", type=int, default=120_000, help="to write")
    parser.add_argument("--bins", type=int, default=10_000, help="of a table")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    tfps.init()  # A worker or a ps serves here until the job is over.
    strategy = tfps.ParameterServerStrategy(
        variable_partitioner=tfps.partitioners.MinSizePartitioner(max_shards=2)
    )
    with tempfile.TemporaryDirectory() as folder:
        results = {"always the same": 0.5}
        if options.data is None:
            options.data = f"{folder}/day_*"
            results["best possible"] = write_files(folder, options.rows)
        *train, test = sorted(glob.glob(options.data))

        def dataset_fn(file: tf.Tensor) -> tf.data.Dataset:
            """Returns the batches of a file."""
            lines = tf.data.TextLineDataset(file).shuffle(20_000)
            batches = lines.batch(BATCH_SIZE)
            return batches.map(lambda batch: parse(batch, options.bins))

        for build in (logistic_regression, dlrm):
            keras.utils.set_random_seed(1)
            with strategy.scope():
                model = build(options.bins)
                model.compile(
                    keras.optimizers.Adam(0.003),
                    "binary_crossentropy",
                    metrics=[keras.metrics.AUC(name="auc")],
                )
            creator = tfps.DatasetCreator(dataset_fn, splits=train)
            model.fit(creator, epochs=options.epochs, verbose=2)
            creator = tfps.DatasetCreator(dataset_fn, splits=[test])
            _, results[build.__name__] = model.evaluate(creator, verbose=0)
    print(f"\n{'':20}{'test AUC':>10}")
    for name, auc in sorted(results.items(), key=lambda item: item[1]):
        print(f"{name:20}{auc:>10.4f}")


def parse(
    lines: tf.Tensor, bins: int
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Returns the features and labels of a batch of lines."""
    defaults = [[0.0]] * (1 + NUMBERS) + [[""]] * len(WORDS)
    label, *columns = tf.io.decode_csv(
        lines, defaults, field_delim="\t", use_quote_delim=False
    )
    numbers = tf.stack(columns[:NUMBERS], axis=1)
    features = {"numbers": tf.math.log1p(tf.maximum(numbers, 0.0))}
    for name, words in zip(WORDS, columns[NUMBERS:], strict=True):
        features[name] = tf.strings.to_hash_bucket_fast(words, bins)
    return features, label[:, None]


def embed(bins: int, width: int) -> tuple[dict[str, Any], list[Any]]:
    """Returns the inputs of a model, and a row of a table for each category."""
    inputs = {
        "numbers": keras.Input((NUMBERS,), name="numbers"),
        **{name: keras.Input((), dtype="int64", name=name) for name in WORDS},
    }
    features = {}
    for name in WORDS:
        table = tfps.layers.TableConfig(name, bins, width)
        features[name] = tfps.layers.FeatureConfig(
            name, table, (None,), (None, width)
        )
    rows = tfps.layers.DistributedEmbedding(features)(
        {name: inputs[name] for name in WORDS}
    )
    return inputs, list(rows.values())


def dlrm(bins: int) -> keras.Model:
    """Builds DLRM."""
    inputs, rows = embed(bins, WIDTH)
    bottom = keras.layers.Dense(64, activation="relu")(inputs["numbers"])
    bottom = keras.layers.Dense(WIDTH, activation="relu")(bottom)
    vectors = keras.ops.stack([bottom, *rows], axis=1)
    products = keras.layers.Flatten()(
        keras.ops.einsum("bid,bjd->bij", vectors, vectors)
    )
    below = np.tril_indices(1 + len(WORDS), -1)  # each pair once
    pairs = np.ravel_multi_index(below, [1 + len(WORDS)] * 2)
    pairs = keras.ops.take(products, pairs, axis=1)
    top = keras.layers.Concatenate()([bottom, pairs])
    top = keras.layers.Dense(64, activation="relu")(top)
    top = keras.layers.Dense(1, activation="sigmoid")(top)
    return keras.Model(inputs, top)


def logistic_regression(bins: int) -> keras.Model:
    """Builds the baseline: a weight for each number and for each id."""
    inputs, rows = embed(bins, 1)
    logits = keras.layers.Dense(1)(inputs["numbers"])
    logits = keras.layers.Add()([logits, *rows])
    return keras.Model(inputs, keras.ops.sigmoid(logits))


if __name__ == "__main__":
    main()
