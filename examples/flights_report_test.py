"""Tests of flights_report.py."""

import dataclasses
import math
import pathlib
from typing import Any

import pytest
import tensorflow as tf
from flights_report import Scores
from flights_report import draw_curves
from flights_report import holdings_table
from flights_report import score
from flights_report import score_table


@dataclasses.dataclass(frozen=True)
class _Piece:
    device: str
    shape: tuple[int, ...]
    dtype: tf.DType = tf.float32


@dataclasses.dataclass(frozen=True)
class _Sharded:
    variables: list[_Piece]


@dataclasses.dataclass(frozen=True)
class _Variable:
    value: Any


@pytest.mark.parametrize(
    ("late", "predicted", "auc"),
    [
        ([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4], 1.0),
        ([1, 1, 0, 0], [0.1, 0.2, 0.3, 0.4], 0.0),
        ([0, 1, 0, 1], [0.1, 0.2, 0.3, 0.4], 0.75),
        # Ties count half.
        ([0, 1, 0, 1], [0.5, 0.5, 0.5, 0.5], 0.5),
        ([0, 1, 1], [0.5, 0.5, 0.9], 0.75),
    ],
)
def test_area_under_curve(
    late: list[int], predicted: list[float], auc: float
) -> None:
    assert score(late, predicted).auc == pytest.approx(auc)


def test_no_area_when_all_flights_are_alike() -> None:
    assert math.isnan(score([1, 1], [0.1, 0.9]).auc)


def test_log_loss() -> None:
    expected = -(math.log(0.8) + math.log(0.7)) / 2
    assert score([1, 0], [0.8, 0.3]).log_loss == pytest.approx(expected)


def test_log_loss_of_a_certain_error_is_finite() -> None:
    assert math.isfinite(score([1, 0], [0.0, 1.0]).log_loss)


def test_saved_scores_come_back(tmp_path: pathlib.Path) -> None:
    scores = Scores(0.7, 0.5, 12.5, {"loss": [0.6, 0.5]})
    scores.save(tmp_path / "scores.json")
    assert Scores.load(tmp_path / "scores.json") == scores


def test_score_table() -> None:
    table = score_table(
        {"cluster": Scores(0.71, 0.51, 41.6), "base rate": Scores(0.5, 0.56)}
    )
    assert [line.split() for line in table.splitlines()] == [
        ["test", "AUC", "log", "loss", "training"],
        ["cluster", "0.7100", "0.5100", "42", "s"],
        ["base", "rate", "0.5000", "0.5600", "-"],
    ]


def test_holdings_count_the_shards_of_each_task() -> None:
    first, second = (
        f"/job:ps/replica:0/task:{task}/device:CPU:0" for task in (0, 1)
    )
    table = holdings_table(
        [
            _Variable(_Piece(first, (10, 4))),
            _Variable(
                _Sharded([_Piece(first, (600, 1)), _Piece(second, (500, 1))])
            ),
        ]
    )
    assert [line.split() for line in table.splitlines()] == [
        ["variables", "bytes"],
        ["ps", "0", "2", "2,560"],
        ["ps", "1", "1", "2,000"],
    ]


def test_curves_are_drawn_even_of_a_run_without_validation(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "curves.png"
    curves = {"loss": [0.6, 0.5], "auc": [0.6, 0.7], "val_loss": [0.6, 0.6]}
    draw_curves({"cluster": curves, "one process": {"loss": [0.5]}}, path)
    assert path.read_bytes().startswith(b"\x89PNG")
