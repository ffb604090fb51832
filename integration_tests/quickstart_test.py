"""Tests of the README's example, as a user runs it."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parent.parent
_EXAMPLE = _ROOT / "examples" / "quickstart.py"
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_OF_TENSORFLOW = (
    r"\.(?:cc|h):\d+\]|absl::|rebuild TensorFlow|Connection refused"
)


def test_the_readme_shows_the_example_that_is_tested() -> None:
    assert _EXAMPLE.read_text() in (_ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable],
        [sys.executable, "-m", "tfps_plugin", "run", "--workers=2", "--ps=2"],
    ],
    ids=["embedded cluster", "tfps run"],
)
def test_it_trains_and_saves_a_plain_model(
    command: list[str], tmp_path: pathlib.Path
) -> None:
    ended = subprocess.run(
        [*command, str(_EXAMPLE)],
        cwd=tmp_path,
        # As a user's: the level of TensorFlow's log is not set.
        env={
            **{k: v for k, v in os.environ.items() if k != _LOG_LEVEL},
            "PYTHONPATH": str(_ROOT),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "200/200" in ended.stdout
    # The first screen is the program's: nothing of TensorFlow's.
    assert not re.search(_OF_TENSORFLOW, ended.stderr), ended.stderr
    accuracies = [
        float(part.split()[0]) for part in ended.stdout.split("accuracy: ")[1:]
    ]
    assert accuracies[-1] > 0.8
    assert (tmp_path / "model.keras").stat().st_size > 100_000 * 16 * 4
