"""Will a flight from New York arrive late? Trained on parameter servers.

    tfps run --workers 2 --ps 2 examples/flights.py   on a cluster
    python examples/flights.py --local                in one process

A wide and deep Keras model learns from the real flights of January to
September 2013, is watched on October, and is tested on November and December.
`train` is the whole job. It is the same on a cluster and in one process: only
the scope differs.

Beside this file: flights_data.py (the flights), flights_features.py (ids and
numbers), flights_records.py (the files that workers read), flights_prepare.py
(all three in turn), flights_model.py (the model), flights_report.py (scores
and curves), flights_predict.py (uses the saved model), flights_plainly.py
(runs the last and the baseline).
"""

import argparse
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Mapping

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from flights_features import WIDE
from flights_model import build_model
from flights_plainly import check_saved_model
from flights_plainly import run_baseline
from flights_predict import ENCODER_FILE
from flights_predict import MODEL_FILE
from flights_prepare import Prepared
from flights_prepare import prepare
from flights_records import read_records
from flights_records import steps_in
from flights_report import SCORES_FILE
from flights_report import Scores
from flights_report import draw_curves
from flights_report import holdings_table
from flights_report import say
from flights_report import score
from flights_report import score_table

import tfps_plugin as tfps

CONSISTENCIES: dict[str, tfps.Async | tfps.Sync] = {
    "async": tfps.Async(),
    "sync": tfps.Sync(),
}
SMALLEST_SHARD_BYTES = 64 << 10
"""Cuts the tables of tail numbers and of flights; the rest stays whole."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """Result of a training.

    Attributes:
        model: The trained model.
        predicted: Its predictions for the test months.
        scores: Scores of the predictions.
    """

    model: keras.Model
    predicted: npt.NDArray[np.float32]
    scores: Scores


def main() -> None:
    """Runs the job as the command line says."""
    options = parse_options()
    if options.local:
        run_in_one_process(options)
    else:
        run_on_cluster(options)


def run_in_one_process(options: argparse.Namespace) -> None:
    """Trains without any cluster."""
    prepared = prepare(options.data_dir)
    trained = train(options, prepared, contextlib.nullcontext())
    report(options, prepared, {"one process": trained.scores})


def run_on_cluster(options: argparse.Namespace) -> None:
    """Trains on workers and parameter servers, then compares."""
    tfps.init()  # A worker or a ps serves here until the job is over.
    strategy = tfps.ParameterServerStrategy(
        variable_partitioner=tfps.partitioners.MinSizePartitioner(
            SMALLEST_SHARD_BYTES, max_shards=parameter_servers()
        ),
        consistency=CONSISTENCIES[options.consistency],
        communication=tfps.CommunicationOptions(wire_dtype=options.wire_dtype),
    )
    prepared = prepare(options.data_dir)
    trained = train(options, prepared, strategy.scope())
    check_saved_model(options.output_dir, trained.predicted)

    results = {"cluster": trained.scores}
    if not options.skip_baseline:
        say("\nTraining the same model in one process, to compare.")
        results["one process"] = run_baseline(options)
    say("\nWhere the weights and the optimizer's state are:\n")
    model = trained.model
    say(holdings_table([*model.variables, *model.optimizer.variables]))
    report(options, prepared, results)


def train(
    options: argparse.Namespace,
    prepared: Prepared,
    scope: contextlib.AbstractContextManager,
) -> Trained:
    """Trains, tests and saves the model: the job itself.

    Args:
        options: The command line.
        prepared: The flights.
        scope: Where the model is made: `strategy.scope()` on a cluster.
    """
    keras.utils.set_random_seed(2013)
    with scope:
        model = build_model(
            prepared.encoder.table_sizes,
            prepared.encoder.wide_size,
            wide_columns=len(WIDE),
            numbers=len(prepared.encoder.means),
        )
        model.compile(
            optimizer=keras.optimizers.Adagrad(0.05),
            loss="binary_crossentropy",
            metrics=[keras.metrics.AUC(name="auc")],
        )
    say(f"\nTraining a model of {model.count_params():,} weights.")

    batch_size = options.batch_size

    def training_data(context: tf.distribute.InputContext) -> tf.data.Dataset:
        # Workers in step share the flights of a step.
        share = context.get_per_replica_batch_size(batch_size)
        return read_records(
            options.data_dir, "train", share, context, shuffle=True
        )

    def validation_data(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return read_records(options.data_dir, "validation", batch_size, context)

    steps = options.steps_per_epoch
    started = time.monotonic()
    history = model.fit(
        tfps.DatasetCreator(training_data),
        epochs=options.epochs,
        steps_per_epoch=steps or steps_in(prepared.rows["train"], batch_size),
        validation_data=tfps.DatasetCreator(validation_data),
        validation_steps=steps_in(prepared.rows["validation"], batch_size),
        callbacks=backups(options),
    )
    seconds = time.monotonic() - started

    say("\nTesting it on the flights of November and December.")
    predicted = model.predict(
        prepared.test_features, batch_size=8192, verbose=0
    )[:, 0]
    scores = score(prepared.test_late, predicted, seconds, history.history)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    model.save(options.output_dir / MODEL_FILE)
    prepared.encoder.save(options.output_dir / ENCODER_FILE)
    scores.save(options.output_dir / SCORES_FILE)
    return Trained(model, predicted, scores)


def backups(options: argparse.Namespace) -> list[keras.callbacks.Callback]:
    """Returns callbacks that let a training resume, whatever dies."""
    if options.backup_dir is None:
        return []
    return [
        tfps.callbacks.BackupAndRestore(
            options.backup_dir,
            save_freq=options.backup_steps,
            # A job that is started again after its training does not train
            # again.
            delete_checkpoint=False,
        )
    ]


def report(
    options: argparse.Namespace,
    prepared: Prepared,
    results: Mapping[str, Scores],
) -> None:
    """Draws the curves and prints the comparison."""
    picture = options.output_dir / "learning_curves.png"
    draw_curves({name: one.curves for name, one in results.items()}, picture)
    always = np.full(len(prepared.test_late), prepared.base_rate)
    base_rate = score(prepared.test_late, always)
    say(f"\n{score_table({**results, 'base rate': base_rate})}")
    say(f"\nModel:  {options.output_dir / MODEL_FILE}\nCurves: {picture}")


def parameter_servers() -> int:
    """Returns the number of ps in `TF_CONFIG`, or of the embedded cluster."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    return len(cluster.get("ps", [None]))


def parse_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Predict which flights from New York arrive late."
    )
    parser.add_argument(
        "--local", action="store_true", help="train in this process alone"
    )
    parser.add_argument(
        "--skip-baseline",
        action="store_true",
        help="do not train in one process too, to compare",
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--batch-size", type=int, default=512, help="flights in a step"
    )
    parser.add_argument(
        "--steps-per-epoch",
        type=int,
        help="steps of all workers together (default: one round of flights)",
    )
    parser.add_argument(
        "--consistency",
        choices=[*CONSISTENCIES],
        default="async",
        help="async: workers do not wait for each other; sync: they make each "
        "step together, and share its flights (default: %(default)s)",
    )
    parser.add_argument(
        "--wire-dtype",
        choices=["bfloat16", "float16", "int8"],
        help="what weights and gradients are rounded to between tasks "
        "(default: they are not)",
    )
    parser.add_argument(
        "--output-dir",
        type=pathlib.Path,
        default=pathlib.Path("output/flights"),
        help="folder for the model, its scores and its curves "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--data-dir",
        type=pathlib.Path,
        help="folder for what workers read; if they are on several machines, "
        "one that all can see (default: records/ in the output folder)",
    )
    parser.add_argument(
        "--backup-dir",
        type=pathlib.Path,
        help="back up here, and go on from what is there (default: do neither)",
    )
    parser.add_argument(
        "--backup-steps",
        type=int,
        default=200,
        help="steps between two backups (default: %(default)s)",
    )
    options = parser.parse_args()
    options.output_dir = options.output_dir.resolve()
    data_dir = options.data_dir or options.output_dir / "records"
    options.data_dir = data_dir.resolve()
    return options


if __name__ == "__main__":
    main()
