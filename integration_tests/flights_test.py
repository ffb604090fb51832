"""Test of the main example, shortened, as a user runs it."""

import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

_ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("flights")


@pytest.fixture(scope="module")
def printed(output: pathlib.Path) -> str:
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tfps_plugin"),
            *("run", "--workers=2", "--ps=2"),
            str(_ROOT / "examples" / "flights.py"),
            *("--epochs=2", "--steps-per-epoch=60", "--skip-baseline"),
            f"--output-dir={output}",
        ],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_it_learns_beyond_the_base_rate(printed: str) -> None:
    scores = dict(
        re.findall(r"(cluster|base rate)\s+(0\.\d+)\s+0\.\d+", printed)
    )
    assert float(scores["base rate"]) == 0.5
    assert float(scores["cluster"]) > 0.65
    losses = re.findall(r"(?:cluster|base rate)\s+0\.\d+\s+(0\.\d+)", printed)
    assert float(losses[0]) < float(losses[1]), "cluster before base rate"


def test_both_ps_hold_their_part(printed: str) -> None:
    held = [
        int(number.replace(",", ""))
        for number in re.findall(r"ps [01]\s+\d+\s+([\d,]+)", printed)
    ]
    assert len(held) == 2
    assert min(held) > 0.8 * max(held)


def test_it_leaves_curves_and_a_plain_model(
    printed: str, output: pathlib.Path
) -> None:
    curves = (output / "learning_curves.png").read_bytes()
    assert curves.startswith(b"\x89PNG")
    model = keras.models.load_model(output / "flights.keras")
    assert model.count_params() > 100_000
