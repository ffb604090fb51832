"""Will a flight from New York arrive late? A wide and deep model.

    tfps run --workers 2 --ps 2 examples/flights.py
    python examples/flights.py

It learns from the real flights of January to September 2013 and is tested on
those of November and December. Then the same model is trained in this process
alone, to compare. flights_data.py reads the flights; flights_features.py turns
words into ids and writes the files that workers read.
"""

import argparse
import contextlib
import pathlib
import time
import warnings
from typing import Any

import flights_features
import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

CONSISTENCIES: dict[str, Any] = {"async": tfps.Async(), "sync": tfps.Sync()}
WIDTHS = {
    **{"tail_number": 16, "flight": 16, "carrier": 8, "origin": 2},
    **{"destination": 8, "plane_model": 8, "hour": 8, "weekday": 4},
}


def main() -> None:
    """Trains on the cluster and in this process, and prints the scores."""
    parser = argparse.ArgumentParser(description="Which flights arrive late?")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, help="of an epoch")
    parser.add_argument("--consistency", choices=CONSISTENCIES, default="async")
    parser.add_argument("--output-dir", default="output/flights")
    parser.add_argument("--backup-dir", help="to go on from, if stopped")
    parser.add_argument("--backup-steps", type=int, default=200)
    parser.add_argument("--skip-baseline", action="store_true")
    options = parser.parse_args()
    tfps.init()  # A worker or a ps serves here until the job is over.
    cut = tfps.partitioners.MinSizePartitioner(64 << 10, max_shards=2)
    strategy = tfps.ParameterServerStrategy(
        variable_partitioner=cut, consistency=CONSISTENCIES[options.consistency]
    )
    folder = pathlib.Path(options.output_dir).resolve()
    train, test = flights_features.prepare(folder / "records")
    print(f"{train.rows:,} flights to train on, {test.rows:,} to test on")

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Returns what one worker reads. Workers in step share a batch."""
        worker, workers = context.input_pipeline_id, context.num_input_pipelines
        records = tf.data.FixedLengthRecordDataset(
            train.files[worker::workers], flights_features.RECORD_BYTES
        )
        share = context.get_per_replica_batch_size(options.batch_size)
        batches = records.shuffle(16_384).repeat().batch(share)
        return batches.map(flights_features.decode).prefetch(2)

    def scores(
        scope: contextlib.AbstractContextManager,
        data: Any,
        callbacks: list[Any],
    ) -> tuple[keras.Model, list[float]]:
        """Trains and tests a model that is made within the scope."""
        keras.utils.set_random_seed(2013)
        with scope:
            model = build_model(train.encoder)
            model.compile(
                keras.optimizers.Adagrad(0.05),
                "binary_crossentropy",
                metrics=[keras.metrics.AUC(name="auc")],
            )
        started = time.monotonic()
        model.fit(
            data,
            epochs=options.epochs,
            steps_per_epoch=options.steps or train.rows // options.batch_size,
            callbacks=callbacks,
            verbose=2,
        )
        seconds = time.monotonic() - started
        loss, auc = model.evaluate(test.features, test.late, 8192, verbose=0)
        return model, [auc, loss, seconds]

    backups = []
    if options.backup_dir:
        backups.append(
            tfps.callbacks.BackupAndRestore(
                options.backup_dir,
                save_freq=options.backup_steps,
                delete_checkpoint=False,  # Started again, a job goes on.
            )
        )
    results = {}
    model, results["cluster"] = scores(
        strategy.scope(), tfps.DatasetCreator(dataset_fn), backups
    )
    model.save(folder / "flights.keras")  # a plain Keras model
    if not options.skip_baseline:
        # This model is left out of the cluster on purpose.
        warnings.filterwarnings("ignore", "The model .* is not on the cluster")
        alone = dataset_fn(tf.distribute.InputContext())
        _, results["one process"] = scores(contextlib.nullcontext(), alone, [])
    chances = np.where(test.late > 0, train.share_late, 1 - train.share_late)
    loss = -np.log(chances).mean()
    results["base rate"] = [0.5, loss, 0.0]
    print(f"\n{'':12}{'test AUC':>10}{'log loss':>10}{'training':>10}")
    for name, (auc, loss, seconds) in results.items():
        print(f"{name:12}{auc:>10.4f}{loss:>10.4f}{seconds:>8.0f} s")


def build_model(encoder: flights_features.Encoder) -> keras.Model:
    """Builds the model.

    The wide part memorizes: it has a weight for each word and for each cross of
    words. The deep part generalizes: it sees the numbers, and an embedding of
    each word.
    """
    sizes = encoder.table_sizes
    inputs = {
        name: keras.Input((), dtype="int32", name=name) for name in WIDTHS
    }
    deep = [
        keras.layers.Embedding(sizes[name], width)(inputs[name])
        for name, width in WIDTHS.items()
    ]
    inputs["numbers"] = keras.Input((len(encoder.means),), name="numbers")
    deep = keras.layers.Concatenate()([*deep, inputs["numbers"]])
    for units in (64, 32):
        deep = keras.layers.Dense(units, activation="relu")(deep)
        deep = keras.layers.Dropout(0.3)(deep)
    deep = keras.layers.Dense(1)(deep)
    inputs["wide"] = keras.Input(
        (len(flights_features.WIDE),), dtype="int32", name="wide"
    )
    wide = keras.layers.Embedding(
        encoder.wide_size, 1, embeddings_initializer="zeros"
    )(inputs["wide"])
    wide = keras.ops.sum(wide, axis=1)
    return keras.Model(inputs, keras.ops.sigmoid(wide + deep))


if __name__ == "__main__":
    main()
