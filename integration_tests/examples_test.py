"""Tests of examples: each is better than its baseline, as a user runs it."""

import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

_ROOT = pathlib.Path(__file__).parent.parent
_ON_CLUSTER = ("-m", "tfps_plugin", "run", "--workers=2", "--ps=2")
_TIMEOUT_SECONDS = 280.0


def _results(
    name: str, *arguments: str, command: tuple[str, ...] = _ON_CLUSTER
) -> dict[str, float]:
    """Runs an example; returns the first number of each row of its table."""
    ended = subprocess.run(
        [
            sys.executable,
            *command,
            str(_ROOT / "examples" / name),
            *arguments,
        ],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = re.findall(
        r"^(?:chief +\| )?([A-Za-z][\w ()=]*?) +(\d\.\d{4})\b",
        ended.stdout,
        re.MULTILINE,
    )
    return {label: float(value) for label, value in rows}


def test_flights(tmp_path: pathlib.Path) -> None:
    results = _results(
        "flights.py",
        *("--epochs=2", "--steps=60", "--skip-baseline"),
        f"--output-dir={tmp_path}",
    )
    assert results["cluster"] > results["base rate"] + 0.15
    model = keras.models.load_model(tmp_path / "flights.keras")
    assert model.count_params() > 100_000


def test_two_towers_retrieve_more_than_popular_films() -> None:
    results = _results("two_tower.py", "--epochs=4")
    assert results["two towers"] > 1.2 * results["most popular"]


def test_dlrm_sees_what_a_logistic_regression_does_not() -> None:
    results = _results("dlrm.py", command=())
    assert 0.55 < results["logistic_regression"] < results["dlrm"] - 0.05
    assert results["dlrm"] < results["best possible"]


def test_a_sequence_says_more_than_popularity() -> None:
    results = _results("sequence.py", "--epochs=4")
    assert results["recurrent model"] > 1.3 * results["most popular"]


def test_names_with_rows_of_their_own_say_more_than_hashed_ones() -> None:
    results = _results("dynamic_vocabulary.py")
    assert results["dynamic"] < results["hashed"] - 0.005
    assert results["hashed"] < results["mean rating"] - 0.01


def test_digits() -> None:
    results = _results("digits.py")
    baseline = results["logistic regression"]
    assert results["convolutional network"] > baseline + 0.003


def test_a_custom_loop_ranks_better_than_popularity() -> None:
    results = _results("custom_loop.py", "--rounds=3")
    assert results["custom loop"] > results["popularity"] + 0.01


def test_every_consistency_learns_as_one_process_does() -> None:
    results = _results("consistency.py", "--epochs=2")
    average = results.pop("average")
    alone = results.pop("one process")
    assert len(results) == 4
    for error in results.values():
        assert error < average - 0.1
        assert error == pytest.approx(alone, abs=0.03)
