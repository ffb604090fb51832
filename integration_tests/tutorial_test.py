"""Tests of examples, as a user runs them: the tutorial, and many tables."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parent.parent
_TIMEOUT_SECONDS = 240.0


def _run(name: str) -> str:
    """Runs an example, and returns its output."""
    path = os.environ.get("PYTHONPATH")
    ended = subprocess.run(
        [sys.executable, f"examples/{name}"],
        cwd=_ROOT,
        env={
            **os.environ,
            # Like an installed tfps_plugin, wherever the tests run from.
            "PYTHONPATH": f"{_ROOT}{os.pathsep}{path}" if path else str(_ROOT),
        },
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _numbers(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


@pytest.fixture(scope="module")
def custom_loop() -> str:
    return _run("tutorial_custom_loop.py")


@pytest.fixture(scope="module")
def fit() -> str:
    return _run("tutorial_fit.py")


def test_each_ps_has_one_shard_of_the_embedding(custom_loop: str) -> None:
    shards = re.findall(r"Embedding shard \((.+)\) on (\S+)", custom_loop)
    assert shards == [
        ("4, 16384", "/job:ps/replica:0/task:0/device:CPU:0"),
        ("4, 16384", "/job:ps/replica:0/task:1/device:CPU:0"),
    ]


def test_custom_loop_reaches_full_accuracy(custom_loop: str) -> None:
    accuracies = _numbers(r"Finished epoch \d, accuracy is (\S+),", custom_loop)
    assert len(accuracies) == 4
    assert accuracies[-1] == 1.0
    assert _numbers(r"Final loss is (\S+)\.\n", custom_loop)[0] < 0.1


def test_both_ways_to_evaluate_agree(custom_loop: str) -> None:
    pattern = r"(\w+) evaluation accuracy: (\S+) of (\d+) examples\n"
    assert re.findall(pattern, custom_loop) == [
        ("Direct", "0.750000", "16"),
        ("Distributed", "0.750000", "16"),
    ]


def test_fit_learns(fit: str) -> None:
    ((first, last),) = re.findall(r"Loss went from (\S+) to (\S+)\.\n", fit)
    assert float(last) < float(first) / 4
    assert _numbers(r"Evaluation loss is (\S+)\.\n", fit)[0] < float(first) / 4


def test_fit_takes_the_steps_it_was_asked_for(fit: str) -> None:
    assert _numbers(r"Steps taken: (\d+)", fit) == [100, 120]


def test_fit_calls_callbacks_at_every_epoch(fit: str) -> None:
    for epoch in range(1, 6):
        assert f"checkpoint-{epoch}.keras" in fit


def test_many_tables_are_trained_as_one_and_served() -> None:
    printed = _run("distributed_embedding.py")
    assert "Variables of the layer: [(2500, 8)]" in printed
    for table, rows in (("ads", 2000), ("users", 500)):
        assert f"Table {table} has the shape ({rows}, 8)." in printed
    (accuracy,) = _numbers(r"Accuracy is (\S+)\.\n", printed)
    assert accuracy > 0.9
    assert "Served: ['serve', 'serving_default']" in printed


def test_slices_and_ensembles() -> None:
    output = _run("map_reduce.py")
    assert "5005 examples" in output
    (alone,) = _numbers(r"one model (\S+) on average", output)
    (together,) = _numbers(r"the ensemble (\S+)", output)
    assert 0.6 < alone < together
