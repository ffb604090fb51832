"""Plain processes, outside of any cluster, that flights.py starts."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import numpy.typing as npt
from flights_report import SCORES_FILE
from flights_report import Scores
from flights_report import say

_HERE = pathlib.Path(__file__).parent


def check_saved_model(
    output_dir: pathlib.Path, predicted: npt.NDArray[np.float32]
) -> None:
    """Checks that a plain process can open the saved model, and use it.

    Args:
        output_dir: Folder of the saved model.
        predicted: Predictions of the model before it was saved.

    Raises:
        SystemExit: If it cannot be opened, or predicts something else.
    """
    say("Opening the saved model in a process without a cluster.")
    with tempfile.TemporaryDirectory() as folder:
        answers = pathlib.Path(folder, "probabilities.npy")
        _run("flights_predict.py", output_dir, "--write", answers)
        difference = float(np.abs(np.load(answers) - predicted).max())
    if difference > 1e-4:
        raise SystemExit(
            f"The saved model predicts something else: by up to {difference}."
        )
    say("It predicts the same.")


def run_baseline(options: argparse.Namespace) -> Scores:
    """Trains the same model in one process, by flights.py with --local.

    Args:
        options: The command line of the run to compare with.
    """
    folder = options.output_dir / "one_process"
    arguments: list[object] = [
        "--local",
        f"--epochs={options.epochs}",
        f"--batch-size={options.batch_size}",
        f"--data-dir={options.data_dir}",
        f"--output-dir={folder}",
    ]
    if options.steps_per_epoch:
        arguments.append(f"--steps-per-epoch={options.steps_per_epoch}")
    _run("flights.py", *arguments)
    return Scores.load(folder / SCORES_FILE)


def _run(script: str, *arguments: object) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    command = [sys.executable, str(_HERE / script), *map(str, arguments)]
    ended = subprocess.run(command, env=environment, check=False)
    if ended.returncode:
        raise SystemExit(f"{script} failed: exit code {ended.returncode}.")
